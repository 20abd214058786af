// Package redrive repeats tasks as new ones: an ended task at a person's request, and a
// task of this node that moves to another queue. A task is repeated once: the commit of the
// new one records the old one, so that a crash in between is made good.
package redrive

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

// The failpoints between two commits, at which submit.Parts.Fail is called.
const (
	PointRedriven = "redrive/stored" // the new task is on disk, the old one is not marked as redriven
	PointMoving   = "move/cancelled" // a task was cancelled to move to another queue, its end is not awaited yet
)

// A Redriver repeats tasks. Its methods are safe for concurrent use.
type Redriver struct {
	Parts
	tasks     Tasks
	redriving sync.Mutex // held while a task is redriven or moved
	moves     pendingMoves
}

// Parts is what a redriver works with.
type Parts struct {
	*submit.Submitter
	Audit func(ctx context.Context, action, what string) error
}

// Tasks finds tasks for a person.
type Tasks interface {
	// Find finds a task by its id or the beginning of it.
	Find(ctx context.Context, ref string) (proto.TaskID, string, *proto.Record, error)
	View(id proto.TaskID, role string, r *proto.Record) wire.Task
}

// Open returns a redriver with the moves that an earlier start of the node has not
// completed.
func Open(p Parts) (*Redriver, error) {
	to, err := p.Outbox.Moves()
	if err != nil {
		return nil, err
	}
	return &Redriver{Parts: p, moves: pendingMoves{to: to, logged: map[proto.TaskID]string{}}}, nil
}

// Connect sets what finds the tasks of a call, before the first one.
func (r *Redriver) Connect(t Tasks) { r.tasks = t }

// Retry redrives an ended task: it submits a new task with a new id, the same content
// and idempotency key, and a fresh time to live. The content of a task that succeeded is
// no longer stored.
func (r *Redriver) Retry(ctx context.Context, ref string) (wire.Submitted, error) {
	r.redriving.Lock() // of two concurrent calls the second one fails
	defer r.redriving.Unlock()
	id, rec, err := r.ended(ctx, ref)
	if err != nil {
		return wire.Submitted{}, err
	}
	s, err := r.repeat(ctx, id, rec, "")
	if err != nil {
		return s, err
	}
	return s, r.Audit(ctx, "task.redrive", id.String()+" as "+s.ID)
}

// Check returns why Retry would refuse a task now, or nil. It changes nothing.
func (r *Redriver) Check(ctx context.Context, ref string) error {
	id, rec, err := r.ended(ctx, ref)
	if err == nil {
		_, err = r.rebuildRequest(id, rec)
	}
	return err
}

// ended finds an ended task of this node that was not redriven yet.
func (r *Redriver) ended(ctx context.Context, ref string) (proto.TaskID, *proto.Record, error) {
	id, role, rec, err := r.tasks.Find(ctx, ref)
	switch {
	case err != nil:
		return id, nil, err
	case role == wire.RoleOwner:
		return id, nil, fmt.Errorf("%w: a task can only be redriven at its home: run this on %s", wire.ErrRefused, r.tasks.View(id, role, rec).Peer)
	case !rec.GetState().Terminal():
		return id, nil, fmt.Errorf("%w: task %s is %s: only an ended task can be redriven", wire.ErrRefused, id, rec.GetState().Name())
	case rec.GetRedrivenAs() != "":
		return id, nil, fmt.Errorf("%w: task %s was already redriven as %s", wire.ErrRefused, id, rec.GetRedrivenAs())
	}
	return id, rec, nil
}

// repeat submits the request of an ended task again, only once, to a queue unless that is
// empty. The old task is marked as redriven.
func (r *Redriver) repeat(ctx context.Context, id proto.TaskID, rec *proto.Record, queue string) (s wire.Submitted, err error) {
	as, there, err := r.Outbox.RedrivenAs(id) // the process may have died after creating it
	switch {
	case err != nil:
		return s, err
	case there:
		s = r.Existing(as, s)
	default:
		s, as, err = r.resubmit(ctx, id, rec, queue)
		if err != nil && queue != "" {
			err = fmt.Errorf("task %s is cancelled but could not be moved to queue %s yet; this will be retried: %w", id, queue, err)
		}
		if err != nil {
			return s, err
		}
	}
	if err := r.Outbox.MarkRedriven(ctx, id, as); err != nil {
		return s, fmt.Errorf("the task was submitted as %s, but the old one could not be marked as redriven: %w", as, err)
	}
	return s, nil
}

// resubmit submits the request of an ended task again. The commit of the new task
// records the old one. In another queue the idempotency key stays bound to the original
// request, and a task that is not due yet keeps its time.
func (r *Redriver) resubmit(ctx context.Context, id proto.TaskID, rec *proto.Record, queue string) (s wire.Submitted, as proto.TaskID, err error) {
	q, err := r.rebuildRequest(id, rec)
	if err != nil {
		return s, as, err
	}
	if queue != "" {
		q.Target, q.KeyDigest = proto.QueueTarget(queue), rec.GetRequestDigest()
		due := time.UnixMilli(rec.GetDueMs())
		switch wait := due.Sub(r.Clock.Now()); {
		case wait <= 0 || rec.GetAttempts() > 0: // after an attempt it is a backoff
		case rec.GetDueNamed():
			q.At = due
		default:
			q.Delay = wire.Duration(wait)
		}
	}
	if s, err = r.Submit(ctx, q); err != nil {
		return s, as, err
	}
	if as, err = proto.ParseTaskID(s.ID); err != nil {
		return s, as, err
	}
	return s, as, r.Fail(PointRedriven)
}

// rebuildRequest reconstructs the request of an ended task.
func (r *Redriver) rebuildRequest(id proto.TaskID, rec *proto.Record) (*submit.Request, error) {
	st, err := r.Outbox.Stored(id)
	if err != nil || st.GetEnvelope() == nil {
		return nil, fmt.Errorf("%w: the content of %s is no longer stored: submit it again", wire.ErrRefused, id)
	}
	h, plain, err := r.Open(st)
	if err != nil {
		return nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	c := new(proto.Content)
	if err := proto.Decode(plain, c); err != nil {
		return nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	target := rec.GetTarget() // as given in the request, so that its digest stays the same
	if _, queued := proto.QueueOf(target); queued {
		// keep the queue: its home may have changed
	} else if p, err := r.Book.Find(target); err != nil || p.Peer != h.Target {
		target = h.Target.String() // the peer was forgotten, or the name belongs to another peer now
	}
	q := &submit.Request{Of: id, Delegates: c.GetDelegates(), Request: wire.Request{
		Target: target, Kind: c.GetKind(), Class: c.GetClass().Name(), Mode: c.GetMode().Name(), TTL: wire.Duration(h.NotAfter-h.Created) * wire.Duration(time.Millisecond),
		Key: rec.GetIdempotencyKey(), Order: c.GetOrderingKey(), OnDead: c.GetOnDead(), Args: c.GetArgs(), Body: c.GetBody(),
		Type: c.GetContentType(), Labels: c.GetLabels(), Trace: c.GetTraceparent(),
	}}
	submit.SetOptions(&q.Request, c.GetOptions())
	if h.Streamed() {
		if !r.Bodies.Has(h.ObjectFile()) {
			return nil, fmt.Errorf("%w: the body of %s is no longer stored: submit it again", wire.ErrRefused, id)
		}
		q.Object, q.ObjectSize, q.ObjectDigest = c.GetObject(), c.GetBodySize(), c.GetBodyDigest()
	}
	return q, nil
}
