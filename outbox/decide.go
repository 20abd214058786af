package outbox

import (
	"bytes"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// The decisions of the outbox: pure functions without clock, disk, network or lock.

const (
	baseBackoff = time.Second // after the first failed delivery
	maxBackoff  = 5 * time.Minute
)

// backoff returns the wait after the n-th failed delivery, n from 1: min(maxBackoff,
// baseBackoff·2^(n-1)) plus up to half of that. r is random in [0, 1).
func backoff(n int, r float64) time.Duration {
	d, n := maxBackoff, max(n, 1)
	if n <= 16 {
		d = min(d, baseBackoff<<(n-1))
	}
	return d + time.Duration(r*float64(d)/2)
}

// An action is the effect of an answer, or of elapsed time, on an entry.
type action byte

const (
	retry         action = iota // it is retried after a backoff; nothing is written
	spendAttempt                // likewise, and an attempt is spent and written
	accept                      // the peer has it
	end                         // it ends in a state
	drop                        // it is no longer needed
	sendBodyFirst               // its streamed body is sent first; in onCancel: the owner is asked; in Commit: the result needs its body
	recheckLater                // it is checked again later
	noChange                    // it stays as it is
)

// A decision is an action with its parameters.
type decision struct {
	action action
	state  proto.TaskState // of end
	at     int64           // of recheckLater: Unix milliseconds
}

// A refusal is the input of onRefusal.
type refusal struct {
	code                  proto.Code
	attempts              int  // attempts spent so far
	limit                 int  // attempts allowed
	cancel                bool // cancellation was requested
	unknown               bool // the peer does not know the task
	expired               bool // the task has expired by this node's clock, which is not doubted
	certainlyNotDelivered bool // the target certainly did not receive it over an earlier link
}

// onRefusal decides about an entry that the peer refused, by the table of the
// wire protocol. After a transient code the entry stays and spends no attempt; an
// unknown code, from a newer node, counts as transient. Only the home may decide
// that a task has expired: the target's clock may be wrong (I14).
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

// onResultRefused decides about a result that its home refused. A home that has
// recorded it, or has ended the task in another way, no longer needs it. A
// refusal that no retry can change makes it a dead letter of this node, as does a
// home that does not know the task. Everything else is retried, even EXPIRED and
// DENIED: a clock may be corrected and a certificate renewed.
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

// onCancelRefused decides about a refused cancellation. An owner that does not
// know the task, or refuses the request, has answered.
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

// limits holds the durations that onDeadline uses.
type limits struct {
	run    time.Duration // longest run of a handler after not_after
	result time.Duration // how long after not_after a result is offered
}

// giveUpAt returns when a task ends without an answer from its target, in Unix
// milliseconds.
func (l limits) giveUpAt(notAfter int64) int64 {
	return notAfter + (l.run + proto.Skew).Milliseconds()
}

// onDeadline decides about an entry that may have expired (I3). A task that was
// never sent ends at not_after; one that may be running elsewhere ends only after
// its longest run and the largest clock skew.
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

// onCancel decides about a task whose cancellation was requested: only a task
// that was never sent can be canceled here; for any other, its owner is asked.
func onCancel(r *proto.Record, maybeSent bool) decision {
	switch {
	case r.State.Terminal():
		return decision{action: noChange}
	case r.State == proto.Pending && !maybeSent, r.State == proto.Indeterminate:
		return decision{action: end, state: proto.Cancelled}
	}
	return decision{action: sendBodyFirst}
}

// An assertion is the part of a result that the commit rule checks.
type assertion struct {
	from    proto.PeerID
	seq     proto.Seq
	state   proto.TaskState
	digest  []byte
	wasHome bool // from is, or was, the home of the queue that the task was sent to
}

// TakesResult reports whether a result for r may still count: r has not ended, or
// it ended by the clock of its home alone and was not redriven since.
func TakesResult(r *proto.Record) bool {
	if !r.State.Terminal() {
		return true
	}
	if r.Status == StatusRedriven {
		return false
	}
	for _, e := range slices.Backward(r.Events) {
		switch e.Cause {
		case proto.TaskExpired, proto.TaskExpiredAccepted, proto.TaskExpiredStarted:
			return true
		case proto.TaskCommitted:
			return false
		}
	}
	return false
}

// onResult is the commit rule (I3, I4). A result counts only if the task has not
// ended, or ended by time alone, and only from its owner with the granted epoch.
// For a task of a queue the owner is the current home or an earlier one: no two
// have a task at once. Committing the same digest again has no effect.
func onResult(r *proto.Record, c assertion) decision {
	sent := bytes.Equal(r.Peer, c.from[:])
	switch _, queued := proto.QueueOf(r.Target); {
	case r.Seq() != c.seq || !c.state.Terminal():
		return decision{action: drop}
	case !sent && !c.wasHome && queued && !r.State.Terminal():
		return decision{action: retry} // the queue may have moved without this node knowing yet
	case !sent && !c.wasHome:
		return decision{action: drop}
	case TakesResult(r):
		return decision{action: accept}
	case r.State == c.state && bytes.Equal(r.ResultDigest, c.digest):
		return decision{action: noChange}
	}
	return decision{action: drop}
}

// endAction returns where an ended record is kept. A task that moves to another
// queue is kept whole until its successor exists.
func endAction(r *proto.Record) backlog.Action {
	if moving(r) {
		return backlog.ToDead
	}
	return endActionFor(r.State)
}

// moving reports whether r ended to move to another queue. One that was asked to
// stop for that and ended in any other way stays where it is.
func moving(r *proto.Record) bool { return r.State == proto.Cancelled && r.MovesTo != "" }

// endActionFor returns where a task that ended in this state is kept: with the
// done ones if it ended as intended, otherwise with the dead letters for a person
// to look at.
func endActionFor(s proto.TaskState) backlog.Action {
	if s == proto.Success || s == proto.Cancelled {
		return backlog.ToDone
	}
	return backlog.ToDead
}
