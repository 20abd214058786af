package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// Cancel stops a task. One that was never sent ends CANCELLED at once. For any
// other the request is stored durably and sent to the owner until it has
// answered; only the owner's result ends the task as CANCELLED, because only then
// has the handler stopped. hard asks the owner to kill the handler at once.
// Cancel returns the state of the task, and ErrEnded if it had ended before.
func (o *Outbox) Cancel(ctx context.Context, id proto.TaskID, hard bool, reason string) (proto.TaskState, error) {
	return o.cancel(ctx, id, hard, reason, "")
}

// cancel also records which queue the task moves to, if any.
func (o *Outbox) cancel(ctx context.Context, id proto.TaskID, hard bool, reason, queue string) (proto.TaskState, error) {
	also := func(b *store.Batch) {
		if queue == "" {
			b.Delete(store.Dedup, moveKey(id[:]))
		} else {
			b.Put(store.Dedup, moveKey(id[:]), []byte(queue))
		}
	}
	k, now := backlog.TaskKey(id), o.cfg.Clock.Now()
	reason = proto.Clip(reason, proto.MaxReason)
	decision := decision{action: noChange}
	step, err := o.backlog.Prepare(backlog.Edit{Key: k}, func(r *proto.Record) backlog.Action {
		switch decision = onCancel(r, o.maybeSent(k, r)); decision.action {
		case end:
			r.Cause, r.Reason, r.MovesTo = proto.TaskCancelledUnsent, reason, queue
			if r.State == proto.Indeterminate || r.FirstSeq() != r.Seq() {
				r.Cause = proto.TaskCancelledLost // its target had it: see HandleUnknown
			}
			r.Move(decision.state, now, r.Cause, "")
			return endAction(r)
		case sendBodyFirst:
			if !r.Cancel || hard && !r.CancelHard {
				r.AddEvent(&proto.Event{TimeMs: now.UnixMilli(), State: r.State, Attempt: r.Attempts, Cause: proto.TaskCancelAsked})
			}
			r.Cancel, r.CancelHard, r.Cause, r.Reason, r.MovesTo = true, r.CancelHard || hard, proto.TaskCancelAsked, reason, queue
			return backlog.Write
		}
		return backlog.Keep
	})
	if errors.Is(err, backlog.ErrNotFound) {
		return o.cancelEnded(k)
	}
	if err != nil {
		return 0, fmt.Errorf("cancel %s: %w", id, err)
	}
	if step == nil {
		return o.cancelEnded(k)
	}
	if decision.action == end {
		return o.cancelHere(ctx, k, step, also)
	}
	return o.cancelThere(ctx, k, step, also)
}

// cancelEnded answers a cancellation that comes too late.
func (o *Outbox) cancelEnded(k backlog.Key) (proto.TaskState, error) {
	r, _, err := o.backlog.Get(k)
	if err != nil {
		return 0, fmt.Errorf("cancel %s: %w", k.ID, err)
	}
	return r.State, fmt.Errorf("cancel %s: %w as %s", k.ID, ErrEnded, r.State.Name())
}

// cancelHere ends a task that no other node has.
func (o *Outbox) cancelHere(ctx context.Context, k backlog.Key, step *backlog.PendingChange, also func(*store.Batch)) (proto.TaskState, error) {
	var b store.Batch
	step.AddTo(&b)
	also(&b)
	if err := o.store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		step.Discard()
		return 0, fmt.Errorf("cancel %s: %w", k.ID, err)
	}
	o.ended(ctx, k, step.Record())
	return step.Record().State, nil
}

// cancelThere makes the cancellation durable, in the task and as an entry to be
// sent to its owner.
func (o *Outbox) cancelThere(ctx context.Context, k backlog.Key, step *backlog.PendingChange, also func(*store.Batch)) (proto.TaskState, error) {
	into := func(b *store.Batch) {
		step.AddTo(b)
		also(b)
	}
	r := step.Record()
	cancel := backlog.NewEntry{
		Key:          backlog.Key{ID: k.ID, Part: backlog.PartCancel},
		BypassLimits: true,
		Stored: &proto.Stored{Record: &proto.Record{
			State: proto.Pending, Class: proto.Critical, Peer: r.Peer,
			SeqBoot: r.SeqBoot, SeqCounter: r.SeqCounter, CreatedMs: r.CreatedMs, NotAfterMs: r.NotAfterMs,
			StampBootMs: r.StampBootMs, StampMachine: r.StampMachine, StampDoubted: r.StampDoubted,
			Cancel: true, CancelHard: r.CancelHard, Reason: r.Reason,
		}},
		With: into,
	}
	o.stamps.note(r)
	err := backlog.ErrNotFound
	for errors.Is(err, backlog.ErrNotFound) { // an earlier one has been answered meanwhile
		err = o.backlog.Add(ctx, []backlog.NewEntry{cancel})[0]
		o.stamps.note(r) // again: restamp may have scanned the entries meanwhile
		if errors.Is(err, backlog.ErrExists) {
			err = o.cancelAgain(ctx, cancel.Key, step, into)
		}
	}
	if err != nil {
		step.Discard()
		return 0, fmt.Errorf("cancel %s: %w", k.ID, err)
	}
	o.changed(k, r)
	return r.State, nil
}

// cancelAgain overwrites an earlier cancellation that has not been answered, in one batch
// with the task. The error is [backlog.ErrNotFound] if it has been.
func (o *Outbox) cancelAgain(ctx context.Context, cancel backlog.Key, step *backlog.PendingChange, into func(*store.Batch)) error {
	again, err := o.backlog.Prepare(backlog.Edit{Key: cancel}, func(r *proto.Record) backlog.Action {
		r.CancelHard, r.Reason, r.DueMs = step.Record().CancelHard, step.Record().Reason, 0
		return backlog.Requeue
	})
	if err != nil {
		return err
	}
	var b store.Batch
	into(&b)
	again.AddTo(&b)
	if err = o.store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		again.Discard()
	}
	return err
}

// cancelMessage builds the message that asks an owner to stop a task. It returns
// nil while the task itself is unanswered: an owner that does not have the task
// yet would refuse.
func (ps *peerSender) cancelMessage(it backlog.Item) (*proto.Message, *proto.Record, error) {
	task, live := ps.o.backlog.Peek(backlog.TaskKey(it.Key.ID))
	if !live {
		drop := func(int, *proto.Record) backlog.Action { return backlog.Drop }
		return nil, nil, ps.o.backlog.Change(context.Background(), []backlog.Edit{{Key: it.Key}}, drop)[0]
	}
	if task.State == proto.Pending {
		ps.o.backlog.Release(it.Key, cancelPause)
		return nil, nil, nil
	}
	st, err := ps.o.backlog.Read(it)
	if err != nil {
		return nil, nil, fmt.Errorf("read it: %w", err)
	}
	payload, err := proto.Encode(nil, &proto.Cancel{Task: it.Key.ID[:], Hard: st.Record.CancelHard, Reason: st.Record.Reason})
	if err != nil {
		return nil, nil, fmt.Errorf("encode it: %w", err)
	}
	return &proto.Message{
		Id: it.Key.ID.String(), Type: proto.TypeCancel, Payload: payload,
		Timestamp: ps.o.cfg.Clock.Now().UnixNano(),
	}, st.Record, nil
}
