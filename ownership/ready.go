package ownership

import (
	"container/list"
	"slices"
	"strings"
)

// A ready holds the tasks of one class that may be granted now, in the order in
// which they came. It keeps those of each shape apart, so that any number of tasks
// that nobody can take now are passed over at once.
type ready struct {
	shapes map[string]*list.List // of *cell
	came   uint64                // number of the newest
}

func (r *ready) push(c *cell) {
	if r.shapes == nil {
		r.shapes = map[string]*list.List{}
	}
	shape := shapeOf(c)
	l := r.shapes[shape]
	if l == nil {
		l = list.New()
		r.shapes[shape] = l
	}
	r.came++
	c.place.came, c.place.ready = r.came, l.PushBack(c)
}

func (r *ready) remove(c *cell) {
	shape := shapeOf(c)
	l := r.shapes[shape]
	l.Remove(c.place.ready)
	c.place.ready = nil
	if l.Len() == 0 {
		delete(r.shapes, shape)
	}
}

// firstNotIn returns the first that is of none of the shapes.
func (r *ready) firstNotIn(passed []string) (first *cell) {
	for shape, l := range r.shapes {
		if c := l.Front().Value.(*cell); (first == nil || c.place.came < first.place.came) && !slices.Contains(passed, shape) {
			first = c
		}
	}
	return first
}

// shapeOf is equal for tasks that the same nodes can take.
func shapeOf(c *cell) string {
	if len(c.task.Labels)+len(c.task.Prefer) == 0 {
		return c.task.Kind
	}
	return c.task.Kind + "\x00" + strings.Join(c.task.Labels, "\x00") + "\x01" + strings.Join(c.task.Prefer, "\x00")
}
