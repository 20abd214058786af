package inbox

import (
	"cmp"
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
	stopping   bool
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
	case input.stopping:
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
	case input.idStatus == idCancelled && !input.noBody: // accepted so that it ends as CANCELLED: no handler runs
		return Verdict{}
	case input.idStatus == idCancelled:
		return refuse(proto.CodeNeedBody, "the streamed body is not here")
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

// An ending is a terminal state with its cause.
type ending struct {
	state  proto.TaskState
	cause  proto.TaskCause
	reason string     // the detail of the cause
	code   proto.Code // if it is refused after all

	mayHaveRun bool // see [transition]
}

// A startInput is the input of the decision about a task that is due.
type startInput struct {
	record         *proto.Record
	now            int64
	deadline       int64 // end of its time; 0: as its record says
	doubted        bool  // the wall clock is unreliable: nothing ends because of it
	unheard        bool  // only the clock of its home tells whether its time is over, and that is unknown
	handled        bool
	allowed        bool // the allow list names its origin now (I17)
	keyDone        bool // a task of its (origin, key) has succeeded
	keyBusy        bool // a task with its key is running
	quarantineBusy bool // a quarantined task is running
	restored       bool // it may have run before this store was restored from a copy
}

// next decides about a task that is due.
func (input *startInput) next() (action, ending) {
	r := input.record
	over, uncertain := input.now > cmp.Or(input.deadline, r.NotAfterMs), input.doubted || input.unheard
	switch {
	case input.restored && input.keyDone:
		return actionEndAsFirst, ending{}
	case input.restored:
		return actionEnd, ending{state: proto.DeadLetter, cause: proto.TaskRestored}
	case r.State == proto.Running && !input.handled && over && !uncertain:
		return actionEnd, ending{state: proto.DeadLetter, cause: proto.TaskCrashedUnasked}
	case r.State == proto.Running && !input.handled:
		return actionSkip, ending{}
	case r.State == proto.Running:
		return actionRecover, ending{}
	case input.keyDone:
		return actionEndAsFirst, ending{}
	case r.Cancel:
		t := cancelledStep(r)
		return actionEnd, ending{state: t.state, cause: t.cause}
	case over && uncertain, input.unheard:
		return actionSkip, ending{}
	case over:
		return actionEnd, ending{state: proto.Expired, cause: proto.TaskTooLate, reason: cmp.Or(r.Reason, r.Cause.Name())}
	case !input.handled, !input.allowed && input.doubted: // by a wrong clock the origin's membership may be over
		return actionSkip, ending{}
	case !input.allowed:
		return actionEnd, ending{state: proto.DeadLetter, cause: proto.TaskNotAllowed, code: proto.CodeDenied}
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
	t := transition{state: proto.Cancelled, cause: proto.TaskCancelledUnstarted}
	if starts(r) > 0 {
		t.cause = proto.TaskCancelledBetween
	}
	return t
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
	state      proto.TaskState
	cause      proto.TaskCause
	reason     string        // the detail of the cause: mostly what the handler said
	code       proto.Code    // of the refusal that ends it; 0: it is not refused
	wait       time.Duration // until the next start; RETRYING only
	spent      bool          // an attempt is spent
	abandoned  bool          // it counts as an abandon
	mayHaveRun bool          // it ends without a start on record, see Inbox.unrecorded
}

// limits bounds the cost of one task.
type limits struct {
	maxAttempts uint32
	maxAbandons uint32
}

// after decides the next state of a task whose run has ended. r is random in [0, 1). A
// success stands even if the handler had been told to stop: its effect has happened (I6).
func (l limits) after(rec *proto.Record, res *handler.Result, why stop, r float64) transition {
	once := rec.Mode == proto.AtMostOnce
	switch {
	case res.Outcome == handler.Success:
		t := transition{state: proto.Success, spent: true}
		t.cause, t.reason = cut(res)
		return t
	case res.Outcome == unusable:
		return transition{state: proto.DeadLetter, cause: proto.TaskUnusable, reason: res.Reason}
	case res.Outcome == handler.Fail && why == notStopped:
		return transition{state: proto.Failed, cause: proto.TaskRejected, reason: res.Reason, spent: true}
	case why == stopCancel:
		return transition{state: proto.Cancelled, cause: proto.TaskCancelledRunning, spent: true}
	case why == stopNode && once:
		return transition{state: proto.DeadLetter, cause: proto.TaskStoppedOnce, spent: true}
	case why == stopNode:
		return transition{state: proto.Accepted, cause: proto.TaskStopped}
	}
	if res.Outcome == handler.Unready && why == notStopped {
		return transition{state: proto.Retrying, cause: proto.TaskUnready, reason: res.Reason, wait: backoff(unreadyAs, r)}
	}
	if res.Outcome == handler.NoSpace && why == notStopped {
		return l.outOfSpace(rec, res, r)
	}
	last := rec.Attempts+1 >= l.maxAttempts || once
	t := transition{state: proto.Retrying, spent: true, cause: proto.TaskFailed, reason: res.Reason}
	if why == stopTimeout {
		t.cause = proto.TaskTimedOut
	}
	switch {
	case why == stopTimeout && last:
		t.state = proto.Timeout
	case last:
		t.state = proto.DeadLetter
	default:
		t.wait = backoff(rec.Attempts+1, r)
	}
	return t
}

// outOfSpace decides about a task that was stopped because there was no room for its
// output.
func (l limits) outOfSpace(rec *proto.Record, res *handler.Result, r float64) transition {
	t := transition{state: proto.Retrying, cause: proto.TaskNoRoom, reason: res.Reason, abandoned: true, wait: backoff(rec.Abandons+1, r)}
	switch {
	case rec.Mode == proto.AtMostOnce:
		t.state, t.wait, t.cause = proto.DeadLetter, 0, proto.TaskNoRoomOnce
	case rec.Abandons+1 >= l.maxAbandons:
		t.state, t.wait, t.cause = proto.DeadLetter, 0, proto.TaskNoRoomOften
	}
	return t
}

// cut returns the cause and detail of a success: none unless its output was truncated.
func cut(res *handler.Result) (proto.TaskCause, string) {
	if !res.Truncated {
		return 0, ""
	}
	return proto.TaskOutputCut, res.Reason
}

// unreadyAs is the number of the failure with the same backoff as a run that could not be
// started.
const unreadyAs = 5

// afterCrash decides about a task that was running when the process died (I7). probe is the
// handler's answer if its policy is probe.
func (l limits) afterCrash(rec *proto.Record, policy OnCrash, probe handler.ProbeResult, r float64) transition {
	t := transition{state: proto.DeadLetter, abandoned: true}
	switch {
	case rec.Mode == proto.AtMostOnce:
		t.cause = proto.TaskCrashedOnce
	case policy == OnCrashProbe && probe == handler.Done:
		t.state, t.cause = proto.Success, proto.TaskProbed
	case policy == OnCrashPark, policy == OnCrashProbe && probe != handler.NotDone:
		t.cause, t.reason = proto.TaskCrashedParked, string(policy)
	case rec.Abandons+1 >= l.maxAbandons:
		t.cause = proto.TaskCrashedOften
	default:
		t.state, t.wait, t.cause = proto.Retrying, backoff(rec.Abandons+1, r), proto.TaskCrashed
	}
	return t
}

const (
	baseBackoff = time.Second // after the first failure
	maxBackoff  = time.Minute
)

// backoff returns the delay after the n-th failure, n from 1. r is random in [0, 1).
func backoff(n uint32, r float64) time.Duration {
	d := maxBackoff
	if n <= 16 {
		d = min(d, baseBackoff<<(n-1))
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
