package ownership

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// authorize finds the task that k refers to and checks whether from may act on it: the
// ruling's code is zero if it may. ts is nil unless the task is here.
func (h *Home) authorize(from proto.PeerID, k claim) (ts *taskState, r *proto.Ruling) {
	ts = h.tasks[k.task]
	r = k.ruling(proto.CodeOK)
	switch {
	case ts == nil:
		h.answerElsewhere(k, r)
		if r.Code != proto.CodeMoved {
			h.out.ignored(k.task, from, k.epoch, "the task is not here")
		}
	case !ts.matches(from, k):
		r.Code, r.State, r.Generation = proto.CodeStale, ts.state, ts.gen
		if ts.free() && k.epoch.Compare(ts.epoch) > 0 {
			// The record of that lease may have been lost. No later one is known here, so
			// the owner keeps what it has until there is one, which it may adopt.
			r.Code = proto.CodeBusy
		}
		cause := wire.LeaseOlder
		if k.epoch.Compare(ts.epoch) >= 0 {
			cause = wire.LeaseNeverGranted
		}
		h.emit(Event{Kind: EventConflict, Peer: from, Epoch: k.epoch, Cause: cause}, ts)
	default:
		r.Generation = ts.gen
		if ts.boot == (proto.BootID{}) {
			ts.boot = k.boot
			h.put(ts)
		}
	}
	return ts, r
}

// answerElsewhere answers about a task that is not here.
func (h *Home) answerElsewhere(k claim, r *proto.Ruling) {
	if entry := h.transit.byID[k.task]; entry != nil {
		r.Code, r.Home, r.Generation = proto.CodeMoved, slices.Clone(entry.home[:]), entry.gen
		return
	}
	if x := h.ended.find(k.task); x != nil {
		r.Code, r.State, r.Generation = proto.CodeStale, x.state, x.gen
		return
	}
	// It may be in transit from an old home, or forgotten: the owner keeps what it has.
	r.Code = proto.CodeBusy
}

// touch records a sign of life of the owner of ts and extends its lease, even one that is
// over if no other node was granted the task since.
func (h *Home) touch(ts *taskState) {
	ts.mem.leaseUntil = h.now.Mono + h.period(ts)
	ts.mem.acked, ts.mem.silentSince = true, 0
	if ts.mem.lapsed {
		ts.mem.lapsed = false
		h.event(EventRevived, ts, ts.owner, "")
	}
	if ts.state == proto.Indeterminate {
		ts.state = proto.Running
		h.put(ts)
	}
	h.reschedule(ts)
}

// OnGranted takes the answers of an owner to grants.
func (h *Home) OnGranted(from proto.PeerID, m *proto.Granted, now Now) Output {
	h.beginInput(now)
	for _, t := range m.GetTaken() {
		k, ok := claimFrom(t.GetClaim())
		if !ok {
			continue
		}
		if t.Code == proto.CodeOK {
			if ts, r := h.authorize(from, k); r.Code == proto.CodeOK {
				h.touch(ts)
				h.members.took(from)
				h.event(EventTaken, ts, from, "")
			}
			continue
		}
		h.handleDeclined(from, k, t)
	}
	return h.endInput()
}

