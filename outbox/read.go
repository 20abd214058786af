package outbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// Get returns the record of a task of this home, or ErrNotFound. A pending task
// that is in flight is shown as SENT.
func (o *Outbox) Get(id proto.TaskID) (*proto.Record, error) {
	k := backlog.TaskKey(id)
	r, set, err := o.backlog.Get(k)
	if err != nil {
		return nil, err
	}
	if set == backlog.Live {
		o.show(k, r)
	}
	return r, nil
}

// show sets the state that is known only in memory.
func (o *Outbox) show(k backlog.Key, r *proto.Record) {
	if r.State != proto.Pending {
		return
	}
	if where, ok := o.backlog.Where(k); ok && where.Status == "taken" {
		r.State = proto.Sent
	}
}

// Stored returns a task with its envelope and content key, as a redrive needs it:
// of a live task or a dead letter. Of a finished task only the record is kept.
func (o *Outbox) Stored(id proto.TaskID) (*proto.Stored, error) {
	return o.backlog.Stored(backlog.TaskKey(id))
}

// HasPendingResult reports whether the result of a task that ran here has not
// reached its home yet.
func (o *Outbox) HasPendingResult(id proto.TaskID) bool {
	_, ok := o.backlog.Peek(backlog.Key{ID: id, Part: backlog.PartResult})
	return ok
}

// A Query selects tasks. The zero value of each field means any.
type Query struct {
	Part   backlog.Part // tasks of this home, or results for other homes
	States []proto.TaskState
	Peer   proto.PeerID
	Kind   string
	Class  proto.Class
	Before time.Time // created before this time
	Match  func(proto.TaskID, *proto.Record) bool
}

func (q *Query) matches(k backlog.Key, r *proto.Record) bool {
	return k.Part == backlog.PartTask && q.chooses(k, r)
}

// matchesDead is matches for dead letters. They include results that no home
// accepted, but not a task that moves to another queue and is kept whole for
// that.
func (q *Query) matchesDead(k backlog.Key, r *proto.Record) bool {
	return k.Part != backlog.PartCancel && !moving(r) && q.chooses(k, r)
}

func (q *Query) chooses(k backlog.Key, r *proto.Record) bool {
	switch {
	case q.Part != 0 && k.Part != q.Part,
		len(q.States) > 0 && !slices.Contains(q.States, r.State),
		!q.Peer.IsZero() && string(r.Peer) != string(q.Peer[:]),
		q.Kind != "" && r.Kind != q.Kind,
		q.Class != 0 && r.Class != q.Class,
		!q.Before.IsZero() && r.CreatedMs >= q.Before.UnixMilli():
		return false
	}
	return q.Match == nil || q.Match(k.ID, r)
}

// A Listed is a task in a list.
type Listed struct {
	ID     proto.TaskID
	Record *proto.Record
	Result bool // the result of a task that ran here, for its home
}

// List returns up to limit tasks that match, in the order of span. next is where
// the next page begins, zero at the end; a page before the end may be short or
// empty.
func (o *Outbox) List(q Query, span backlog.Span, limit int) (found []Listed, next proto.TaskID, err error) {
	page, next, err := o.backlog.Page(span, limit, func(k backlog.Key, r *proto.Record) bool {
		o.show(k, r)
		return q.matches(k, r)
	})
	for _, l := range page {
		found = append(found, Listed{ID: l.Key.ID, Record: l.Record})
	}
	return found, next, err
}

// Stats counts the tasks of this home.
func (o *Outbox) Stats() backlog.Stats { return o.backlog.Stats() }

// watches holds the callers that wait for tasks to change.
type watches struct {
	mu  *sync.Mutex
	all map[proto.TaskID]*watch
}

type watch struct {
	changed chan struct{} // closed on the next change
	users   int
}

func newWatches() watches { return watches{mu: new(sync.Mutex), all: map[proto.TaskID]*watch{}} }

// subscribe returns a channel that is closed on the next change of the task, and
// a function to unsubscribe.
func (w *watches) subscribe(id proto.TaskID) (changed <-chan struct{}, unsubscribe func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.all[id]
	if x == nil {
		x = &watch{changed: make(chan struct{})}
		w.all[id] = x
	}
	x.users++
	return x.changed, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if x.users--; x.users == 0 && w.all[id] == x {
			delete(w.all, id)
		}
	}
}

func (w *watches) notify(id proto.TaskID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.all[id]; x != nil {
		close(x.changed)
		delete(w.all, id)
	}
}

// changed reports a durable change of an entry.
func (o *Outbox) changed(k backlog.Key, r *proto.Record) {
	if k.Part != backlog.PartTask {
		return
	}
	o.watches.notify(k.ID)
	o.cfg.Changed(k.ID, r)
}

