package inbox

import (
	"context"
	"errors"
	"math"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// Cancel asks for the end of a task of from's; hard: at once, without letting
// the handler finish what it does. The wish is durable when the verdict says
// that it was accepted; that the task is CANCELLED is said by its result alone,
// after the handler has returned. A task that has ended already is a DUPLICATE
// with its state. One that was never here is barred and called CANCELLED: if it
// still arrives it is refused.
func (in *Inbox) Cancel(ctx context.Context, from proto.PeerID, id proto.TaskID, hard bool) Verdict {
	in.known.landed(id)
	origin, state, ok := in.known.state(id)
	switch {
	case !ok:
		return in.bar(ctx, from, id)
	case origin != from:
		return refuse(proto.Code_CODE_DENIED, "the task is another node's")
	case state.Terminal():
		return ended(state)
	}
	k := backlog.TaskKey(id)
	if c := in.desk.claim(k); c != nil {
		return in.cancelWaiting(ctx, c)
	}
	return in.cancelClaimed(ctx, k, hard)
}

func ended(state proto.TaskState) Verdict {
	return Verdict{Code: proto.Code_CODE_DUPLICATE, State: state, Detail: "the task has ended here already"}
}

// cancelWaiting ends a task that nobody works on. One that was running when the
// process died is left to its handler's policy: what it did is not known.
func (in *Inbox) cancelWaiting(ctx context.Context, c *claim) Verdict {
	item, ok := in.queue.Peek(c.key)
	err := in.load(c, item.Version)
	if !ok || err != nil || c.rec.State == proto.TaskState_TASK_STATE_RUNNING {
		in.release(c)
		return in.cancelClaimed(ctx, c.key, false)
	}
	why := ending{proto.TaskState_TASK_STATE_CANCELLED, "cancelled before it started"}
	if c.rec.Attempts > 0 {
		why.reason = "cancelled between two attempts"
	}
	if err := in.tryFinish(ctx, c, step{state: why.state, reason: why.reason}, &Ran{}, false); err != nil {
		in.cfg.Logger.Error("a task could not be cancelled", "task", c.key.String(), "err", err)
		in.release(c)
		in.queue.Release(c.key, 0)
		return refuse(proto.Code_CODE_INTERNAL, "the end of the task could not be written")
	}
	in.dropBody(c)
	in.release(c)
	return Verdict{}
}

// cancelClaimed notes the wish in the task's record and tells whoever works on it.
func (in *Inbox) cancelClaimed(ctx context.Context, k backlog.Key, hard bool) Verdict {
	var state proto.TaskState
	errs := in.queue.Change(ctx, []backlog.Edit{{Key: k}}, func(_ int, r *proto.Record) backlog.Action {
		if state = r.State; state.Terminal() || r.Cancel && (r.CancelHard || !hard) {
			return backlog.Keep
		}
		r.Cancel, r.CancelHard = true, r.CancelHard || hard
		return backlog.Write
	})
	switch {
	case errors.Is(errs[0], backlog.ErrNotFound):
		_, state, _ = in.known.state(k.ID)
		return ended(state)
	case errs[0] != nil:
		in.cfg.Logger.Error("a wish to cancel could not be written", "task", k.String(), "err", errs[0])
		return refuse(proto.Code_CODE_INTERNAL, "the wish could not be written")
	case state.Terminal():
		return ended(state)
	}
	if c := in.desk.find(k); c != nil {
		in.desk.stop(c, stopCancel, hard)
	} else if c := in.desk.claim(k); c != nil && state != proto.TaskState_TASK_STATE_RUNNING {
		return in.cancelWaiting(ctx, c) // its run ended just now, and it was to be tried again
	} else if c != nil {
		in.release(c)
	}
	return Verdict{}
}

// bar remembers that a task was cancelled before it arrived.
func (in *Inbox) bar(ctx context.Context, from proto.PeerID, id proto.TaskID) Verdict {
	if in.known.count() >= in.cfg.MaxKept {
		return refuse(proto.Code_CODE_BUSY, "this node keeps as many task ids as it may")
	}
	now := in.cfg.Clock.Now()
	r := &proto.Record{
		Peer: from[:], SeqBoot: math.MaxUint64, SeqCounter: math.MaxUint64,
		CreatedMs: now.UnixMilli(), NotAfterMs: now.Add(proto.MaxTTL).UnixMilli(), Reason: "cancelled before it arrived",
	}
	r.Move(proto.TaskState_TASK_STATE_CANCELLED, now, r.Reason)
	errs := in.queue.Add(ctx, []backlog.New{{Key: backlog.TaskKey(id), Stored: &proto.Stored{Record: r}, Vital: true}})
	switch {
	case errors.Is(errs[0], backlog.ErrExists):
		return refuse(proto.Code_CODE_BUSY, "the task is arriving")
	case errs[0] != nil:
		in.cfg.Logger.Error("a wish to cancel could not be written", "task", id.String(), "err", errs[0])
		return refuse(proto.Code_CODE_INTERNAL, "the wish could not be written")
	}
	in.known.found(id, r)
	return Verdict{Code: proto.Code_CODE_DUPLICATE, State: r.State, Detail: "the task never was here; it will be refused if it arrives"}
}
