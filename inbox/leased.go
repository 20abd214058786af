package inbox

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A Leased is a task of a shared queue whose home has granted it to this node. It is
// checked: signed by its origin for the queue, sealed for this node.
type Leased struct {
	ID       proto.TaskID
	Kind     string
	Origin   proto.PeerID
	Home     proto.PeerID // who granted it
	Mode     proto.Mode
	Vouchers []proto.PeerID // whom the handler must allow besides
	Envelope *proto.Envelope
	Size     uint64   // bytes of its body
	Key      [32]byte // of its content, for a streamed body
	Body     string   // file of its streamed body; empty: it has none
	Attempts uint32   // that it asks for; 0: as many as the handler gives
	Asked    bool     // it ran when the node died: its handler is asked what it did, and starts nothing
}

// Leases says when a granted task may start, and takes its end.
type Leases interface {
	// Ready says that a slot is free for a task. It returns once the start is
	// durable; false: it must not start here any more.
	Ready(ctx context.Context, id proto.TaskID, onCrash OnCrash) (LeaseStart, bool)
	// Ended takes the end of what Ready let start. It returns once that is durable,
	// or the node stops for good.
	Ended(ctx context.Context, id proto.TaskID, e LeaseEnd)
	// Probed takes what the handler of a task says that ran when the node died, with
	// the result that goes home if it is done.
	Probed(ctx context.Context, id proto.TaskID, found Probe, o *proto.Outcome)
}

// A LeaseStart is the leave to start.
type LeaseStart struct {
	Epoch   proto.Seq
	Attempt uint32
}

// A LeaseEnd is how a run under a lease ended.
type LeaseEnd struct {
	Outcome    *proto.Outcome // nil: the lease is given back
	File       string         // with the result when that is too large for the outcome; whoever gave it removes it
	Cause      proto.ReleaseCause
	Reason     string
	RetryAfter time.Duration // 0: the home decides

	MaxAttempts uint32 // that the handler gives the task
}

// partLease tells the run of a lease from the custody of the same task, which may be
// here too.
const partLease backlog.Part = 0x6c

// granted are the leases that wait for a slot, in the order in which they came.
type granted struct {
	mu      sync.Mutex
	waiting []Leased
}

// Leasable reports whether this node would run a task of a kind, with a body of so many
// bytes, for origin now, and for all who vouch for it: zero, or why not.
func (in *Inbox) Leasable(kind string, origin proto.PeerID, vouchers []proto.PeerID, body uint64) proto.Code {
	h := in.handlers.find(kind)
	in.granted.mu.Lock()
	waiting := len(in.granted.waiting)
	in.granted.mu.Unlock()
	switch {
	case in.desk.draining():
		return proto.CodeDraining
	case h == nil, in.handlers.absent(kind) != "":
		return proto.CodeNoHandler
	case !h.allowsAll(origin, vouchers, in.with.Members):
		return proto.CodeDenied
	case h.MaxBody > 0 && body > h.MaxBody:
		return proto.CodeTooLarge
	case waiting >= in.cfg.Slots:
		return proto.CodeBusy
	}
	return proto.CodeOK
}

// Lease lets a granted task wait for a slot of its kind. One that waits already is
// left where it is.
func (in *Inbox) Lease(l Leased) {
	g := in.granted
	g.mu.Lock()
	if !slices.ContainsFunc(g.waiting, func(x Leased) bool { return x.ID == l.ID }) {
		g.waiting = append(g.waiting, l)
	}
	g.mu.Unlock()
	in.desk.ring()
}

// StopLease ends the wait or the run of a granted task; cancelled: because a person
// wants that.
func (in *Inbox) StopLease(id proto.TaskID, cancelled bool) {
	g := in.granted
	g.mu.Lock()
	g.waiting = slices.DeleteFunc(g.waiting, func(x Leased) bool { return x.ID == id })
	g.mu.Unlock()
	if c := in.desk.find(backlog.Key{ID: id, Part: partLease}); c != nil {
		why := stopLease
		if cancelled {
			why = stopCancel
		}
		in.desk.stop(c, why, false)
	}
}

// Working reports whether a granted task has a slot here: from before its start until
// its end has been taken.
func (in *Inbox) Working(id proto.TaskID) bool {
	return in.desk.find(backlog.Key{ID: id, Part: partLease}) != nil
}

// seatGranted gives a slot to the first lease that may have one now.
func (s *shift) seatGranted(stay context.Context) bool {
	g := s.granted
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, l := range g.waiting {
		h := s.handlers.find(l.Kind)
		if h != nil && s.handlers.absent(l.Kind) == "" && !s.eligible(l.Kind) {
			continue
		}
		c := s.desk.claim(backlog.Key{ID: l.ID, Part: partLease})
		if c == nil {
			continue // an earlier run of it is still ending
		}
		g.waiting = slices.Delete(g.waiting, i, i+1)
		c.kind, c.h, c.origin, c.lease = l.Kind, h, l.Origin, &l
		c.rec = &proto.Record{Kind: l.Kind, Mode: l.Mode, Peer: l.Origin[:], BodyBlob: l.Body, MaxAttempts: l.Attempts}
		c.stored = &proto.Stored{Envelope: l.Envelope, Record: c.rec, Key: l.Key[:]}
		s.desk.seat(c, false)
		if l.Asked {
			s.spawn(func() error { s.askLeased(stay, c); return nil })
		} else {
			s.spawn(func() error { s.runLeased(stay, c); return nil })
		}
		return true
	}
	return false
}

