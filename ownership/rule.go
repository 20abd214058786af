package ownership

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// authorize finds what from speaks about, and whether it may: the answer's code is zero
// if its word counts. c is nil unless the cell is here.
func (h *Home) authorize(from proto.PeerID, k claim) (ts *taskState, r *proto.Ruling) {
	ts = h.cells[k.task]
	r = k.ruling(proto.CodeOK)
	switch {
	case ts == nil:
		h.answerElsewhere(k, r)
		if r.Code != proto.CodeMoved {
			h.ignored(k.task, from, k.epoch, "its cell is not here")
		}
	case !ts.matches(from, k, h.cfg.mutation):
		r.Code, r.State, r.Generation = proto.CodeStale, ts.state, ts.gen
		cause := "an older lease"
		if k.epoch.Compare(ts.epoch) >= 0 {
			cause = "not a lease that was given"
		}
		h.out.Events = append(h.out.Events, Event{Kind: EventConflict, Task: k.task, Queue: ts.task.Queue, Peer: from, Epoch: k.epoch, Cause: cause})
	default:
		r.Generation = ts.gen
		if ts.boot == (proto.BootID{}) {
			ts.boot = k.boot
			h.put(ts)
		}
	}
	return ts, r
}

// ignored counts what changes nothing.
func (h *Home) ignored(id proto.TaskID, from proto.PeerID, epoch proto.Seq, cause string) {
	h.out.Events = append(h.out.Events, Event{Kind: EventIgnored, Task: id, Peer: from, Epoch: epoch, Cause: cause})
}

// answerElsewhere answers about a task whose cell is not here.
func (h *Home) answerElsewhere(k claim, r *proto.Ruling) {
	if entry := h.moved[k.task]; entry != nil {
		r.Code, r.Home, r.Generation = proto.CodeMoved, slices.Clone(entry.home[:]), entry.gen
		return
	}
	if e := h.ended[k.task]; e != nil {
		x := e.Value.(*endedTask)
		r.Code, r.State, r.Generation = proto.CodeStale, x.state, x.gen
		return
	}
	// It may be on its way here from an old home, or have been forgotten: the owner
	// keeps what it has.
	r.Code = proto.CodeBusy
}

// touch notes a sign of life of the owner of c: its lease goes on, also one that was
// over if nobody else was granted the task meanwhile.
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

// OnGranted takes what an owner says to grants.
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
				h.event(EventTaken, ts, from, "")
			}
			continue
		}
		h.handleDeclined(from, k, t)
	}
	return h.endInput()
}

// handleDeclined takes a grant back that its receiver does not want. Whoever declines has
// no boot id to show.
func (h *Home) handleDeclined(from proto.PeerID, k claim, t *proto.Taken) {
	ts := h.cells[k.task]
	if ts == nil || ts.epoch != k.epoch || ts.owner != from || ts.token != k.token || ts.released || ts.permitted() || ts.mem.acked {
		h.ignored(k.task, from, k.epoch, "no grant that it could decline")
		return
	}
	seen := proto.Seq{Boot: t.SeenBoot, Counter: t.SeenCounter}
	if t.Code == proto.CodeStale && seen.Compare(k.epoch) >= 0 && seen.Boot < maxBoot {
		h.raiseBoot(seen.Boot)
	}
	h.event(EventDeclined, ts, from, t.Code.Name()+": "+t.Detail)
	ts.recordGrantEnd("declined: "+t.Code.Name(), h.now.Wall)
	ts.state, ts.released, ts.mem.lapsed = proto.Pending, true, false
	if ts.cancel && h.cfg.mutation != cancelForgotten {
		h.end(ts, End{State: proto.Cancelled, Reason: "cancelled before it started"})
		return
	}
	h.put(ts)
	wait := h.cfg.Lease
	if t.RetryAfterMs > 0 {
		wait = min(wait, msec(t.RetryAfterMs))
	}
	switch t.Code {
	case proto.CodeStale:
		if seen.Compare(k.epoch) < 0 || h.boot <= seen.Boot { // it knows a later home, which this one has forgotten, or says what cannot be
			wait = h.cfg.Lease
		} else {
			wait = h.cfg.Heartbeat // the next epoch is above what it knows
		}
		h.backOff(from, ts.task.Kind, wait)
	case proto.CodeDraining:
		h.backOff(from, "", wait)
	default:
		h.backOff(from, ts.task.Kind, wait)
	}
	h.reschedule(ts)
}

// maxBoot is far beyond any number of a start, which is at most the time in
// seconds: a member must not use up the numbers.
const maxBoot = 1 << 40

// raiseBoot lets the epochs of this home go on above a boot number. The batch of this
// output carries it.
func (h *Home) raiseBoot(boot uint64) {
	if h.boot > boot {
		return
	}
	h.boot, h.counter = boot+1, 0
	h.out.put(homeBootKey(h.self), &proto.HomeMark{Home: h.self[:], Boot: h.boot})
}

