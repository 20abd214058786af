package inbox

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A Status describes the inbox.
type Status struct {
	Slots, Used int
	Lasting     int // of Used, by runs that have lasted for a second: the others may be free soon
	Backlog     backlog.Stats
	Kinds       []KindStatus // registered, or with tasks in custody; ordered by name
}

// A KindStatus describes the tasks of one kind.
type KindStatus struct {
	Kind       string
	Registered bool
	Running    int
	Waiting    int // in custody, not running
}

// Status returns a description of the inbox.
func (in *Inbox) Status() Status {
	s := Status{Slots: in.cfg.Slots, Backlog: in.queue.Stats()}
	kinds := in.queue.Groups()
	for _, spec := range in.Specs() {
		if !slices.Contains(kinds, spec.Kind) {
			kinds = append(kinds, spec.Kind)
		}
	}
	for _, k := range kinds {
		live := in.queue.GroupCounts(k).Live
		ks := KindStatus{Kind: k, Registered: in.handlers.find(k) != nil, Running: in.slots.kindUse(k).running}
		ks.Waiting = max(live-ks.Running, 0)
		s.Used += ks.Running
		if ks.Registered || live > 0 && k != noKind {
			s.Kinds = append(s.Kinds, ks)
		}
	}
	for _, r := range in.Running() {
		if !r.Since.IsZero() && in.cfg.Clock.Now().Sub(r.Since) >= notifyAfter {
			s.Lasting++
		}
	}
	slices.SortFunc(s.Kinds, func(a, b KindStatus) int { return strings.Compare(a.Kind, b.Kind) })
	return s
}

// Unwritten returns why the end of a task whose handler has returned could not be written
// so far; empty: there is no such task.
func (in *Inbox) Unwritten(id proto.TaskID) string {
	in.slots.mu.Lock()
	defer in.slots.mu.Unlock()
	return in.slots.writeErrors[backlog.TaskKey(id)]
}

// WaitsForClock reports whether a task in custody waits for the clock of its home, which alone
// tells how much of its time is left.
func (in *Inbox) WaitsForClock(id proto.TaskID) bool {
	st, err := in.queue.Stored(backlog.TaskKey(id)) // a cached one belongs to its job
	if err != nil {
		return false
	}
	j := &job{key: backlog.TaskKey(id), stored: st, rec: st.Record}
	if j.origin, _ = proto.PeerIDFrom(j.rec.Peer); j.origin == in.cfg.Self {
		return false
	}
	_, known := in.deadline(j, in.nowMs())
	return !known
}

// A RunningTask is a running handler.
type RunningTask struct {
	ID    proto.TaskID
	Since time.Time // zero: it is about to be called
}

// Running returns the running handlers, the oldest first.
func (in *Inbox) Running() []RunningTask {
	claims := in.slots.running()
	out := make([]RunningTask, len(claims))
	for i, j := range claims {
		out[i] = RunningTask{ID: j.key.ID}
		in.slots.mu.Lock()
		out[i].Since = j.began
		in.slots.mu.Unlock()
	}
	return out
}

// Get returns the record of a task in custody, or of one that has ended and is not settled;
// else backlog.ErrNotFound.
func (in *Inbox) Get(id proto.TaskID) (*proto.Record, error) {
	r, _, err := in.queue.Get(backlog.TaskKey(id))
	return r, err
}

// List returns up to limit tasks that match, or any with nil, in the order of span. next is
// where the next page begins, zero at the end; a page may be short or empty before the end.
func (in *Inbox) List(span backlog.Span, limit int, match func(proto.TaskID, *proto.Record) bool) (found []backlog.Listed, next proto.TaskID, err error) {
	return in.queue.Page(span, limit, func(k backlog.Key, r *proto.Record) bool { return match == nil || match(k.ID, r) })
}

// Where returns what a task in custody waits for.
func (in *Inbox) Where(id proto.TaskID) (p backlog.Place, ok bool) {
	return in.queue.Where(backlog.TaskKey(id))
}

// Holds reports whether a task is here that has not ended.
func (in *Inbox) Holds(id proto.TaskID) bool {
	in.dedup.waitCommit(id)
	_, state, ok := in.dedup.state(id)
	return ok && !state.Terminal()
}

// Blobs calls f with the file of each task here that has not ended and whose body is not
// in its record, and with the origin of the task.
func (in *Inbox) Blobs(f func(name string, origin proto.PeerID)) error {
	for cursor := []byte(nil); ; {
		_, next, err := in.queue.List(backlog.Live, cursor, 1, func(_ backlog.Key, r *proto.Record) bool {
			if r.BodyBlob != "" && !r.State.Terminal() {
				origin, _ := proto.PeerIDFrom(r.Peer)
				f(r.BodyBlob, origin)
			}
			return false
		})
		if err != nil {
			return fmt.Errorf("list the bodies in use: %w", err)
		}
		if next == nil {
			return nil
		}
		cursor = next
	}
}
