package ownership

import (
	"slices"

	"github.com/balefire/balefire/proto"
)

// Points in the steps of a driver, for Settings.Fail. The first of each pair is reached
// before anything of the step is on disk, the second when it is on disk and no node has
// been told. In a test build the process exits there instead. A renewal writes nothing and
// has no point.
const (
	PointGrant     = "lease/grant" // at a home: a lease is granted
	PointGranted   = "lease/granted"
	PointPermit    = "lease/permit" // a single start is permitted
	PointPermitted = "lease/permitted"
	PointEnd       = "lease/end" // a result passes the commit rule and ends its task
	PointEnded     = "lease/ended"
	PointReplied   = "lease/replied"   // its owner has been told
	PointTakeBack  = "lease/take_back" // the owner released a lease
	PointTakenBack = "lease/taken_back"

	PointReceive  = "lease/receive" // at an owner: a grant is received
	PointReceived = "lease/received"
	PointStart    = "lease/start" // the handler is about to start
	PointStarted  = "lease/started"
	PointFinish   = "lease/finish" // the handler has returned
	PointFinished = "lease/finished"
	PointRelease  = "lease/release" // the lease is released
	PointReleased = "lease/released"

	PointYield    = "lease/yield" // at the old home: the queue goes to another
	PointYielded  = "lease/yielded"
	PointMove     = "lease/move" // a task of it goes too
	PointMoved    = "lease/moved"
	PointLetGo    = "lease/let_go" // the new home has confirmed it
	PointGone     = "lease/gone"
	PointAdmit    = "lease/admit" // at the new home: the task arrives
	PointAdmitted = "lease/admitted"
	PointSeize    = "lease/seize" // an operator seizes the queue
	PointSeized   = "lease/seized"
)

// A failStep is a step with its points. taken reports whether the pending output contains
// it.
type failStep struct {
	before, after string
	taken         func(*pendingOutput) bool
}

var failSteps = []failStep{
	{PointGrant, PointGranted, hasEvent(EventGranted)},
	{PointPermit, PointPermitted, hasEvent(EventPermitted)},
	{PointEnd, PointEnded, func(p *pendingOutput) bool {
		return slices.ContainsFunc(p.out.Ends, func(e End) bool { return e.Digest != nil })
	}},
	{PointTakeBack, PointTakenBack, hasEvent(EventReleased)},
	{PointReceive, PointReceived, func(p *pendingOutput) bool { return len(p.out.Waits) > 0 }},
	{PointStart, PointStarted, func(p *pendingOutput) bool { return len(p.out.Starts) > 0 }},
	{PointFinish, PointFinished, func(p *pendingOutput) bool {
		return slices.ContainsFunc(p.order, func(key string) bool { return key[0] == keyResult && p.writes[key] != nil })
	}},
	{PointRelease, PointReleased, sends(proto.TypeRelease)},
	{PointYield, PointYielded, hasEvent(EventYielded)},
	{PointMove, PointMoved, hasEvent(EventMovedOut)},
	{PointLetGo, PointGone, func(p *pendingOutput) bool { return len(p.out.HandedOff) > 0 }},
	{PointAdmit, PointAdmitted, hasEvent(EventMovedIn)},
	{PointSeize, PointSeized, hasEvent(EventSeized)},
}

func hasEvent(kind EventKind) func(*pendingOutput) bool {
	return func(p *pendingOutput) bool {
		return slices.ContainsFunc(p.out.Events, func(e Event) bool { return e.Kind == kind })
	}
}

func sends(typ proto.MessageType) func(*pendingOutput) bool {
	return func(p *pendingOutput) bool {
		return slices.ContainsFunc(p.out.Sends, func(s Send) bool { return s.Type == typ })
	}
}

// commitWithFailpoints commits the pending output and performs it. An error at a point
// stops the driver there, as an error of the store does.
func (d *Driver) commitWithFailpoints(p *pendingOutput, commit func() error, act func()) error {
	if d.cfg.Fail == nil {
		if err := commit(); err != nil {
			return err
		}
		act()
		return nil
	}
	var steps []failStep
	for _, s := range failSteps {
		if s.taken(p) {
			steps = append(steps, s)
		}
	}
	replies := len(p.rulings) > 0
	for _, s := range steps {
		if err := d.cfg.Fail(s.before); err != nil {
			return err
		}
	}
	if err := commit(); err != nil {
		return err
	}
	for _, s := range steps {
		if err := d.cfg.Fail(s.after); err != nil {
			return err
		}
	}
	act()
	if replies {
		return d.cfg.Fail(PointReplied)
	}
	return nil
}
