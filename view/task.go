package view

import (
	"encoding/hex"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// View converts a record for the API.
func (v *Views) View(id proto.TaskID, role string, r *proto.Record) wire.Task {
	t := wire.Task{
		ID: id.String(), State: r.GetState().Name(), Role: role, Kind: r.GetKind(), Class: r.GetClass().Name(),
		Target: r.GetTarget(), Attempts: r.GetAttempts(), Abandons: r.GetAbandons(),
		Epoch:    r.Seq().String(),
		BodySize: r.GetBodySize(), Receipts: facts(role, r),
		Times:  times(r),
		Ending: ending(r),
		Marks:  marks(r),
	}
	t.Peer, t.PeerID = v.Book.Identify(r.GetPeer())
	for _, e := range r.GetEvents() {
		name := v.Self.Name
		if len(e.GetNode()) > 0 {
			name, _ = v.Book.Identify(e.GetNode())
		}
		x := wire.Event{Time: proto.Time(e.GetTimeMs()), Node: name, State: e.GetState().Name(), Attempt: e.GetAttempt(), Folded: e.GetFolded()}
		t.Events = addEvent(t.Events, withCause(x, e))
	}
	sortEvents(t.Events)
	for _, a := range r.GetHistory() {
		t.History = append(t.History, wire.Attempt{
			Number: a.GetNumber(), Started: proto.Time(a.GetStartedMs()), Finished: proto.Time(a.GetFinishedMs()),
			ExitCode: a.GetExitCode(), Cause: a.GetCause().Name(), Error: a.GetError(),
		})
	}
	return t
}

// withCause returns x with the cause of e.
func withCause(x wire.Event, e *proto.Event) wire.Event {
	x.Cause, x.Detail = e.GetCause().Name(), e.GetDetail()
	if c := e.GetCode(); c != proto.CodeOK {
		x.Code = c.Name()
	}
	return x
}

// addEvent adds an event. Both sides of a task report that it was accepted and that an
// attempt began, each by its own clock: the later report stays, with the cause that one of
// them has. An attempt that begins once more after a RETRYING of its own is another event.
func addEvent(events []wire.Event, e wire.Event) []wire.Event {
	if e.Folded > 0 || e.State != proto.Accepted.Name() && e.State != proto.Running.Name() {
		return append(events, e)
	}
	for i, b := range slices.Backward(events) {
		if b.Node != e.Node || b.Attempt != e.Attempt || b.Folded > 0 {
			continue
		}
		if b.State == proto.Retrying.Name() {
			break
		}
		if b.State == e.State {
			if e.Cause == "" {
				e.Cause, e.Code, e.Detail = b.Cause, b.Code, b.Detail
			}
			events = slices.Delete(events, i, i+1)
			break
		}
	}
	return append(events, e)
}

// sortEvents sorts events by time, as the clocks of their nodes showed it. Those of one moment
// stay as they were recorded.
func sortEvents(events []wire.Event) {
	slices.SortStableFunc(events, func(a, b wire.Event) int { return a.Time.Compare(b.Time) })
}

func times(r *proto.Record) wire.Times {
	return wire.Times{Created: proto.Time(r.GetCreatedMs()), NotAfter: proto.Time(r.GetNotAfterMs()), Due: proto.TimeOrNil(r.GetDueMs()), Ended: proto.TimeOrNil(r.GetEndedMs())}
}

func ending(r *proto.Record) wire.Ending {
	e := wire.Ending{
		Cause: r.GetCause().Name(), Reason: r.GetReason(), MayHaveRun: r.GetMayHaveRun(), Stderr: r.GetStderr(), ResultSize: r.GetResultSize(),
		ResultType: r.GetResultType(), Truncated: r.GetTruncated(), Orphans: len(r.GetOrphans()),
	}
	if r.GetExitCode() != 0 || r.GetState().Terminal() && r.GetAttempts() > 0 {
		e.ExitCode = new(r.GetExitCode())
	}
	if c := r.GetCode(); c != proto.CodeOK {
		e.Code = c.Name()
	}
	if d := r.GetResultDigest(); len(d) > 0 {
		e.ResultHash = "sha256:" + hex.EncodeToString(d)
	}
	return e
}

func marks(r *proto.Record) wire.Marks {
	m := wire.Marks{
		Key: r.GetIdempotencyKey(), Order: r.GetOrderingKey(), Trace: r.GetTraceparent(), Labels: r.GetLabels(),
		RedrivenAs: r.GetRedrivenAs(), Status: r.GetStatus(), Cancel: r.GetCancel() && !r.GetState().Terminal(),
	}
	if r.GetMode() == proto.AtMostOnce {
		m.Mode = r.GetMode().Name()
	}
	if id, err := proto.TaskIDFrom(r.GetRedriveOf()); err == nil {
		m.RedriveOf = id.String()
	}
	return m
}

// facts lists the facts that the record can prove, in the order in which they happened.
// The fact that a task is stored is proven by its own signature, which its home always
// has.
func facts(role string, r *proto.Record) []string {
	out := []string{}
	if role == wire.RoleHome {
		out = append(out, proto.FactStored.String())
	}
	for _, rc := range r.GetReceipts() {
		if s, err := proto.ParseStatement(rc.GetStatement()); err == nil {
			out = append(out, s.Fact.String())
		}
	}
	return out
}
