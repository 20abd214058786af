package inbox

import (
	"context"
	"errors"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// Cancel asks for the end of a task of from's; hard: at once, without letting
// the handler finish what it does. The wish is durable when the verdict says
// that it was accepted; that the task is CANCELLED is said by its result alone,
// after the handler has returned. A task that has ended already is a DUPLICATE
// with its state. The wish for one that is not here is kept: if it still arrives
// it is taken in and ends as CANCELLED.
func (in *Inbox) Cancel(ctx context.Context, from proto.PeerID, id proto.TaskID, hard bool) Verdict {
	ctx = context.WithoutCancel(ctx) // of an end that is half written nobody knows whether it counts
	for {
		in.dedup.waitCommit(id)
		origin, state, ok := in.dedup.state(id)
		switch {
		case ok && origin != from:
			return refuse(proto.CodeDenied, "the task is another node's")
		case state == proto.DeadLetter && in.parts.Queues != nil:
			return in.cancelQueued(ctx, id) // it may have moved with its queue
		case state.Terminal():
			return ended(state)
		case ok:
			return in.cancelHere(ctx, backlog.TaskKey(id), hard)
		}
		if v, arriving := in.addTombstone(ctx, from, id); !arriving {
			return v
		}
	}
}

// cancelHere asks for the end of a task in custody.
func (in *Inbox) cancelHere(ctx context.Context, k backlog.Key, hard bool) Verdict {
	if in.queued(k.ID) {
		return in.cancelQueued(ctx, k.ID)
	}
	if j := in.slots.take(k); j != nil {
		return in.cancelWaiting(ctx, j)
	}
	return in.cancelClaimed(ctx, k, hard)
}

func ended(state proto.TaskState) Verdict {
	return Verdict{Code: proto.CodeDuplicate, State: state, Detail: "the task has ended here already"}
}

// cancelWaiting ends a task that nobody works on. One that was running when the
// process died is left to its handler's policy: what it did is not known.
func (in *Inbox) cancelWaiting(ctx context.Context, j *job) Verdict {
	err := in.load(j)
	if errors.Is(err, backlog.ErrNotFound) || err == nil && j.rec.State == proto.Running {
		in.dropJob(j)
		return in.cancelClaimed(ctx, j.key, false)
	}
	if err == nil {
		err = in.tryFinish(ctx, j, cancelledStep(j.rec), &Result{}, false)
	}
	if err == nil {
		in.dropBody(j)
		in.dropJob(j)
		return Verdict{}
	}
	in.cfg.Logger.Error("a task could not be cancelled", "task", j.key.String(), "err", err)
	in.dropJob(j)
	in.queue.Release(j.key, 0)
	return refuse(proto.CodeInternal, "the end of the task could not be written")
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
		_, state, _ = in.dedup.state(k.ID)
		return ended(state)
	case errs[0] != nil:
		in.cfg.Logger.Error("a wish to cancel could not be written", "task", k.String(), "err", errs[0])
		return refuse(proto.CodeInternal, "the wish could not be written")
	case state.Terminal():
		return ended(state)
	}
	if j := in.slots.find(k); j != nil {
		in.slots.stop(j, stopCancel, hard)
	} else if j := in.slots.take(k); j != nil && state != proto.Running {
		return in.cancelWaiting(ctx, j) // its run ended just now, and it was to be tried again
	} else if j != nil {
		in.dropJob(j)
	}
	return Verdict{}
}

// tombstoneKey names the entry of a wish for a task that has not arrived.
func tombstoneKey(id proto.TaskID) backlog.Key { return backlog.Key{ID: id, Part: backlog.PartCancel} }

// addTombstone keeps the wish to cancel a task that is not here. It reports true, and
// does nothing, when the task is arriving.
func (in *Inbox) addTombstone(ctx context.Context, from proto.PeerID, id proto.TaskID) (v Verdict, arriving bool) {
	if in.dedup.size() >= in.cfg.MaxKept {
		return refuse(proto.CodeBusy, "this node keeps as many task ids as it may"), false
	}
	now := in.cfg.Clock.Now()
	r := &proto.Record{Peer: from[:], CreatedMs: now.UnixMilli(), NotAfterMs: now.Add(proto.MaxTTL).UnixMilli(), Cancel: true}
	r.Move(proto.Cancelled, now, "cancelled before it arrived")
	switch in.dedup.addTombstone(id, from, r.NotAfterMs) {
	case tombstoneArrived:
		return Verdict{}, true
	case tombstoneRefused:
		return refuse(proto.CodeBusy, "this node keeps as many of your wishes to cancel as it may"), false
	}
	errs := in.queue.Add(ctx, []backlog.NewEntry{{Key: tombstoneKey(id), Stored: &proto.Stored{Record: r}, BypassLimits: true}})
	if err := errs[0]; err != nil && !errors.Is(err, backlog.ErrExists) {
		in.dedup.removeTombstone(id)
		in.cfg.Logger.Error("a wish to cancel could not be written", "task", id.String(), "err", err)
		return refuse(proto.CodeInternal, "the wish could not be written"), false
	}
	return Verdict{}, false
}
