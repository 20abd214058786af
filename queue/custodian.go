package queue

import (
	"context"
	"errors"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
)

// Admit decides whether a task may enter a queue here. A node that is no longer the home
// accepts the task too and passes it on: the task is signed for this node, and its origin
// cannot send it to another one.
func (qs *Queues) Admit(a *inbox.Arrival) inbox.Verdict {
	v := qs.rule(a.Content, a.Header.Origin)
	if !v.Accepted() || !a.Header.Streamed() || !qs.parts.Bodies.Has(&a.Header) {
		return v // a body that is not here gets its place when it is offered
	}
	if why := qs.parts.Bodies.Take(a.Header.ID, a.Header.Origin); why != "" {
		v = inbox.Verdict{Code: proto.CodeFull, Detail: why}
	}
	return v
}

// rule applies the rules of a queue to a task of origin.
func (qs *Queues) rule(c *proto.Content, origin proto.PeerID) inbox.Verdict {
	s := qs.Driver.QueueStates()[c.GetQueue()]
	switch {
	case s == nil:
		return inbox.Verdict{Code: proto.CodeNoHandler, Detail: "this node does not know the queue"}
	case len(s.GetAllow()) > 0 && !inbox.Allowed(s.GetAllow(), origin, qs.parts.Members):
		return inbox.Verdict{Code: proto.CodeDenied, Detail: "the queue's allow list does not name the origin"}
	case s.GetDraining():
		return inbox.Verdict{Code: proto.CodeDraining, Detail: "the queue accepts no new tasks"}
	}
	return inbox.Verdict{}
}

// Taken passes a task that is on disk to the ownership subsystem.
func (qs *Queues) Taken(id proto.TaskID, r *proto.Record) {
	if largeBody(r) {
		qs.parts.Bodies.Track(id, originOf(r))
	}
	t := leaseTask(id, r)
	t.MayHaveRun = qs.mayHaveRun(r)
	qs.Driver.Add(t)
}

// Cancel requests the end of a task of a queue. Until a task that moved has ended, its
// origin repeats the request, and each time it is forwarded to the new home.
func (qs *Queues) Cancel(ctx context.Context, id proto.TaskID, hard bool) (v inbox.Verdict, known bool, err error) {
	where, err := qs.Driver.Cancel(ctx, id, hard)
	if where == ownership.LocationMoved {
		v = inbox.Verdict{Code: proto.CodeBusy, Detail: "it moved with its queue; the request is forwarded"}
	}
	return v, where != ownership.LocationUnknown, err
}

// Ready reports that a slot is free for a task granted to this node.
func (qs *Queues) Ready(ctx context.Context, id proto.TaskID, onCrash inbox.OnCrash) (inbox.LeaseStart, bool) {
	p := ownership.PolicyPark
	switch onCrash {
	case inbox.OnCrashRetry:
		p = ownership.PolicyRetry
	case inbox.OnCrashProbe:
		p = ownership.PolicyProbe
	}
	s, ok := qs.Driver.Ready(ctx, id, p)
	if !ok {
		qs.parts.Grants.Release(id)
	}
	return inbox.LeaseStart{Epoch: s.Epoch, Attempt: s.Attempt}, ok
}

// Ended handles the end of a run.
func (qs *Queues) Ended(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) {
	var err error
	if e.File != "" {
		e = qs.parts.Bodies.Seal(ctx, id, e)
	}
	defer qs.parts.Grants.Release(id)
	if e.Outcome != nil {
		err = qs.Driver.Finish(ctx, id, e.Outcome)
	} else {
		err = qs.Driver.Fail(ctx, id, &proto.Released{Cause: e.Cause, Reason: e.Reason, RetryAfterMs: uint64(e.RetryAfter.Milliseconds()), MaxAttempts: e.MaxAttempts})
	}
	if err != nil && !errors.Is(err, ownership.ErrStopped) {
		qs.cfg.Logger.Error("could not store the end of a granted task", "task", id.String(), "err", err)
	}
}

// Probed handles the result of probing a task that was running when the node died.
func (qs *Queues) Probed(ctx context.Context, id proto.TaskID, found handler.ProbeResult, o *proto.Outcome) {
	defer qs.parts.Grants.Release(id)
	err := qs.Driver.Probed(ctx, id, found == handler.Done, found == handler.Unknown, o)
	if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
		qs.cfg.Logger.Error("could not store the probe result of a granted task", "task", id.String(), "err", err)
	}
}

// largeBody reports whether the body of a task is a file of its own.
func largeBody(r *proto.Record) bool {
	return r.GetBodyBlob() != "" && r.GetBodySize() > proto.MaxInlineBody
}

// leaseTask converts the record of a task for the ownership subsystem.
func leaseTask(id proto.TaskID, r *proto.Record) ownership.Task {
	return ownership.Task{
		ID: id, Origin: originOf(r), Queue: r.GetQueue(), Kind: r.GetKind(), Class: r.GetClass(), Mode: r.GetMode(), Key: r.GetOrderingKey(), Block: r.GetOnDead() == "block",
		NotBefore: r.GetDueMs(), NotAfter: r.GetNotAfterMs(), Options: r.GetOptions(), Cancelled: r.GetCancel(),
	}
}

// originOf returns the origin of a task stored here, or zero if its record names none.
func originOf(r *proto.Record) (p proto.PeerID) {
	copy(p[:], r.GetPeer())
	return p
}
