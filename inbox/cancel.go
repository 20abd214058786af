package inbox

import (
	"context"
	"errors"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// Cancel requests the end of a task of from; hard means at once, without letting the
// handler finish. The request is durable when the verdict accepts it. The task is CANCELLED
// only once its result says so, after the handler has returned. A task that has already
// ended is a DUPLICATE with its state. The request for a task that is not here is stored:
// if the task still arrives it is accepted and ends as CANCELLED.
func (in *Inbox) Cancel(ctx context.Context, from proto.PeerID, id proto.TaskID, hard bool) Verdict {
	ctx = context.WithoutCancel(ctx) // whether an interrupted write of an end counts would be unknown
	for {
		in.dedup.waitCommit(id)
		origin, state, ok := in.dedup.state(id)
		switch {
		case ok && origin != from:
			return refuse(proto.CodeDenied, "the task belongs to another node")
		case state == proto.DeadLetter && in.custodians[KeeperQueue] != nil:
			return in.cancelKept(ctx, KeeperQueue, id, hard) // it may have moved with its queue
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

// cancelHere cancels a task in custody.
func (in *Inbox) cancelHere(ctx context.Context, k backlog.Key, hard bool) Verdict {
	if keeper := in.keeper(k.ID); keeper != KeeperSlot {
		return in.cancelKept(ctx, keeper, k.ID, hard)
	}
	if j := in.slots.take(k); j != nil {
		return in.cancelWaiting(ctx, j)
	}
	return in.cancelClaimed(ctx, k, hard)
}

func ended(state proto.TaskState) Verdict {
	return Verdict{Code: proto.CodeDuplicate, State: state, Detail: "the task has ended here already"}
}

// cancelWaiting ends a task that is not being worked on. One that was running when the
// process died is left to its handler's policy, since its effect is unknown.
func (in *Inbox) cancelWaiting(ctx context.Context, j *job) Verdict {
	err := in.load(j)
	if errors.Is(err, backlog.ErrNotFound) || err == nil && j.rec.State == proto.Running {
		in.dropJob(j)
		return in.cancelClaimed(ctx, j.key, false)
	}
	if err == nil {
		t := cancelledStep(j.rec)
		t.mayHaveRun = in.unrecorded(j)
		err = in.tryFinish(ctx, j, t, &handler.Result{}, false, true)
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

// cancelClaimed stores the request in the task's record and notifies its job.
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
		in.cfg.Logger.Error("a cancel could not be written", "task", k.String(), "err", errs[0])
		return refuse(proto.CodeInternal, "the cancel could not be written")
	case state.Terminal():
		return ended(state)
	}
	if j := in.slots.find(k); j != nil {
		in.slots.stop(j, stopCancel, hard)
	} else if j := in.slots.take(k); j != nil && state != proto.Running {
		return in.cancelWaiting(ctx, j) // its run has just ended, and it was to be retried
	} else if j != nil {
		in.dropJob(j)
	}
	return Verdict{}
}

// tombstoneKey returns the key of the tombstone of a task that has not arrived.
func tombstoneKey(id proto.TaskID) backlog.Key { return backlog.Key{ID: id, Part: backlog.PartCancel} }

// addTombstone stores the cancel of a task that is not here. If the task is just arriving
// it does nothing and reports true.
func (in *Inbox) addTombstone(ctx context.Context, from proto.PeerID, id proto.TaskID) (v Verdict, arriving bool) {
	if in.dedup.size() >= in.cfg.MaxKept {
		return refuse(proto.CodeBusy, "this node remembers as many task ids as it can"), false
	}
	now := in.cfg.Clock.Now()
	r := &proto.Record{Peer: from[:], CreatedMs: now.UnixMilli(), NotAfterMs: now.Add(proto.MaxTTL).UnixMilli(), Cancel: true}
	r.Move(proto.Cancelled, now, proto.TaskCancelledUnarrived, "")
	switch in.dedup.addTombstone(id, from, r.NotAfterMs) {
	case tombstoneArrived:
		return Verdict{}, true
	case tombstoneRefused:
		return refuse(proto.CodeBusy, "this node stores as many of your cancels for unknown tasks as it may"), false
	}
	errs := in.queue.Add(ctx, []backlog.NewEntry{{Key: tombstoneKey(id), Stored: &proto.Stored{Record: r}, BypassLimits: true}})
	if err := errs[0]; err != nil && !errors.Is(err, backlog.ErrExists) {
		in.dedup.removeTombstone(id)
		in.cfg.Logger.Error("a cancel could not be written", "task", id.String(), "err", err)
		return refuse(proto.CodeInternal, "the cancel could not be written"), false
	}
	return Verdict{}, false
}
