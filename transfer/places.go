package transfer

import (
	"fmt"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// places are those of the tasks of queues whose large bodies are stored here or on their
// way, see Parts.MaxQueued. No origin can take up all of them.
type places struct {
	all  map[proto.TaskID]place
	held map[proto.PeerID]int // how many an origin has
}

// A place is that of one task.
type place struct {
	origin proto.PeerID
	queued bool          // the task is stored here
	since  time.Duration // else when its body was here, monotonic; 0: it is arriving
}

func (ps *places) put(id proto.TaskID, p place) {
	ps.drop(id)
	ps.all[id] = p
	ps.held[p.origin]++
}

func (ps *places) drop(id proto.TaskID) {
	p, ok := ps.all[id]
	if !ok {
		return
	}
	delete(ps.all, id)
	if ps.held[p.origin]--; ps.held[p.origin] == 0 {
		delete(ps.held, p.origin)
	}
}

// refusal returns why an origin gets no other one of limit places, empty if it does.
func (ps *places) refusal(origin proto.PeerID, limit int) string {
	switch {
	case len(ps.all) >= limit:
		return fmt.Sprintf("%d large bodies of queue tasks are stored here, which is the limit", limit)
	case !fair.Within(ps.held[origin], len(ps.all), limit):
		return "you have used up your share of the large bodies of queue tasks that are stored here; the rest is for others"
	}
	return ""
}

// take gives a task a place unless it has one; since is as in place. It returns why the task
// gets none, empty if it has one.
func (t *Transfers) take(id proto.TaskID, origin proto.PeerID, since time.Duration) (why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, known := t.places.all[id]
	if !known {
		if why = t.places.refusal(origin, t.MaxQueued); why != "" {
			return why
		}
		p.origin = origin
	}
	if !p.queued {
		p.since = since
		t.places.put(id, p)
	}
	return ""
}

// Take gives a task of a queue a place whose large body is here already, for as long as it
// may take to be stored. It returns why the task gets none.
func (t *Transfers) Take(id proto.TaskID, origin proto.PeerID) (why string) {
	return t.take(id, origin, max(t.Clock.Mono(), 1))
}

// arrived records that the body of a task is complete, or that its stream ended early.
func (t *Transfers) arrived(id proto.TaskID, origin proto.PeerID, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.places.all[id].queued:
	case whole:
		t.places.put(id, place{origin: origin, since: max(t.Clock.Mono(), 1)})
	default:
		t.places.drop(id)
	}
}

// Track counts a task of a queue whose body is large.
func (t *Transfers) Track(id proto.TaskID, origin proto.PeerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places.put(id, place{origin: origin, queued: true})
}
