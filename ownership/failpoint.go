package ownership

import (
	"slices"

	"github.com/balefire/balefire/proto"
)

// The steps that a room takes, for Settings.Fail: the first of each two is asked when
// nothing of the step is on disk, the second when it is, and nobody has been told. In
// a test build the process dies there instead. A renewal writes nothing.
const (
	PointGrant     = "lease/grant" // at a home: a task gets an owner
	PointGranted   = "lease/granted"
	PointPermit    = "lease/permit" // and leave to start, once
	PointPermitted = "lease/permitted"
	PointEnd       = "lease/end" // a result is held against the commit rule, and ends its task
	PointEnded     = "lease/ended"
	PointReplied   = "lease/replied"   // its owner has been told
	PointTakeBack  = "lease/take_back" // a lease is given back by its owner
	PointTakenBack = "lease/taken_back"

	PointReceive  = "lease/receive" // at an owner: a grant is taken
	PointReceived = "lease/received"
	PointStart    = "lease/start" // its handler is to run
	PointStarted  = "lease/started"
	PointFinish   = "lease/finish" // it has run
	PointFinished = "lease/finished"
	PointRelease  = "lease/release" // what it has goes back
	PointReleased = "lease/released"

	PointYield    = "lease/yield" // at an old home: the queue is the other's
	PointYielded  = "lease/yielded"
	PointMove     = "lease/move" // a task of it is
	PointMoved    = "lease/moved"
	PointLetGo    = "lease/let_go" // the new home has it
	PointGone     = "lease/gone"
	PointAdmit    = "lease/admit" // at the new home: it comes
	PointAdmitted = "lease/admitted"
	PointSeize    = "lease/seize" // a person takes the queue
	PointSeized   = "lease/seized"
)

// A failStep is a step: its points, and whether a turn takes it.
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

// commitWithFailpoints writes a turn and does what it asks for. An error at a point stops the room
// there, as one of the store does.
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