// runLeased runs a granted task once its home, and the disk, say that it may start.
func (s *shift) runLeased(stay context.Context, c *claim) {
	defer s.release(c)
	policy := OnCrashPark
	if c.h != nil {
		policy = c.h.OnCrash
	}
	start, ok := s.with.Leases.Ready(stay, c.key.ID, policy)
	if !ok {
		return
	}
	c.epoch, c.attempt = start.Epoch, start.Attempt
	began := s.cfg.Clock.Now()
	switch {
	case c.h == nil:
		s.with.Leases.Ended(stay, c.key.ID, unstarted("the node has no handler for "+c.kind+" any more"))
	case s.handlers.absent(c.kind) != "":
		s.with.Leases.Ended(stay, c.key.ID, unstarted(text(s.handlers.absent(c.kind), proto.MaxReason)))
	case !c.h.allowsAll(c.origin, c.lease.Vouchers, s.with.Members):
		s.with.Leases.Ended(stay, c.key.ID, unstarted("denied: the handler's allow list does not name the origin"))
	default:
		ran := s.handle(stay, c)
		why := s.desk.rise(c)
		e := leaseEnd(ran, why)
		e.MaxAttempts = c.h.maxAttempts(c.rec.MaxAttempts)
		if e.Outcome != nil {
			e.Outcome.StartedMs, e.Outcome.FinishedMs = began.UnixMilli(), s.cfg.Clock.Now().UnixMilli()
		}
		s.with.Leases.Ended(stay, c.key.ID, e)
		if ran.File != "" {
			s.removeResult(ran.File)
		}
	}
}

// askLeased asks the handler of a granted task that ran when the node died whether it
// had its effect (I7).
func (s *shift) askLeased(stay context.Context, c *claim) {
	defer s.release(c)
	found := Unknown
	if c.h != nil && c.h.OnCrash == OnCrashProbe {
		found = s.ask(stay, c)
	}
	if s.desk.rise(c) == stopNode {
		return // asked again at the next start
	}
	done := outcomeOf(&Ran{End: Success}, proto.Success, "")
	s.with.Leases.Probed(stay, c.key.ID, found, done.Outcome)
}

// refusedFor is how long a node that cannot start what it was granted is not asked
// again.
const refusedFor = time.Minute

func unstarted(reason string) LeaseEnd {
	return LeaseEnd{Cause: proto.Unstarted, Reason: reason, RetryAfter: refusedFor}
}

// leaseEnd decides what a home is told of a run. How often it is tried again is for
// the home to say. A success stands also when the handler had been told to stop.
func leaseEnd(ran *Ran, why stop) LeaseEnd {
	back := func(cause proto.ReleaseCause, otherwise string) LeaseEnd {
		return LeaseEnd{Cause: cause, Reason: text(reasonOr(ran, otherwise), proto.MaxReason)}
	}
	switch {
	case ran.End == Success:
		return outcomeOf(ran, proto.Success, cutReason(ran))
	case ran.End == unusable:
		return outcomeOf(ran, proto.DeadLetter, ran.Reason)
	case why == stopCancel:
		return outcomeOf(ran, proto.Cancelled, "cancelled while it ran")
	case why == stopNode:
		return LeaseEnd{Cause: proto.CauseStopped, Reason: "the node stopped while it ran"}
	case why == stopLease:
		return LeaseEnd{Cause: proto.CauseStopped, Reason: "its lease was lost while it ran"}
	case why == stopTimeout:
		return back(proto.CauseTimeout, "the attempt ran out of time")
	case ran.End == Fail:
		return outcomeOf(ran, proto.Failed, reasonOr(ran, "the handler refused the task for good"))
	case ran.End == NoRoom: // an abandon, as a death is
		return back(proto.CauseCrashed, "its output found no room")
	case ran.End == Unready:
		e := back(proto.Unstarted, "nothing could be started")
		e.RetryAfter = refusedFor / 4
		return e
	}
	return back(proto.CauseFailed, "the handler failed")
}

func outcomeOf(ran *Ran, state proto.TaskState, reason string) LeaseEnd {
	if ran.File != "" {
		e := outcomeOf(&Ran{ExitCode: ran.ExitCode, Stderr: ran.Stderr, ContentType: ran.ContentType, Truncated: ran.Truncated}, state, reason)
		e.Outcome.BodySize, e.Outcome.BodyDigest, e.File = ran.Size, ran.Digest, ran.File
		return e
	}
	sum := sha256.Sum256(ran.Output)
	return LeaseEnd{Outcome: &proto.Outcome{
		State: state, ExitCode: ran.ExitCode, Reason: text(reason, proto.MaxReason), Stderr: tail(ran.Stderr, proto.MaxStderr),
		Body: ran.Output, BodySize: uint64(len(ran.Output)), BodyDigest: sum[:], ContentType: text(ran.ContentType, 128), Truncated: ran.Truncated,
	}}
}