// handleDeclined takes back a grant that its receiver declines. A node that declines has no
// boot id to send.
func (h *Home) handleDeclined(from proto.PeerID, k claim, t *proto.Taken) {
	ts := h.tasks[k.task]
	if ts == nil || ts.epoch != k.epoch || ts.owner != from || ts.token != k.token || ts.released || ts.permitted() || ts.mem.acked {
		h.out.ignored(k.task, from, k.epoch, "there is no grant that it could decline")
		return
	}
	seen := proto.Seq{Boot: t.SeenBoot, Counter: t.SeenCounter}
	if t.Code == proto.CodeStale && seen.Compare(k.epoch) >= 0 && seen.Boot <= h.now.plausibleBoot() && h.epochs.raise(seen.Boot) {
		h.epochs.put(&h.out, h.self)
	}
	h.emit(Event{Kind: EventDeclined, Peer: from, Epoch: ts.epoch, Code: t.Code, Detail: t.Detail}, ts)
	ts.recordGrantEnd("declined: "+t.Code.Name(), h.now.Wall)
	ts.state, ts.released, ts.mem.lapsed = proto.Pending, true, false
	if ts.cancel {
		h.end(ts, ts.endCancelled())
		return
	}
	h.put(ts)
	wait := h.cfg.Lease
	if t.RetryAfterMs > 0 {
		wait = min(wait, msec(t.RetryAfterMs))
	}
	switch t.Code {
	case proto.CodeStale:
		if seen.Compare(k.epoch) < 0 || h.epochs.boot <= seen.Boot { // it knows a later home, which this one has lost, or sends what is impossible
			wait = h.cfg.Lease
		} else {
			wait = h.cfg.Heartbeat // the next epoch is above the one it knows
		}
		ts.mem.dueAt, ts.mem.lastFailed = h.now.Mono+wait, from
		h.members.declinedStale(from, ts.task.Kind, ts.mem.dueAt)
	case proto.CodeDraining:
		h.members.backOff(from, "", h.now.Mono+wait)
	default:
		ts.mem.queue.usage.Stalled(from, ts.task.Kind, h.now.Mono)
		h.members.backOff(from, ts.task.Kind, h.now.Mono+wait)
	}
	h.reschedule(ts)
}

