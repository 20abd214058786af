package inbox

import (
	"math"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// An idStatus is the relation of an arrival to the known task ids.
type idStatus byte

const (
	idNew       idStatus = iota // unknown, or forgotten
	idDuplicate                 // this very task is here, or was
	idConflict                  // another task has its id
	idCancelled                 // it was cancelled before it arrived
)

// A wallTime is a reading of the wall clock.
type wallTime struct {
	now     int64 // Unix milliseconds
	doubted bool  // nothing is refused for good because of it
}

// An acceptInput is the input of the decision about one arrival.
type acceptInput struct {
	wallTime

	idStatus   idStatus
	firstState proto.TaskState // for idDuplicate: its state
	seq        proto.Seq
	watermark  proto.Seq // settled watermark of its origin
	notAfter   int64     // Unix milliseconds, by this node's clock, as now
	draining   bool
	handled    bool   // its kind has a handler
	absent     string // why the handler cannot be started now; empty: it can
	allowed    bool   // the handler's allow list names its origin
	tooLarge   bool   // for its handler
	refused    string // why its handler refuses its content; empty: it does not
	oversize   bool   // for a record here
	noBody     bool   // its streamed body is not here yet
	full       bool   // the limit of task ids is reached
	overShare  bool   // its origin has used up its share
	keysFull   bool   // it has a key, and the limit of keys is reached
	// it has a key, and its origin has used up its share of them
	keysOverShare bool
	restored      bool     // it may have run before this store was restored from a copy
	queue         *Verdict // verdict of its queue; nil: the task is for this node
}

// verdict decides about an arrival. A known task is accepted again, whatever has changed
// since: the first answer may have been lost (I8, S04).
func (input *acceptInput) verdict() Verdict {
	switch {
	case input.idStatus == idDuplicate:
		return Verdict{State: input.firstState}
	case input.seq.Compare(input.watermark) <= 0:
		return refuse(proto.CodeDuplicate, "its origin has settled this sequence number: it was accepted, refused or ended before")
	case input.now > input.notAfter && input.doubted:
		return refuse(proto.CodeBusy, "its time has passed, but the clock of this node is unreliable; it is corrected, or trusted again in some minutes")
	case input.now > input.notAfter && input.restored:
		return refuse(proto.CodeExpired, "its time had passed when it arrived"+restoredNote)
	case input.now > input.notAfter:
		return refuse(proto.CodeExpired, "its time had passed when it arrived")
	case input.idStatus == idConflict:
		return refuse(proto.CodeBusy, "another task with the same id is here")
	case input.draining:
		return refuse(proto.CodeDraining, "the node is stopping")
	case input.full && input.idStatus != idCancelled:
		return refuse(proto.CodeBusy, "this node remembers as many task ids as it can")
	case input.overShare && input.idStatus != idCancelled:
		return refuse(proto.CodeBusy, "you have used up your share of the tasks that this node stores; the rest is for others")
	case input.keysFull && input.idStatus != idCancelled:
		return refuse(proto.CodeBusy, "this node remembers as many idempotency keys as it can")
	case input.keysOverShare && input.idStatus != idCancelled:
		return refuse(proto.CodeBusy, "you have used up your share of the idempotency keys that this node remembers; the rest is for others: send without a key, or wait until some are forgotten")
	case input.oversize:
		return refuse(proto.CodeTooLarge, "its content besides the stream is larger than a record here can hold: send the arguments in the body")
	case input.idStatus == idCancelled: // accepted so that it ends as CANCELLED: no handler runs
		return Verdict{}
	case input.queue != nil && !input.queue.Accepted():
		return *input.queue
	case input.queue != nil && !input.noBody:
		return Verdict{}
	case input.queue != nil:
		return refuse(proto.CodeNeedBody, "the streamed body is not here")
	case !input.handled:
		return refuse(proto.CodeNoHandler, "no handler for this kind")
	case !input.allowed && input.doubted: // its origin may be a member
		return refuse(proto.CodeBusy, "the handler's allow list does not name the origin, but the clock of this node is unreliable")
	case !input.allowed:
		return refuse(proto.CodeDenied, "the handler's allow list does not name the origin")
	case input.tooLarge:
		return refuse(proto.CodeTooLarge, "the body is larger than the handler accepts")
	case input.refused != "":
		return refuse(proto.CodeDenied, input.refused)
	case input.absent != "":
		return refuse(proto.CodeCannotStart, input.absent)
	case input.noBody:
		return refuse(proto.CodeNeedBody, "the streamed body is not here")
	}
	return Verdict{}
}

// An action is what to do with a task that is due.
type action byte

const (
	actionRun        action = iota
	actionRecover           // it was running when the process died
	actionEnd               // end it without a start, see ending
	actionEndAsFirst        // end it with the outcome of the first success of its key
	actionWait              // another task with its key, or another quarantined task, is running
	actionSkip              // nothing can be done now
)

// An ending is a terminal state with a reason.
type ending struct {
	state  proto.TaskState
	reason string
	code   proto.Code // if it is refused after all
}

// A startInput is the input of the decision about a task that is due.
type startInput struct {
	record         *proto.Record
	now            int64
	deadline       int64 // end of its time as set by its home, if that is later
	doubted        bool  // the wall clock is unreliable, or its home's unknown: nothing ends because of it
	handled        bool
	allowed        bool // the allow list names its origin now (I17)
	keyDone        bool // a task of its (origin, key) has succeeded
	keyBusy        bool // a task with its key is running
	quarantineBusy bool // a quarantined task is running
	restored       bool // it may have run before this store was restored from a copy
}

// next decides about a task that is due.
func (input *startInput) next() (action, ending) {
	r, over := input.record, input.now > max(input.record.NotAfterMs, input.deadline)
	switch {
	case input.restored && input.keyDone:
		return actionEndAsFirst, ending{}
	case input.restored:
		return actionEnd, ending{state: proto.DeadLetter, reason: restoredReason}
	case r.State == proto.Running && !input.handled && over && !input.doubted:
		return actionEnd, ending{state: proto.DeadLetter, reason: "indeterminate: the process died while it ran, and its handler is gone or cannot be asked"}
	case r.State == proto.Running && !input.handled:
		return actionSkip, ending{}
	case r.State == proto.Running:
		return actionRecover, ending{}
	case input.keyDone:
		return actionEndAsFirst, ending{}
	case r.Cancel:
		t := cancelledStep(r)
		return actionEnd, ending{state: t.state, reason: t.reason}
	case over && input.doubted:
		return actionSkip, ending{}
	case over:
		return actionEnd, ending{state: proto.Expired, reason: expiredReason(r)}
	case !input.handled, !input.allowed && input.doubted: // by a wrong clock the origin's membership may be over
		return actionSkip, ending{}
	case !input.allowed:
		return actionEnd, ending{proto.DeadLetter, "denied: the handler's allow list no longer names the origin", proto.CodeDenied}
	case input.keyBusy, needsQuarantine(r) && input.quarantineBusy:
		return actionWait, ending{}
	}
	return actionRun, ending{}
}

// needsQuarantine reports whether a task may be what kills the process: it was running at
// two crashes. Such tasks run one at a time, so that the harmful one takes no others with
// it (S16).
func needsQuarantine(r *proto.Record) bool { return r.Abandons >= 2 }

// cancelledStep returns the end of a task that is cancelled while it does not run.
func cancelledStep(r *proto.Record) transition {
	t := transition{state: proto.Cancelled, reason: "cancelled before it started"}
	if starts(r) > 0 {
		t.reason = "cancelled between two starts"
	}
	return t
}

func expiredReason(r *proto.Record) string {
	if r.Attempts+r.Abandons == 0 {
		return "its time had passed before it could start"
	}
	return "its time had passed before it could start again; last: " + r.Reason
}

// A stop is why a running handler was told to stop.
type stop byte

const (
	notStopped stop = iota
	stopTimeout
	stopCancel
	stopNode  // the node is stopping
	stopLease // its lease was lost
)

// cause returns the cancellation cause of the handler's context.
func (s stop) cause() error {
	return [...]error{notStopped: nil, stopTimeout: handler.ErrTimeout, stopCancel: handler.ErrCancelled, stopNode: handler.ErrStopping, stopLease: handler.ErrLeaseLost}[s]
}

// A transition is the next state of a task after a run or a crash.
type transition struct {
	state     proto.TaskState
	reason    string
	code      proto.Code    // of the refusal that ends it; 0: it is not refused
	wait      time.Duration // until the next start; RETRYING only
	spent     bool          // an attempt is spent
	abandoned bool          // it counts as an abandon
}

// limits bounds the cost of one task.
type limits struct {
	maxAttempts uint32
	maxAbandons uint32
	baseBackoff time.Duration
	maxBackoff  time.Duration
}

// after decides the next state of a task whose run has ended. r is random in [0, 1). A
// success stands even if the handler had been told to stop: its effect has happened (I6).
func (l limits) after(rec *proto.Record, res *handler.Result, why stop, r float64) transition {
	once := rec.Mode == proto.AtMostOnce
	switch {
	case res.Outcome == handler.Success:
		return transition{state: proto.Success, reason: cutReason(res), spent: true}
	case res.Outcome == unusable:
		return transition{state: proto.DeadLetter, reason: res.Reason}
	case res.Outcome == handler.Fail && why == notStopped:
		return transition{state: proto.Failed, reason: reasonOr(res, "the handler rejected the task"), spent: true}
	case why == stopCancel:
		return transition{state: proto.Cancelled, reason: "cancelled while it ran", spent: true}
	case why == stopNode && once:
		return transition{state: proto.DeadLetter, reason: "indeterminate: the node stopped while it ran, and its mode is at_most_once", spent: true}
	case why == stopNode:
		return transition{state: proto.Accepted, reason: "the node stopped while it ran"}
	}
	if res.Outcome == handler.Unready && why == notStopped {
		return transition{state: proto.Retrying, reason: reasonOr(res, "nothing could be started"), wait: l.backoff(unreadyAs, r)}
	}
	if res.Outcome == handler.NoSpace && why == notStopped {
		return l.outOfSpace(rec, res, r)
	}
	last := rec.Attempts+1 >= l.maxAttempts || once
	t := transition{state: proto.Retrying, spent: true, reason: reasonOr(res, "the handler failed")}
	switch {
	case why == stopTimeout && last:
		t.state, t.reason = proto.Timeout, reasonOr(res, "the last attempt ran out of time")
	case last:
		t.state = proto.DeadLetter
	case why == stopTimeout:
		t.reason = reasonOr(res, "the attempt ran out of time")
		fallthrough
	default:
		t.wait = l.backoff(rec.Attempts+1, r)
	}
	return t
}

// outOfSpace decides about a task that was stopped because there was no room for its
// output.
func (l limits) outOfSpace(rec *proto.Record, res *handler.Result, r float64) transition {
	t := transition{state: proto.Retrying, reason: reasonOr(res, "there was no room for its output"), abandoned: true, wait: l.backoff(rec.Abandons+1, r)}
	switch {
	case rec.Mode == proto.AtMostOnce:
		t.state, t.wait = proto.DeadLetter, 0
		t.reason = "indeterminate: its mode is at_most_once, and it was stopped: " + t.reason
	case rec.Abandons+1 >= l.maxAbandons:
		t.state, t.wait = proto.DeadLetter, 0
		t.reason = "abandoned too often: " + t.reason
	}
	return t
}

// cutReason returns the reason of a success whose output was truncated.
func cutReason(res *handler.Result) string {
	if !res.Truncated {
		return ""
	}
	return reasonOr(res, "the output was cut off")
}

// unreadyAs is the number of the failure with the same backoff as a run that could not be
// started.
const unreadyAs = 5

func reasonOr(res *handler.Result, otherwise string) string {
	if res.Reason != "" {
		return res.Reason
	}
	return otherwise
}

// afterCrash decides about a task that was running when the process died (I7). probe is the
// handler's answer if its policy is probe.
func (l limits) afterCrash(rec *proto.Record, policy OnCrash, probe handler.ProbeResult, r float64) transition {
	t := transition{state: proto.DeadLetter, abandoned: true}
	switch {
	case rec.Mode == proto.AtMostOnce:
		t.reason = "indeterminate: the process died while it ran, and its mode is at_most_once"
	case policy == OnCrashProbe && probe == handler.Done:
		t.state = proto.Success
	case policy == OnCrashPark, policy == OnCrashProbe && probe != handler.NotDone:
		t.reason = "indeterminate: the process died while it ran, and on_crash is " + string(policy)
	case rec.Abandons+1 >= l.maxAbandons:
		t.reason = "the process died each time it ran"
	default:
		t.state, t.wait, t.reason = proto.Retrying, l.backoff(rec.Abandons+1, r), "the process died while it ran"
	}
	return t
}

// backoff returns the delay after the n-th failure.
func (l limits) backoff(n uint32, r float64) time.Duration {
	d := l.maxBackoff
	if n <= 32 {
		d = min(l.maxBackoff, time.Duration(math.Ldexp(float64(l.baseBackoff), int(n)-1)))
	}
	return d + time.Duration(r*float64(d)/2)
}

// forgettable reports whether a finished id need not be kept: its origin will not send it
// again.
func forgettable(seq, mark proto.Seq) bool { return seq.Compare(mark) <= 0 }

// agedOut reports whether the time of a finished id is over under any clock that differs
// by no more than the skew.
func agedOut(notAfter, now int64) bool { return now > notAfter+proto.Skew.Milliseconds() }

// maxSeq returns the larger of two marks: a watermark never decreases.
func maxSeq(a, b proto.Seq) proto.Seq {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}
