package ownership

import (
	"container/list"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// A readyQueue holds the tasks of one class that may be granted now. Their origins take
// turns, so that a sender of many does not keep those of others waiting; the tasks of one
// origin are in the order in which they became ready. They are grouped by shape, so that any
// number of tasks that no node can take now are skipped at once.
type readyQueue struct {
	origins map[proto.PeerID]*list.Element // in turns
	turns   list.List                      // of *readyOrigin, the next one first
	lastSeq uint64                         // number of the newest task
}

// A readyOrigin holds the ready tasks of one origin, at least one.
type readyOrigin struct {
	peer   proto.PeerID
	shapes map[string]*list.List // of *taskState
}

func (r *readyQueue) push(ts *taskState) {
	if r.origins == nil {
		r.origins = map[proto.PeerID]*list.Element{}
	}
	turn := r.origins[ts.task.Origin]
	if turn == nil {
		turn = r.turns.PushBack(&readyOrigin{ts.task.Origin, map[string]*list.List{}})
		r.origins[ts.task.Origin] = turn
	}
	o, shape := turn.Value.(*readyOrigin), shapeOf(ts)
	l := o.shapes[shape]
	if l == nil {
		l = list.New()
		o.shapes[shape] = l
	}
	r.lastSeq++
	ts.mem.readySeq, ts.mem.ready = r.lastSeq, l.PushBack(ts)
}

func (r *readyQueue) remove(ts *taskState) {
	turn, shape := r.origins[ts.task.Origin], shapeOf(ts)
	o := turn.Value.(*readyOrigin)
	l := o.shapes[shape]
	l.Remove(ts.mem.ready)
	ts.mem.ready = nil
	if l.Len() == 0 {
		delete(o.shapes, shape)
	}
	if len(o.shapes) == 0 {
		r.turns.Remove(turn)
		delete(r.origins, o.peer)
	}
}

// took records that ts is granted: its origin has had its turn.
func (r *readyQueue) took(ts *taskState) { r.turns.MoveToBack(r.origins[ts.task.Origin]) }

// firstExcept returns the first task with none of the shapes, of the next origin that has
// one.
func (r *readyQueue) firstExcept(skipped map[string]bool) *taskState {
	for turn := r.turns.Front(); turn != nil; turn = turn.Next() {
		if ts := turn.Value.(*readyOrigin).firstExcept(skipped); ts != nil {
			return ts
		}
	}
	return nil
}

func (o *readyOrigin) firstExcept(skipped map[string]bool) (first *taskState) {
	for shape, l := range o.shapes {
		if ts := l.Front().Value.(*taskState); (first == nil || ts.mem.readySeq < first.mem.readySeq) && !skipped[shape] {
			first = ts
		}
	}
	return first
}

// shapeOf returns the same string for tasks that the same nodes can take, and for no others,
// whatever their labels contain.
func shapeOf(ts *taskState) string {
	labels, prefer := ts.task.Options.GetRequire(), ts.task.Options.GetPrefer()
	if len(labels)+len(prefer) == 0 {
		return ts.task.Kind
	}
	return fmt.Sprintf("%q%q%q", ts.task.Kind, labels, prefer)
}

// stuckShapes are shapes of tasks that no node could take when they were looked at last. They keep
// no other task waiting, however many they are. Those that no member serves are looked at again
// when the members change, the others in turns.
type stuckShapes struct {
	shapes map[string]bool
	busy   []string // of these, those that a member serves, looked at the longest ago first
}

func (s *stuckShapes) add(shape string, served bool) {
	if s.shapes == nil {
		s.shapes = map[string]bool{}
	}
	s.shapes[shape] = true
	if served {
		s.busy = append(s.busy, shape)
	}
}

// forget removes the first n that a member serves: they are looked at again.
func (s *stuckShapes) forget(n int) {
	n = min(n, len(s.busy))
	for _, shape := range s.busy[:n] {
		delete(s.shapes, shape)
	}
	s.busy = slices.Delete(s.busy, 0, n)
}
