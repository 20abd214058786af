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

// A passage is a step: its points, and whether a turn takes it.
type passage struct {
	before, after string
	in            func(*turn) bool
}

var passages = []passage{
	{PointGrant, PointGranted, saw(EventGranted)},
	{PointPermit, PointPermitted, saw(EventPermitted)},
	{PointEnd, PointEnded, func(t *turn) bool {
		return slices.ContainsFunc(t.out.Ends, func(e End) bool { return e.Digest != nil })
	}},
	{PointTakeBack, PointTakenBack, saw(EventReleased)},
	{PointReceive, PointReceived, func(t *turn) bool { return len(t.out.Waits) > 0 }},
	{PointStart, PointStarted, func(t *turn) bool { return len(t.out.Starts) > 0 }},
	{PointFinish, PointFinished, func(t *turn) bool {
		return slices.ContainsFunc(t.order, func(key string) bool { return key[0] == keyResult && t.writes[key] != nil })
	}},
	{PointRelease, PointReleased, sends(proto.TypeRelease)},
	{PointYield, PointYielded, saw(EventYielded)},
	{PointMove, PointMoved, saw(EventMovedOut)},
	{PointLetGo, PointGone, func(t *turn) bool { return len(t.out.Gone) > 0 }},
	{PointAdmit, PointAdmitted, saw(EventMovedIn)},
	{PointSeize, PointSeized, saw(EventSeized)},
}

func saw(kind EventKind) func(*turn) bool {
	return func(t *turn) bool {
		return slices.ContainsFunc(t.out.Events, func(e Event) bool { return e.Kind == kind })
	}
}

func sends(typ proto.MessageType) func(*turn) bool {
	return func(t *turn) bool {
		return slices.ContainsFunc(t.out.Sends, func(s Send) bool { return s.Type == typ })
	}
}

// pass writes a turn and does what it asks for. An error at a point stops the room
// there, as one of the store does.
func (r *Room) pass(t *turn, commit func() error, act func()) error {
	if r.cfg.Fail == nil {
		if err := commit(); err != nil {
			return err
		}
		act()
		return nil
	}
	var steps []passage
	for _, p := range passages {
		if p.in(t) {
			steps = append(steps, p)
		}
	}
	replies := len(t.rulings) > 0
	for _, p := range steps {
		if err := r.cfg.Fail(p.before); err != nil {
			return err
		}
	}
	if err := commit(); err != nil {
		return err
	}
	for _, p := range steps {
		if err := r.cfg.Fail(p.after); err != nil {
			return err
		}
	}
	act()
	if replies {
		return r.cfg.Fail(PointReplied)
	}
	return nil
}
