package outbox

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// The decisions of the outbox. They know no clock, disk, network or lock.

// backoff returns the wait after the n-th failed delivery, n from 1:
// min(limit, base·2^(n-1)) and up to half of that again. r is random in [0, 1).
func backoff(base, limit time.Duration, n int, r float64) time.Duration {
	d := limit
	if n < 1 {
		n = 1
	}
	if n <= 32 && base<<(n-1) > 0 {
		d = min(limit, base<<(n-1))
	}
	return d + time.Duration(r*float64(d)/2)
}

// An action is what an answer, or the time, does to an entry.
type action byte

const (
	retry         action = iota // it stays, and is tried again after a backoff; nothing is written
	spendAttempt                // likewise, and an attempt is spent, which is written
	accept                      // the other side has it
	end                         // it ends in a state
	drop                        // it has served its purpose
	sendBodyFirst               // its streamed body goes first
	recheckLater                // it is looked at again later
	noChange                    // it stays as it is
)

// A decision is an effect with what belongs to it.
type decision struct {
	action action
	state  proto.TaskState // of end
	at     int64           // of delay: Unix milliseconds
}

// A refusal as the ruling needs it.
type refusal struct {
	code                  proto.Code
	attempts              int  // spent so far
	limit                 int  // attempts allowed
	cancel                bool // a person wants the task stopped
	unknown               bool // the other side knows no such task
	expired               bool // the task's time is over by this node's clock, which is not doubted
	certainlyNotDelivered bool // the target certainly does not have it from an earlier link
}

// onRefusal rules on an entry that the other side did not take, by the table of
// the wire: what is transient stays and spends nothing; codes of a newer node
// are transient. That a task has expired only its home can say: the target's clock
// may be wrong (I14).
func onRefusal(part backlog.Part, f refusal) decision {
	switch part {
	case backlog.PartResult:
		return onResultRefused(f)
	case backlog.PartCancel:
		return onCancelRefused(f)
	}
	if state, ends := f.code.Ends(); ends && (f.code != proto.CodeExpired || f.expired) {
		return decision{action: end, state: state}
	}
	switch f.code {
	case proto.CodeDuplicate:
		return decision{action: accept}
	case proto.CodeNeedBody:
		return decision{action: sendBodyFirst}
	}
	if f.cancel && f.certainlyNotDelivered {
		return decision{action: end, state: proto.Cancelled}
	}
	if f.code != proto.CodeInternal {
		return decision{action: retry}
	}
	if f.attempts+1 >= f.limit {
		return decision{action: end, state: proto.DeadLetter}
	}
	return decision{action: spendAttempt}
}

// onResultRefused rules on a result that its home did not take. A home that has
// noted it, or has ended the task in another way, needs it no more. What no later
// try can change becomes a dead letter of this node, as does the result of a task
// that its home does not know. Everything else is tried again: also EXPIRED and
// DENIED, for a clock may be set right and a certificate renewed.
func onResultRefused(f refusal) decision {
	switch f.code {
	case proto.CodeDuplicate:
		return decision{action: drop}
	case proto.CodeStale:
		if !f.unknown {
			return decision{action: drop}
		}
		return decision{action: end, state: proto.DeadLetter}
	case proto.CodeNeedBody:
		return decision{action: sendBodyFirst}
	case proto.CodeBadSignature, proto.CodeBadForm, proto.CodeTooLarge:
		return decision{action: end, state: proto.DeadLetter}
	}
	return decision{action: retry}
}

// onCancelRefused: an owner that does not know the task, or will not listen, has
// answered.
func onCancelRefused(f refusal) decision {
	if _, ends := f.code.Ends(); ends {
		return decision{action: drop}
	}
	switch f.code {
	case proto.CodeDuplicate, proto.CodeStale, proto.CodeNoHandler:
		return decision{action: drop}
	}
	return decision{action: retry}
}

// A limit holds the times that onTime reckons with.
type limits struct {
	run    time.Duration // of a handler, beyond not_after
	result time.Duration // a result is offered so long after not_after
}

