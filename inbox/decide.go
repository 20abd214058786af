package inbox

import (
	"math"
	"time"

	"github.com/balefire/balefire/proto"
)

// How an arrival is known.
type knownAs byte

const (
	stranger knownAs = iota // never seen, or forgotten
	same                    // this very task is here, or was
	imposter                // another task has its id
	barred                  // it was cancelled before it arrived
)

// A wall is what the wall clock says.
type wall struct {
	now     int64 // Unix milliseconds
	doubted bool  // nothing is refused for good by it
}

// A sight is what Accept sees of one arrival.
type sight struct {
	wall

	known    knownAs
	first    proto.TaskState // same: how far it came
	seq      proto.Seq
	mark     proto.Seq // settled mark of its origin
	notAfter int64     // Unix milliseconds, as floor and now
	floor    int64
	draining bool
	handled  bool   // there is a handler for its kind
	absent   string // why that cannot be started now; empty: it can
	allowed  bool   // its origin may ask for it
	tooLarge bool   // for its handler
	oversize bool   // for a record here
	noBody   bool   // it is streamed and not here yet
	full     bool   // as many ids are kept as may be
	unfair   bool   // its origin holds its share of the room
	keysFull bool   // it has a key, and as many of them are kept as may be
	// it has a key, and its origin holds its share of them
	keysUnfair bool
	restored   bool     // it may have run before this store was restored from a copy
	queue      *Verdict // of its queue; nil: it is for this node
}

// verdict decides about an arrival. A task that is here is accepted again,
// whatever has changed since: the first answer may have been lost (I8, S04).
func (s *sight) verdict() Verdict {
	switch {
	case s.known == same:
		return Verdict{State: s.first}
	case s.seq.Compare(s.mark) <= 0:
		return refuse(proto.CodeDuplicate, "its origin has settled this sequence number: it was accepted, refused or ended before")
	case s.notAfter <= s.floor:
		return refuse(proto.CodeExpired, "it is older than what this node still remembers")
	case s.now > s.notAfter && s.doubted:
		return refuse(proto.CodeBusy, "its time has passed, but the clock of this node is doubted: it is set right, or believed in some minutes")
	case s.now > s.notAfter && s.restored:
		return refuse(proto.CodeExpired, "its time had passed when it arrived"+restoredAside)
	case s.now > s.notAfter:
		return refuse(proto.CodeExpired, "its time had passed when it arrived")
	case s.known == imposter:
		return refuse(proto.CodeBusy, "another task with the same id is here")
	case s.draining:
		return refuse(proto.CodeDraining, "the node is stopping")
	case s.full && s.known != barred:
		return refuse(proto.CodeBusy, "this node keeps as many task ids as it may")
	case s.unfair && s.known != barred:
		return refuse(proto.CodeBusy, "you hold your share of the tasks that this node keeps; the rest is for others")
	case s.keysFull && s.known != barred:
		return refuse(proto.CodeBusy, "this node remembers as many idempotency keys as it may")
	case s.keysUnfair && s.known != barred:
		return refuse(proto.CodeBusy, "you hold your share of the idempotency keys that this node remembers; the rest is for others: send without a key, or wait until some are forgotten")
	case s.oversize:
		return refuse(proto.CodeTooLarge, "what stands beside its stream is larger than a record here takes: send the arguments in the body")
	case s.known == barred: // taken in to be told CANCELLED: no handler will see it
		return Verdict{}
	case s.queue != nil && !s.queue.Accepted():
		return *s.queue
	case s.queue != nil && !s.noBody:
		return Verdict{}
	case s.queue != nil:
		return refuse(proto.CodeNeedBody, "the streamed body is not here")
	case !s.handled:
		return refuse(proto.CodeNoHandler, "no handler for this kind")
	case !s.allowed:
		return refuse(proto.CodeDenied, "the handler's allow list does not name the origin")
	case s.tooLarge:
		return refuse(proto.CodeTooLarge, "the body is larger than the handler takes")
	case s.absent != "":
		return refuse(proto.CodeNoHandler, "its handler cannot be started: "+s.absent)
	case s.noBody:
		return refuse(proto.CodeNeedBody, "the streamed body is not here")
	}
	return Verdict{}
}

// What to do with a task whose turn it is.
type turn byte