// OnStart takes a request to start tasks with mode at_most_once. A permit is durable before
// the answer is sent.
func (h *Home) OnStart(from proto.PeerID, m *proto.Start, now Now) Output {
	o := h.beginInput(now)
	reply := new(proto.Permit)
	for _, cm := range m.GetClaims() {
		k, ok := claimFrom(cm)
		if !ok {
			continue
		}
		ts, r := h.authorize(from, k)
		if r.Code == proto.CodeOK && ts.cancel && !ts.permitted() {
			r.Code, r.State = proto.CodeStale, proto.Cancelled
			h.end(ts, ts.endCancelled())
		}
		if r.Code == proto.CodeOK && !ts.task.atMostOnce() {
			r.Code, r.State = proto.CodeBadForm, ts.state // with a permit it would never be reclaimed from a dead owner
			h.out.ignored(k.task, from, k.epoch, "it needs no permit to start")
		}
		if r.Code == proto.CodeOK {
			h.touch(ts)
			if !ts.permitted() {
				ts.state = proto.Running
				h.put(ts)
				h.event(EventPermitted, ts, from, "")
			}
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	if len(reply.Rulings) > 0 {
		o.send(from, proto.TypePermit, reply)
	}
	return h.endInput()
}

// OnRenew takes the renewals of an owner and answers those that do not count.
func (h *Home) OnRenew(from proto.PeerID, m *proto.Renew, now Now) Output {
	o := h.beginInput(now)
	reply := &proto.Renewed{Number: m.GetNumber()}
	period := time.Duration(0) // shortest of the renewed leases
	for _, cm := range m.GetClaims() {
		k, ok := claimFrom(cm)
		if !ok {
			continue
		}
		ts, r := h.authorize(from, k)
		if r.Code == proto.CodeOK {
			h.touch(ts)
			if cm.GetFetch() {
				o.BodyOffers = append(o.BodyOffers, BodyOffer{Task: k.task, Owner: from})
			}
			if p := h.period(ts); period == 0 || p < period {
				period = p
			}
			if k.gen >= ts.gen {
				continue // otherwise it counts too, and the answer carries the generation
			}
		}
		if ts == nil && h.ended.find(k.task).byResult(from, k) {
			r.Code = proto.CodeDuplicate // the answer to its result is on its way
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	reply.LeaseMs = uint32(cmp.Or(period, h.cfg.Lease).Milliseconds())
	s := h.epochs.watermark(from)
	reply.SettledBoot, reply.SettledCounter = s.Boot, s.Counter
	o.send(from, proto.TypeRenewed, reply)
	return h.endInput()
}

// A Result is a result for a task of this home, verified and opened.
type Result struct {
	Claim  *proto.Claim
	State  proto.TaskState
	Reason string
	Digest []byte
	Absent bool // its body is not here yet, or not verified
}

// OnResult applies the commit rule (I3, I4): a result ends its task if it matches the
// newest grant and all of it is here; one that matches but lacks its body is answered
// NEED_BODY. The ruling is the answer to the sender, once the output is durable. Code zero
// is COMMITTED; a committed result is confirmed again.
func (h *Home) OnResult(from proto.PeerID, in Result, now Now) (*proto.Ruling, Output) {
	h.beginInput(now)
	k, ok := claimFrom(in.Claim)
	if !ok || !in.State.Terminal() {
		r := k.ruling(proto.CodeBadForm)
		h.out.ignored(k.task, from, k.epoch, "it is not a result")
		return r, h.endInput()
	}
	ts, r := h.authorize(from, k)
	switch {
	case ts == nil:
		if x := h.ended.find(k.task); x != nil && r.Code == proto.CodeStale {
			if x.byResult(from, k) && x.state == in.State && bytes.Equal(x.digest, in.Digest) {
				r.Code = proto.CodeOK
			} else {
				h.out.orphan(from, k, in)
			}
		}
	case r.Code == proto.CodeOK && in.Absent:
		r.Code = proto.CodeNeedBody
		h.touch(ts)
	case r.Code == proto.CodeOK:
		if ts.mem.lapsed {
			h.event(EventLate, ts, from, "")
		}
		ts.recordGrantEnd(EndedByResult, h.now.Wall)
		ts.mem.queue.usage.Ended(from, ts.task.Kind, h.now.Mono)
		digest := bytes.Clone(in.Digest)
		if digest == nil {
			digest = []byte{}
		}
		h.end(ts, End{State: in.State, Reason: in.Reason, Digest: digest, From: from, Epoch: k.epoch})
	case r.Code == proto.CodeStale:
		h.out.orphan(from, k, in)
	}
	return r, h.endInput()
}

// EndedByResult is why a grant ended whose result counted.
const EndedByResult = "result"

// RefuseResult takes back the lease of an owner whose result is rejected for good, and
// tells the owner: the task goes to another node.
func (h *Home) RefuseResult(from proto.PeerID, id proto.TaskID, cause string, now Now) Output {
	o := h.beginInput(now)
	ts := h.tasks[id]
	if ts == nil || ts.owner != from || ts.free() || ts.released {
		h.out.ignored(id, from, proto.Seq{}, "a rejected result from a node without a lease")
		return h.endInput()
	}
	k := ts.claim()
	r := k.ruling(proto.CodeStale)
	r.State, r.Generation = ts.state, ts.gen
	o.send(from, proto.TypeCommitted, &proto.Committed{Rulings: []*proto.Ruling{r}})
	h.members.backOff(from, "", h.now.Mono+h.cfg.MaxBackoff)
	h.handleReleased(ts, from, &proto.Released{Cause: proto.CauseCrashed, Reason: "its result is refused: " + cause})
	return h.endInput()
}

// OnRelease takes leases back that their owners release.
func (h *Home) OnRelease(from proto.PeerID, m *proto.Release, now Now) Output {
	o := h.beginInput(now)
	reply := new(proto.ReleaseReply)
	for _, rm := range m.GetReleased() {
		k, ok := claimFrom(rm.GetClaim())
		if !ok {
			continue
		}
		ts, r := h.authorize(from, k)
		if r.Code == proto.CodeOK {
			h.handleReleased(ts, from, rm)
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	if len(reply.Rulings) > 0 {
		o.send(from, proto.TypeReleased, reply)
	}
	return h.endInput()
}

// handleReleased decides what becomes of ts when its owner has released it.
func (h *Home) handleReleased(ts *taskState, from proto.PeerID, m *proto.Released) {
	why := m.Cause.Name()
	h.emit(Event{Kind: EventReleased, Peer: from, Epoch: ts.epoch, Cause: wire.LeaseCause(why), Detail: m.Reason}, ts)
	ts.recordGrantEnd(why, h.now.Wall)
	ts.reason, ts.released, ts.mem.lapsed = proto.Clip(m.Reason, proto.MaxReason), true, false
	h.backOffAfter(ts, from, m)
	to := ts.after(m)
	if m.Cause == proto.CauseExpired && !ts.lost && h.now.past(ts.task.NotAfter-h.cfg.Skew.Milliseconds()) {
		to = transition{state: proto.Expired, cause: proto.TaskTooLate, reason: ts.reason}
	}
	ts.attempts += to.attempts
	ts.abandons += to.abandons
	if ts.cancel && to.state != proto.DeadLetter {
		to = transition{state: proto.Cancelled, cause: proto.TaskCancelledBetween}
	}
	if to.state.Terminal() {
		h.end(ts, End{State: to.state, Cause: to.cause, Reason: to.reason})
		return
	}
	ts.state = to.state
	if to.attempts+to.abandons > 0 {
		ts.mem.dueAt = h.now.Mono + max(h.cfg.backoff(ts.attempts+ts.abandons), msec(m.RetryAfterMs))
	}
	h.put(ts)
	h.reschedule(ts)
}

// backOffAfter keeps a node that releases a task unstarted from being asked again at once.
func (h *Home) backOffAfter(ts *taskState, from proto.PeerID, m *proto.Released) {
	switch m.Cause {
	case proto.CauseStopped:
		h.members.backOff(from, ts.task.Kind, h.now.Mono+h.cfg.Heartbeat)
	case proto.CauseExpired: // its clock and ours differ a lot
		ts.mem.dueAt = h.now.Mono + h.cfg.Lease
		h.members.backOff(from, ts.task.Kind, h.now.Mono+h.cfg.Lease)
	case proto.CauseFailed, proto.CauseTimeout, proto.CauseCrashed, proto.CauseParked:
		ts.mem.lastFailed = from
	default:
		ts.mem.queue.usage.Stalled(from, ts.task.Kind, h.now.Mono)
		h.members.backOff(from, ts.task.Kind, h.now.Mono+min(max(msec(m.RetryAfterMs), h.cfg.Heartbeat), h.cfg.MaxBackoff))
	}
}

// A transition is the next state of a task.
type transition struct {
	state              proto.TaskState
	cause              proto.TaskCause // of an end
	reason             string          // the detail of the cause
	attempts, abandons uint32          // spent
}

const (
	maxAttempts = 3  // of a task that sets no limit
	maxAbandons = 10 // leases that a task may lose
)

// after decides the next state of a task whose owner released the lease. A lease that ended
// by no fault of the task spends nothing. A task that may be started only once, and may
// have been started, becomes a dead letter for an operator.
func (ts *taskState) after(m *proto.Released) transition {
	again := transition{state: proto.Retrying}
	dead := func(cause proto.TaskCause, reason string) transition {
		return transition{state: proto.DeadLetter, cause: cause, reason: reason}
	}
	limit := cmp.Or(ts.task.Options.GetMaxAttempts(), maxAttempts)
	if most := m.GetMaxAttempts(); most > 0 { // at most what its handler allows
		limit = min(limit, most)
	}
	cause := m.GetCause()
	switch cause {
	case proto.CauseUnspecified, proto.Unstarted, proto.CauseExpired:
		return transition{state: proto.Pending}
	case proto.CauseStopped:
		if ts.task.atMostOnce() {
			return dead(proto.TaskStoppedOnce, "")
		}
		return transition{state: proto.Pending}
	case proto.CauseFailed, proto.CauseTimeout:
		again.attempts = 1
		if !ts.task.atMostOnce() && ts.attempts+1 < limit {
			return again
		}
		again.state = proto.DeadLetter
		if cause == proto.CauseTimeout {
			again.state = proto.Timeout
		}
		again.cause, again.reason = proto.TaskAttemptsUsed, ts.reason
		return again
	case proto.CauseCrashed:
		switch {
		case ts.task.atMostOnce():
			return dead(proto.TaskAbandonedOnce, ts.reason)
		case ts.abandons+1 >= maxAbandons:
			return dead(proto.TaskAbandonedOften, ts.reason)
		}
		again.abandons = 1
		return again
	case proto.CauseParked:
		return dead(proto.TaskCrashedParked, "")
	default: // its node does not know, or sent an unknown cause
		if ts.task.atMostOnce() && ts.state != proto.Accepted {
			return dead(proto.TaskForgottenOnce, "")
		}
		return transition{state: proto.Pending}
	}
}

// OnStatusReply takes the leases that an owner still works on.
func (h *Home) OnStatusReply(from proto.PeerID, m *proto.StatusReply, now Now) Output {
	h.beginInput(now)
	for _, s := range m.GetHeld() {
		if k, ok := claimFrom(s.GetClaim()); ok {
			if ts, r := h.authorize(from, k); r.Code == proto.CodeOK {
				h.touch(ts)
			}
		}
	}
	return h.endInput()
}