// Wait returns the record of a task once it has ended.
func (o *Outbox) Wait(ctx context.Context, id proto.TaskID) (*proto.Record, error) {
	return o.WaitState(ctx, id, func(r *proto.Record) bool { return r.State.Terminal() })
}

// WaitState returns the record of a task once good returns true for it, or once
// the task has ended.
func (o *Outbox) WaitState(ctx context.Context, id proto.TaskID, good func(*proto.Record) bool) (*proto.Record, error) {
	for {
		changed, unsubscribe := o.watches.subscribe(id)
		r, err := o.Get(id)
		if err != nil || r.State.Terminal() || good(r) {
			unsubscribe()
			return r, err
		}
		select {
		case <-changed:
			unsubscribe()
		case <-ctx.Done():
			unsubscribe()
			return r, fmt.Errorf("wait for %s, which is %s: %w", id, r.State.Name(), ctx.Err())
		}
	}
}

// A Why explains what a task is waiting for.
type Why struct {
	Kind     string
	State    proto.TaskState
	Peer     proto.PeerID
	Linked   bool          // a link to the peer is open
	Place    string        // behind, waiting, ready, taken, parked; empty when it has ended
	Next     time.Duration // of a waiting task: until the next try
	Behind   proto.TaskID  // of a task that is behind another one: the first task with its ordering key
	Held     bool          // that first task is a dead letter that a person must retry or delete
	Code     proto.Code    // of the last refusal, or of the one that ended it
	Detail   string        // of the last refusal or failure
	At       time.Time     // of the last refusal or failure
	Attempts int           // spent
	NotAfter time.Time
	Cause    proto.TaskCause
	Reason   string // the detail of the cause
}

// Why explains what a task is waiting for, or how it ended.
func (o *Outbox) Why(id proto.TaskID) (Why, error) {
	r, err := o.Get(id)
	if err != nil {
		return Why{}, err
	}
	return o.why(backlog.TaskKey(id), r), nil
}

func (o *Outbox) why(k backlog.Key, r *proto.Record) Why {
	where, _ := o.backlog.Where(k)
	n := o.deliveries.get(k)
	w := Why{
		Kind: r.Kind, State: r.State, Place: where.Status, Next: where.Wait, Behind: where.Behind, Held: where.Blocked,
		Code: n.code, Detail: n.detail, At: n.at,
		Attempts: int(r.Attempts), NotAfter: time.UnixMilli(r.NotAfterMs), Cause: r.Cause, Reason: r.Reason,
	}
	if r.State.Terminal() {
		w.Code = r.Code
	}
	if p, err := proto.PeerIDFrom(r.Peer); err == nil {
		w.Peer, w.Linked = p, o.links.up(p)
	}
	return w
}

// Waiting returns how many entries wait for a link to the peer or for its answer,
// that is, whether it is worth dialing.
func (o *Outbox) Waiting(p proto.PeerID) int {
	return o.backlog.GroupCounts(string(p[:])).ByState[proto.Pending]
}

// LiveByTarget counts the tasks for a peer that have not ended, by their target
// as given by the user.
func (o *Outbox) LiveByTarget(p proto.PeerID) (map[string]int, error) {
	counts := map[string]int{}
	if c := o.backlog.GroupCounts(string(p[:])); len(c.ByState) == 0 {
		return counts, nil
	}
	q := Query{Peer: p}
	for cursor := []byte(nil); ; {
		_, next, err := o.backlog.List(backlog.Live, cursor, 1, func(k backlog.Key, r *proto.Record) bool {
			if q.matches(k, r) {
				counts[r.Target]++
			}
			return false
		})
		if err != nil || next == nil {
			return counts, err
		}
		cursor = next
	}
}

// Blobs calls f with the name of every blob that a record of this home needs, so
// that the others can be swept. Of a finished task that is only its result: its
// body is not kept.
func (o *Outbox) Blobs(f func(name string)) error {
	for _, set := range []backlog.Set{backlog.Live, backlog.Done, backlog.Dead} {
		for cursor := []byte(nil); ; {
			_, next, err := o.backlog.List(set, cursor, 1, func(_ backlog.Key, r *proto.Record) bool {
				if r.ResultBlob != "" {
					f(r.ResultBlob)
				}
				if r.BodyBlob != "" && set != backlog.Done {
					f(r.BodyBlob)
				}
				return false
			})
			if err != nil {
				return fmt.Errorf("list the blobs in use: %w", err)
			}
			if next == nil {
				break
			}
			cursor = next
		}
	}
	return nil
}

// Results counts the results that have not reached their homes yet.
func (o *Outbox) Results() int {
	return len(o.backlog.Keys(func(it backlog.Item) bool { return it.Key.Part == backlog.PartResult }))
}