const (
	turnRun     turn = iota
	turnRecover      // it was running when the process died
	turnEnd          // end it without a start, see ending
	turnFirst        // end it with the outcome of the first success of its key
	turnAwait        // another task with its key, or another suspect, runs
	turnLeave        // nothing can be done for it now
)

// An ending is a terminal state and why.
type ending struct {
	state  proto.TaskState
	reason string
}

// A prospect is what is known of a task whose turn it is.
type prospect struct {
	record        *proto.Record
	now           int64
	until         int64 // its home's word on the end of its time, if that is later
	doubted       bool  // the wall clock is: nothing ends by it
	handled       bool
	allowed       bool // its origin may ask for its kind now (I17)
	keyDone       bool // a task of its (origin, key) has succeeded
	keyBusy       bool // one is running
	suspectActive bool // a suspicious task is running
	restored      bool // it may have run before this store was restored from a copy
}

// next decides what the turn of a task means.
func (p *prospect) next() (turn, ending) {
	r, over := p.record, p.now > max(p.record.NotAfterMs, p.until)
	switch {
	case p.restored && p.keyDone:
		return turnFirst, ending{}
	case p.restored:
		return turnEnd, ending{proto.DeadLetter, restoredReason}
	case r.State == proto.Running && !p.handled && over && !p.doubted:
		return turnEnd, ending{proto.DeadLetter, "indeterminate: the process died while it ran, and its handler is gone"}
	case r.State == proto.Running && !p.handled:
		return turnLeave, ending{}
	case r.State == proto.Running:
		return turnRecover, ending{}
	case p.keyDone:
		return turnFirst, ending{}
	case r.Cancel:
		s := cancelledStep(r)
		return turnEnd, ending{s.state, s.reason}
	case over && p.doubted:
		return turnLeave, ending{}
	case over:
		return turnEnd, ending{proto.Expired, expiredReason(r)}
	case !p.handled:
		return turnLeave, ending{}
	case !p.allowed:
		return turnEnd, ending{proto.DeadLetter, "denied: the handler's allow list no longer names the origin"}
	case p.keyBusy, suspicious(r) && p.suspectActive:
		return turnAwait, ending{}
	}
	return turnRun, ending{}
}

// suspicious reports whether a task may be what kills the process: it was running
// at two deaths. Such tasks run one at a time, so that the one that kills takes
// none of the others with it (S16).
func suspicious(r *proto.Record) bool { return r.Abandons >= 2 }

// cancelledStep is the end of a task that is cancelled while it does not run.
func cancelledStep(r *proto.Record) step {
	s := step{state: proto.Cancelled, reason: "cancelled before it started"}
	if starts(r) > 0 {
		s.reason = "cancelled between two starts"
	}
	return s
}

func expiredReason(r *proto.Record) string {
	if r.Attempts+r.Abandons == 0 {
		return "its time had passed before it could start"
	}
	return "its time had passed before it could start again; last: " + r.Reason
}

// A stop is why a running handler was told to end.
type stop byte

const (
	notStopped stop = iota
	stopTimeout
	stopCancel
	stopNode  // the node stops
	stopLease // its lease was lost
)

// cause is what the handler's context ends with.
func (s stop) cause() error {
	return [...]error{notStopped: nil, stopTimeout: ErrTimeout, stopCancel: ErrCancelled, stopNode: ErrStopping, stopLease: ErrLeaseLost}[s]
}

// A step is where a task goes after a run or a crash.
type step struct {
	state  proto.TaskState
	reason string
	wait   time.Duration // until the next start; RETRYING only
	spent  bool          // an attempt
	lost   bool          // an abandon
}

// limits bound what one task may cost.
type limits struct {
	maxAttempts uint32
	maxAbandons uint32
	baseBackoff time.Duration
	maxBackoff  time.Duration
}

