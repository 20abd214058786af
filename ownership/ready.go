package ownership

import (
	"container/list"
	"slices"
	"strings"

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
func (r *readyQueue) firstExcept(skipped []string) *taskState {
	for turn := r.turns.Front(); turn != nil; turn = turn.Next() {
		if ts := turn.Value.(*readyOrigin).firstExcept(skipped); ts != nil {
			return ts
		}
	}
	return nil
}

func (o *readyOrigin) firstExcept(skipped []string) (first *taskState) {
	for shape, l := range o.shapes {
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