// giveUpAt returns when a task ends without a word of its target, Unix
// milliseconds.
func (l limits) giveUpAt(notAfter int64) int64 {
	return notAfter + (l.run + proto.Skew).Milliseconds()
}

// onDeadline rules on an entry whose time may be over (I3): a task that was never
// sent ends at not_after; one that may be running elsewhere only when its run
// and the skew of the clocks must be over.
func onDeadline(part backlog.Part, r *proto.Record, now int64, maybeSent bool, l limits) decision {
	last := l.giveUpAt(r.NotAfterMs)
	expired := decision{action: end, state: proto.Expired}
	switch {
	case r.State.Terminal():
		return decision{action: noChange}
	case r.State == proto.Indeterminate && now >= last:
		return decision{action: end, state: proto.DeadLetter}
	case part == backlog.PartResult:
		if until := r.NotAfterMs + l.result.Milliseconds(); now < until {
			return decision{action: recheckLater, at: until}
		}
		return expired
	case part == backlog.PartCancel && now >= last:
		return decision{action: drop}
	case part == backlog.PartCancel:
		return decision{action: recheckLater, at: last}
	case now >= last:
		return expired
	case r.State != proto.Pending || maybeSent:
		return decision{action: recheckLater, at: last}
	case now >= r.NotAfterMs:
		return expired
	}
	return decision{action: recheckLater, at: r.NotAfterMs}
}

// onCancel rules on a task that a person wants stopped: only what was never sent
// can be stopped here; else its owner is asked.
func onCancel(r *proto.Record, maybeSent bool) decision {
	switch {
	case r.State.Terminal():
		return decision{action: noChange}
	case r.State == proto.Pending && !maybeSent, r.State == proto.Indeterminate:
		return decision{action: end, state: proto.Cancelled}
	}
	return decision{action: sendBodyFirst}
}

// A assertion is what a result says about a task.
type assertion struct {
	from    proto.PeerID
	seq     proto.Seq
	state   proto.TaskState
	digest  []byte
	wasHome bool // from is, or was, the home of the queue that the task was sent to
}

// Causes in the events of a task that has ended.
const (
	causeExpired   = "not_after is over" // by the clock of its home alone
	causeCommitted = "result committed"
)

// TakesResult reports whether a result of r may still count: r has not ended, or it did
// by the clock of its home alone, and was not made anew since.
func TakesResult(r *proto.Record) bool {
	if !r.State.Terminal() {
		return true
	}
	if r.Status == StatusRedriven {
		return false
	}
	for _, e := range slices.Backward(r.Events) {
		if e.Cause == causeExpired || e.Cause == causeCommitted {
			return e.Cause == causeExpired
		}
	}
	return false
}

// onResult is the commit rule (I3, I4): a result counts only if the task has not
// ended, but by time alone, and only from its owner with the epoch that was granted,
// which for a task of a queue is its home, or one that was: no two have a task at once.
// What was committed once is committed again for the same digest.
func onResult(r *proto.Record, c assertion) decision {
	sent := bytes.Equal(r.Peer, c.from[:])
	switch {
	case r.Seq() != c.seq || !c.state.Terminal():
		return decision{action: drop}
	case !sent && !c.wasHome && strings.HasPrefix(r.Target, "queue:") && !r.State.Terminal():
		return decision{action: retry} // the queue may have moved, and that is not known here yet
	case !sent && !c.wasHome:
		return decision{action: drop}
	case TakesResult(r):
		return decision{action: accept}
	case r.State == c.state && bytes.Equal(r.ResultDigest, c.digest):
		return decision{action: noChange}
	}
	return decision{action: drop}
}

// endAction is where a record that has ended is kept. One that goes to another queue is kept
// whole until its successor is made.
func endAction(r *proto.Record) backlog.Action {
	if r.State == proto.Cancelled && r.MovesTo != "" {
		return backlog.ToDead
	}
	return endActionFor(r.State)
}

// endActionFor returns where a task that ended in this state is kept: what went as
// somebody wanted among the done, the rest for a person to look at.
func endActionFor(s proto.TaskState) backlog.Action {
	if s == proto.Success || s == proto.Cancelled {
		return backlog.ToDone
	}
	return backlog.ToDead
}