// after decides where a task goes when its run has ended. r is random in [0, 1).
// A success stands also when the handler had been told to stop: its effect
// has happened (I6).
func (l limits) after(rec *proto.Record, ran *Ran, why stop, r float64) step {
	once := rec.Mode == proto.AtMostOnce
	switch {
	case ran.End == Success:
		return step{state: proto.Success, reason: cutReason(ran), spent: true}
	case ran.End == unusable:
		return step{state: proto.DeadLetter, reason: ran.Reason}
	case ran.End == Fail && why == notStopped:
		return step{state: proto.Failed, reason: reasonOr(ran, "the handler refused the task for good"), spent: true}
	case why == stopCancel:
		return step{state: proto.Cancelled, reason: "cancelled while it ran", spent: true}
	case why == stopNode && once:
		return step{state: proto.DeadLetter, reason: "indeterminate: the node stopped while it ran, and its mode is at_most_once", spent: true}
	case why == stopNode:
		return step{state: proto.Accepted, reason: "the node stopped while it ran"}
	}
	if ran.End == Unready && why == notStopped {
		return step{state: proto.Retrying, reason: reasonOr(ran, "nothing could be started"), wait: l.backoff(unreadyAs, r)}
	}
	if ran.End == NoRoom && why == notStopped {
		return l.starved(rec, ran, r)
	}
	last := rec.Attempts+1 >= l.maxAttempts || once
	s := step{state: proto.Retrying, spent: true, reason: reasonOr(ran, "the handler failed")}
	switch {
	case why == stopTimeout && last:
		s.state, s.reason = proto.Timeout, reasonOr(ran, "the last attempt ran out of time")
	case last:
		s.state = proto.DeadLetter
	case why == stopTimeout:
		s.reason = reasonOr(ran, "the attempt ran out of time")
		fallthrough
	default:
		s.wait = l.backoff(rec.Attempts+1, r)
	}
	return s
}

// starved decides about a task that was stopped because its output found no room.
func (l limits) starved(rec *proto.Record, ran *Ran, r float64) step {
	s := step{state: proto.Retrying, reason: reasonOr(ran, "its output found no room"), lost: true, wait: l.backoff(rec.Abandons+1, r)}
	switch {
	case rec.Mode == proto.AtMostOnce:
		s.state, s.wait = proto.DeadLetter, 0
		s.reason = "indeterminate: its mode is at_most_once, and it was stopped: " + s.reason
	case rec.Abandons+1 >= l.maxAbandons:
		s.state, s.wait = proto.DeadLetter, 0
		s.reason = "abandoned too often: " + s.reason
	}
	return s
}

// cutReason says of a success that not all of its output was kept.
func cutReason(ran *Ran) string {
	if !ran.Truncated {
		return ""
	}
	return reasonOr(ran, "the output was cut off")
}

// unreadyAs is the failure after which the wait is as long as after a run that
// could not be started.
const unreadyAs = 5

func reasonOr(ran *Ran, otherwise string) string {
	if ran.Reason != "" {
		return ran.Reason
	}
	return otherwise
}

// recovered decides about a task that was running when the process died (I7).
// probe is the handler's word where its policy is to be asked.
func (l limits) recovered(rec *proto.Record, policy OnCrash, probe Probe, r float64) step {
	if rec.Mode == proto.AtMostOnce {
		return step{state: proto.DeadLetter, lost: true,
			reason: "indeterminate: the process died while it ran, and its mode is at_most_once"}
	}
	switch {
	case policy == OnCrashProbe && probe == Done:
		return step{state: proto.Success, lost: true}
	case policy == OnCrashPark, policy == OnCrashProbe && probe == Unknown:
		return step{state: proto.DeadLetter, lost: true,
			reason: "indeterminate: the process died while it ran, and on_crash is " + string(policy)}
	case rec.Abandons+1 >= l.maxAbandons:
		return step{state: proto.DeadLetter, lost: true,
			reason: "the process died each time it ran"}
	}
	return step{state: proto.Retrying, lost: true,
		wait: l.backoff(rec.Abandons+1, r), reason: "the process died while it ran"}
}

// backoff is the wait before the try after the n-th failure.
func (l limits) backoff(n uint32, r float64) time.Duration {
	d := l.maxBackoff
	if n <= 32 {
		d = min(l.maxBackoff, time.Duration(math.Ldexp(float64(l.baseBackoff), int(n)-1)))
	}
	return d + time.Duration(r*float64(d)/2)
}

// forgettable reports whether a finished id need not be kept: its origin will
// not send it again, or every copy of it is refused by its age.
func forgettable(seq, mark proto.Seq) bool { return seq.Compare(mark) <= 0 }

// outlived reports whether a finished id may be dropped by age, after which the
// floor must be at least its not_after (I12).
func outlived(notAfter, now int64) bool { return now > notAfter+proto.Skew.Milliseconds() }

// higher returns the larger of two marks: a mark never goes back.
func higher(a, b proto.Seq) proto.Seq {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}
