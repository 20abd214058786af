package ownership

import (
	"container/list"
	"slices"
	"strings"
)

// A readyQueue holds the tasks of one class that may be granted now, in the order in which
// they became ready. It groups them by shape, so that any number of tasks that no node can
// take now are skipped at once.
type readyQueue struct {
	shapes  map[string]*list.List // of *taskState
	lastSeq uint64                // number of the newest task
}

func (r *readyQueue) push(ts *taskState) {
	if r.shapes == nil {
		r.shapes = map[string]*list.List{}
	}
	shape := shapeOf(ts)
	l := r.shapes[shape]
	if l == nil {
		l = list.New()
		r.shapes[shape] = l
	}
	r.lastSeq++
	ts.mem.readySeq, ts.mem.ready = r.lastSeq, l.PushBack(ts)
}

func (r *readyQueue) remove(ts *taskState) {
	shape := shapeOf(ts)
	l := r.shapes[shape]
	l.Remove(ts.mem.ready)
	ts.mem.ready = nil
	if l.Len() == 0 {
		delete(r.shapes, shape)
	}
}

// firstExcept returns the first task with none of the shapes.
func (r *readyQueue) firstExcept(skipped []string) (first *taskState) {
	for shape, l := range r.shapes {
		if ts := l.Front().Value.(*taskState); (first == nil || ts.mem.readySeq < first.mem.readySeq) && !slices.Contains(skipped, shape) {
			first = ts
		}
	}
	return first
}

// shapeOf returns the same string for tasks that the same nodes can take.
func shapeOf(ts *taskState) string {
	labels, prefer := ts.task.Options.GetRequire(), ts.task.Options.GetPrefer()
	if len(labels)+len(prefer) == 0 {
		return ts.task.Kind
	}
	return ts.task.Kind + "\x00" + strings.Join(labels, "\x00") + "\x01" + strings.Join(prefer, "\x00")
}
