package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// statusMoved is the status of the record of a task that moved with its queue.
const statusMoved = "moved"

// MovedOn reports whether r is the record of a task that moved with its queue: it has not
// ended, but is at another home.
func MovedOn(r *proto.Record) bool { return r.GetStatus() == statusMoved }

// An Adoption is a task of a queue that is taken over from an old home. It must be written
// or dropped.
type Adoption struct {
	in     *Inbox
	step   *backlog.PendingChange // nil: the task is already in custody
	id     proto.TaskID
	entry  entry
	origin proto.PeerID
	body   string // the file with its body, which is kept until the write; empty: none
}

// Adopt prepares to take custody of a task whose queue has its home here now. The caller
// has checked it like an arrival, except for its time, which is for the queue. A task that
// moved on from here is taken back. It needs the same room as an arrival, and is refused
// with a [RefusedError] if there is none.
func (in *Inbox) Adopt(a *Arrival) (_ *Adoption, err error) {
	if v := in.roomFor(a); !v.Accepted() {
		return nil, &RefusedError{v}
	}
	if a.oversized() {
		return nil, fmt.Errorf("%w: %d bytes of content besides its stream, the limit is %d", store.ErrTooLarge, len(a.Envelope.GetBody()), MaxStreamContent)
	}
	body, err := in.pinBody(a)
	if err != nil {
		return nil, err
	}
	ad := &Adoption{in: in, id: a.Header.ID, origin: a.Header.Origin, body: body}
	defer func() {
		if err != nil || ad.step == nil {
			ad.release()
		}
	}()
	f := a.initial(body, &in.cfg)
	ad.entry = entry{seq: a.Header.Seq, notAfter: a.NotAfter(), digest: short(a.Digest[:]), state: f.record.State, size: a.size()}
	reserve := in.queue.Reserve
	if in.dedup.movedOn(a.Header.ID) {
		reserve = in.queue.Replace
	}
	ad.step, err = reserve(backlog.NewEntry{Key: backlog.TaskKey(a.Header.ID), Stored: &f.stored})
	switch {
	case errors.Is(err, backlog.ErrFull):
		return nil, &RefusedError{in.refusal(a, err)}
	case !errors.Is(err, backlog.ErrExists):
		return ad, err
	}
	if old, _, err := in.queue.Get(backlog.TaskKey(a.Header.ID)); err != nil || old.State.Terminal() {
		return nil, fmt.Errorf("the task was here before, and is remembered until its origin has settled it: %w", backlog.ErrExists)
	}
	return ad, nil
}

// A RefusedError is why a task that was handed over is refused now.
type RefusedError struct{ Verdict Verdict }

func (e *RefusedError) Error() string { return e.Verdict.Detail }

// Refusal returns the code of the refusal.
func (e *RefusedError) Refusal() proto.Code { return e.Verdict.Code }

// roomFor checks whether there is room for a task that is handed over: the limits and
// shares of arrivals apply. One that is already in custody has its place.
func (in *Inbox) roomFor(a *Arrival) Verdict {
	if _, live := in.queue.Peek(backlog.TaskKey(a.Header.ID)); live {
		return Verdict{}
	}
	full := in.store.Refuses()
	idx := in.dedup
	idx.mu.Lock()
	defer idx.mu.Unlock()
	switch {
	case in.slots.halted():
		return refuse(proto.CodeDraining, "the node is stopping")
	case full != nil:
		return in.refusal(a, full)
	case idx.sizeLocked() >= in.cfg.MaxKept:
		return refuse(proto.CodeBusy, "this node remembers as many task ids as it can")
	case !idx.hasShare(a, in.cfg.MaxKept, in.cfg.MaxTasks, in.cfg.MaxBytes):
		return refuse(proto.CodeBusy, "its origin has used up its share of the tasks that this node stores; the rest is for others")
	}
	return Verdict{}
}

// Into adds the task to the batch that makes this node its home.
func (a *Adoption) Into(b *store.Batch) {
	if a.step == nil {
		return
	}
	a.step.AddTo(b)
	b.After(func() {
		a.release()
		idx := a.in.dedup
		idx.mu.Lock()
		defer idx.mu.Unlock()
		_, a.entry.origin = idx.originOf(a.origin)
		idx.put(a.id, a.entry)
	})
}

// Drop abandons the adoption. It does nothing after the write.
func (a *Adoption) Drop() {
	if a.step != nil {
		a.step.Discard()
		a.release()
	}
}

func (a *Adoption) release() {
	if a.body != "" {
		a.in.parts.Bodies.Release(a.body)
		a.body = ""
	}
}

// Moved records that the new home of tasks, by its name, has taken them. Their ids stay
// known for as long as they may live, whatever their origin has settled here, up to a
// quarter of MaxKept: a late copy is not accepted as a new task, and a cancel finds where
// the task went.
func (in *Inbox) Moved(ctx context.Context, ids []proto.TaskID, home string) error {
	edits, records := make([]backlog.Edit, len(ids)), make([]*proto.Record, len(ids))
	for i, id := range ids {
		edits[i] = backlog.Edit{Key: backlog.TaskKey(id)}
	}
	errs := in.queue.Change(ctx, edits, func(i int, x *proto.Record) backlog.Action {
		if x.State.Terminal() {
			return backlog.Keep
		}
		x.Move(proto.DeadLetter, in.cfg.Clock.Now(), proto.TaskMoved, home)
		x.Status = statusMoved
		x.Cause, x.Reason = proto.TaskMoved, text(home, proto.MaxReason)
		records[i] = x
		return backlog.Tombstone
	})
	for i, r := range records {
		if errors.Is(errs[i], backlog.ErrNotFound) {
			errs[i] = nil
		}
		if r == nil || errs[i] != nil {
			continue
		}
		origin, _ := proto.PeerIDFrom(r.Peer)
		in.setFinished(ids[i], entry{
			seq: r.Seq(), notAfter: r.NotAfterMs, digest: short(r.RequestDigest), state: r.State, movedOn: true,
		}, origin, true)
		in.dropBlob(r.BodyBlob)
	}
	return errors.Join(errs...)
}
