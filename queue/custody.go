package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Custody gives the ownership subsystem access to the tasks of its queues, which are
// stored in the inbox.
type Custody struct{ *Queues }

// Tasks returns the tasks that have not ended.
func (c Custody) Tasks() ([]ownership.Task, error) {
	found, err := c.parts.Inbox.Kept(inbox.KeeperQueue)
	if err != nil {
		return nil, err
	}
	all := make([]ownership.Task, len(found))
	for i, l := range found {
		all[i] = leaseTask(l.Key.ID, l.Record)
		all[i].MayHaveRun = c.mayHaveRun(l.Record)
		if largeBody(l.Record) {
			c.parts.Bodies.Track(l.Key.ID, originOf(l.Record))
		}
	}
	return all, nil
}

// mayHaveRun reports whether a task may have run according to records that this node's
// store has lost.
func (qs *Queues) mayHaveRun(r *proto.Record) ownership.MayHaveRun {
	switch may, here := qs.parts.Inbox.MayHaveRun(r); {
	case here:
		return ownership.PresentBeforeLoss
	case may:
		return ownership.CreatedBeforeLoss
	}
	return ownership.CertainlyNotRun
}

// GrantEnvelope returns a task whose home is this node as its owner gets it.
func (qs *Queues) GrantEnvelope(id proto.TaskID, owner proto.PeerID) (*proto.Envelope, error) {
	return Custody{qs}.Envelope(id, owner)
}

// Envelope returns a task as signed by its origin, with the content key wrapped for p.
func (c Custody) Envelope(id proto.TaskID, p proto.PeerID) (*proto.Envelope, error) {
	st, err := c.parts.Inbox.KeptTask(id)
	if err != nil {
		return nil, err
	}
	to, ok := c.parts.Book.KeyRecord(p)
	switch {
	case !ok:
		return nil, fmt.Errorf("the sealing key of %s is not known", p.Short())
	case !c.mayWork(p):
		return nil, fmt.Errorf("%s does not have the role work", p.Short())
	}
	if len(st.GetKey()) != 32 {
		return nil, fmt.Errorf("the content key of %s is not stored", id)
	}
	e := st.GetEnvelope()
	slot, err := c.parts.Sealer.WrapKey(e.GetHeader(), to, [32]byte(st.GetKey()))
	if err != nil {
		return nil, err
	}
	return &proto.Envelope{Header: e.GetHeader(), Body: e.GetBody(), Slot: slot, Path: e.GetPath(), Index: e.GetIndex(), Signature: e.GetSignature()}, nil
}

// End ends a task with the owner's outcome, or with the home's if the home ended it
// itself.
func (c Custody) End(ctx context.Context, e ownership.End, o *proto.Outcome, also func(*store.Batch)) error {
	out := &proto.Outcome{State: e.State, Cause: e.Cause, Reason: e.Reason, Code: e.Code}
	if o != nil {
		out.Cause = o.GetCause()
		out.ExitCode, out.Stderr, out.Body, out.BodyDigest = o.GetExitCode(), o.GetStderr(), o.GetBody(), o.GetBodyDigest()
		out.ContentType, out.Truncated, out.StartedMs = o.GetContentType(), o.GetTruncated(), o.GetStartedMs()
		out.BodySize, out.Object = o.GetBodySize(), o.GetObject()
	}
	defer c.parts.Bodies.Untrack(e.Task)
	for i, g := range e.Grants {
		name, _ := c.parts.Book.Identify(g.GetOwner())
		a := &proto.Attempt{Number: uint32(i + 1), StartedMs: g.GetTimeMs(), FinishedMs: g.GetEndedMs(), ExitCode: out.ExitCode, Error: proto.Clip(g.GetEnded(), 128)}
		switch {
		case g.GetEnded() != ownership.EndedByResult:
			a.ExitCode = 0
		case e.State == proto.Success:
			a.Error = ""
		default:
			a.Cause, a.Error = out.Cause, proto.Clip(out.Reason, 128)
		}
		out.Attempts = append(out.Attempts, a)
		out.Events = append(out.Events, g.Event(uint32(i+1), name))
	}
	err := c.parts.Inbox.EndKept(ctx, e.Task, out, also)
	if errors.Is(err, handler.ErrStopping) {
		return fmt.Errorf("%w: %w", ownership.ErrStopped, err)
	}
	return err
}