// OnStart is asked for leave to start tasks of mode at_most_once. What is permitted
// is durable before the answer leaves.
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
			h.end(ts, End{State: proto.Cancelled, Reason: "cancelled before it started"})
		}
		if r.Code == proto.CodeOK && !ts.task.atMostOnce() {
			r.Code, r.State = proto.CodeBadForm, ts.state // with leave nobody would take it back from a dead owner
			h.ignored(k.task, from, k.epoch, "it needs no leave to start")
		}
		if r.Code == proto.CodeOK {
			h.touch(ts)
			if !ts.permitted() {
				ts.state = proto.Running
				if h.cfg.mutation != permitVolatile {
					h.put(ts)
				}
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
	period := time.Duration(0) // the shortest of those that are renewed
	for _, cm := range m.GetClaims() {
		k, ok := claimFrom(cm)
		if !ok {
			continue
		}
		ts, r := h.authorize(from, k)
		if r.Code == proto.CodeOK || h.cfg.mutation == renewUnchecked && ts != nil {
			h.touch(ts)
			if cm.GetFetch() {
				o.BodyOffers = append(o.BodyOffers, BodyOffer{Task: k.task, Owner: from})
			}
			if p := h.period(ts); period == 0 || p < period {
				period = p
			}
			if r.Code == proto.CodeOK && k.gen >= ts.gen {
				continue
			}
			r.Code = proto.CodeOK // it counts, and tells the generation
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	reply.LeaseMs = uint32(cmp.Or(period, h.cfg.Lease).Milliseconds())
	s := h.watermarkFor(from)
	reply.SettledBoot, reply.SettledCounter = s.Boot, s.Counter
	o.send(from, proto.TypeRenewed, reply)
	return h.endInput()
}

// A Result is a result that came for a task of this home, checked and opened.
type Result struct {
	Claim  *proto.Claim
	State  proto.TaskState
	Reason string
	Digest []byte
	Absent bool // its body is not here yet, or not looked through
}

// OnResult is the commit rule (I3, I4): a result ends its task if it fits the newest
// grant, and all of it is here: until then one that fits is answered NEED_BODY. The ruling is the answer to its sender, once the output is durable: code
// zero is COMMITTED, and what was committed is committed again.
func (h *Home) OnResult(from proto.PeerID, in Result, now Now) (*proto.Ruling, Output) {
	h.beginInput(now)
	k, ok := claimFrom(in.Claim)
	if !ok || !in.State.Terminal() {
		r := k.ruling(proto.CodeBadForm)
		h.ignored(k.task, from, k.epoch, "it is no result")
		return r, h.endInput()
	}
	ts, r := h.authorize(from, k)
	switch {
	case ts == nil:
		if e := h.ended[k.task]; e != nil && r.Code == proto.CodeStale {
			x := e.Value.(*endedTask)
			same := x.epoch == k.epoch && x.owner == from && x.state == in.State && x.digest != nil && bytes.Equal(x.digest, in.Digest)
			switch {
			case same:
				r.Code = proto.CodeOK
			case h.cfg.mutation == endedAgain && x.epoch.Compare(k.epoch) <= 0:
				r.Code, x.state, x.digest = proto.CodeOK, in.State, bytes.Clone(in.Digest)
				h.out.Ends = append(h.out.Ends, End{Task: k.task, State: in.State, Digest: in.Digest, From: from, Epoch: k.epoch})
			default:
				h.orphan(from, k, in)
			}
		}
	case r.Code == proto.CodeOK && in.Absent:
		r.Code = proto.CodeNeedBody
		h.touch(ts)
	case r.Code == proto.CodeOK:
		if ts.mem.lapsed {
			h.event(EventLate, ts, from, "nobody else was granted it")
		}
		ts.recordGrantEnd(EndedByResult, h.now.Wall)
		digest := bytes.Clone(in.Digest)
		if digest == nil {
			digest = []byte{}
		}
		h.end(ts, End{State: in.State, Reason: in.Reason, Digest: digest, From: from, Epoch: k.epoch})
	case r.Code == proto.CodeStale:
		h.orphan(from, k, in)
	}
	return r, h.endInput()
}

// EndedByResult is why a grant is over whose result counts.
const EndedByResult = "result"

func (h *Home) orphan(from proto.PeerID, k claim, in Result) {
	h.out.Orphans = append(h.out.Orphans, Orphan{Task: k.task, From: from, Epoch: k.epoch, State: in.State, Digest: in.Digest})
}

// RefuseResult takes the lease of a task back whose owner brings a result that is refused
// for good, and tells it so: the task goes to another node.
func (h *Home) RefuseResult(from proto.PeerID, id proto.TaskID, cause string, now Now) Output {
	o := h.beginInput(now)
	ts := h.cells[id]
	if ts == nil || ts.owner != from || ts.free() || ts.released {
		h.ignored(id, from, proto.Seq{}, "a refused result of who has no lease")
		return h.endInput()
	}
	k := ts.claim()
	r := k.ruling(proto.CodeStale)
	r.State, r.Generation = ts.state, ts.gen
	o.send(from, proto.TypeCommitted, &proto.Committed{Rulings: []*proto.Ruling{r}})
	h.backOff(from, "", h.cfg.MaxBackoff)
	h.handleReleased(ts, from, &proto.Released{Cause: proto.CauseCrashed, Reason: "its result is refused: " + cause})
	return h.endInput()
}

// OnRelease takes leases back whose owners say that they are over.
func (h *Home) OnRelease(from proto.PeerID, m *proto.Release, now Now) Output {
	o := h.beginInput(now)
	reply := new(proto.ReleaseReply)
	for _, rm := range m.GetReleased() {
		k, ok := claimFrom(rm.GetClaim())
		if !ok {
			continue
		}
		ts, r := h.authorize(from, k)
		if h.cfg.mutation == releaseUnchecked && ts != nil {
			r.Code = proto.CodeOK
		}
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

// handleReleased decides where c goes when its owner gave it back.
func (h *Home) handleReleased(ts *taskState, from proto.PeerID, m *proto.Released) {
	why := strings.TrimPrefix(m.Cause.String(), "RELEASE_CAUSE_") // a newer node may have causes that this one has no word for
	h.event(EventReleased, ts, from, why+": "+m.Reason)
	ts.recordGrantEnd(why, h.now.Wall)
	ts.reason, ts.released, ts.mem.lapsed = proto.Clip(m.Reason, proto.MaxReason), true, false
	h.backOffAfter(ts, from, m)
	to := ts.after(m, h.cfg)
	if m.Cause == proto.CauseExpired && h.now.past(ts.task.NotAfter-h.cfg.Skew.Milliseconds()) {
		to = transition{state: proto.Expired, reason: ts.reason}
	}
	ts.attempts += to.attempts
	ts.abandons += to.abandons
	if ts.cancel && to.state != proto.DeadLetter {
		to = transition{state: proto.Cancelled, reason: "cancelled"}
	}
	if to.state.Terminal() {
		h.end(ts, End{State: to.state, Reason: cmp.Or(to.reason, ts.reason)})
		return
	}
	ts.state = to.state
	if to.attempts+to.abandons > 0 {
		ts.mem.dueAt = h.now.Mono + max(h.cfg.backoff(ts.attempts+ts.abandons), msec(m.RetryAfterMs))
	}
	h.put(ts)
	h.reschedule(ts)
}

// backOffAfter keeps a node that gives back what it has not started from being asked at
// once again.
func (h *Home) backOffAfter(ts *taskState, from proto.PeerID, m *proto.Released) {
	switch m.Cause {
	case proto.CauseStopped:
		h.backOff(from, ts.task.Kind, h.cfg.Heartbeat)
	case proto.CauseExpired: // its clock and ours are far apart
		ts.mem.dueAt = h.now.Mono + h.cfg.Lease
		h.backOff(from, ts.task.Kind, h.cfg.Lease)
	case proto.CauseFailed, proto.CauseTimeout, proto.CauseCrashed, proto.CauseParked:
		ts.mem.lastFailed = from
	default:
		h.backOff(from, ts.task.Kind, min(max(msec(m.RetryAfterMs), h.cfg.Heartbeat), h.cfg.MaxBackoff))
	}
}

// A transition is where a task goes.
type transition struct {
	state              proto.TaskState
	reason             string
	attempts, abandons uint32 // that it spends
}

// after decides where a task goes whose owner gave the lease back. A lease that
// ended by no fault of the task spends nothing; what may have been started once,
// and may be started once only, goes to a person.
func (ts *taskState) after(m *proto.Released, cfg Config) transition {
	again := transition{state: proto.Retrying}
	dead := func(reason string) transition {
		return transition{state: proto.DeadLetter, reason: reason}
	}
	limit := ts.task.MaxAttempts
	if limit == 0 {
		limit = cfg.MaxAttempts
	}
	if most := m.GetMaxAttempts(); most > 0 { // a task has no more than its handler gives
		limit = min(limit, most)
	}
	cause := m.GetCause()
	switch cause {
	case proto.CauseUnspecified, proto.Unstarted, proto.CauseExpired:
		return transition{state: proto.Pending}
	case proto.CauseStopped:
		if ts.task.atMostOnce() {
			return dead("indeterminate: its node stopped while it ran, and its mode is at_most_once")
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
		again.reason = "attempts used up: " + ts.reason
		return again
	case proto.CauseCrashed:
		switch {
		case ts.task.atMostOnce():
			return dead("indeterminate: its node died while it ran, and its mode is at_most_once")
		case ts.abandons+1 >= cfg.MaxAbandons:
			return dead("abandoned too often: its nodes died, or lost it, each time")
		}
		again.abandons = 1
		return again
	case proto.CauseParked:
		return dead("indeterminate: its node died while it ran, and its handler asks for a person then")
	default: // its node does not know, or says what this one has no word for
		if ts.task.atMostOnce() && ts.state != proto.Accepted && cfg.mutation != startForgotten {
			return dead("indeterminate: its node had leave to start it, does not know of it any more, and its mode is at_most_once")
		}
		return transition{state: proto.Pending}
	}
}

// OnStatusReply takes what an owner still works on.
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
