package ownership

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
)

// rule finds what from speaks about, and whether it may: the answer's code is zero
// if its word counts. c is nil unless the cell is here.
func (h *Home) rule(from proto.PeerID, k claim) (c *cell, r *proto.Ruling) {
	c = h.cells[k.task]
	r = k.ruling(proto.CodeOK)
	switch {
	case c == nil:
		h.elsewhere(k, r)
		if r.Code != proto.CodeMoved {
			h.unheeded(k.task, from, k.epoch, "its cell is not here")
		}
	case !c.fits(from, k, h.cfg.flaw):
		r.Code, r.State, r.Generation = proto.CodeStale, c.state, c.gen
		cause := "an older lease"
		if k.epoch.Compare(c.epoch) >= 0 {
			cause = "not a lease that was given"
		}
		h.out.Events = append(h.out.Events, Event{Kind: EventConflict, Task: k.task, Queue: c.task.Queue, Peer: from, Epoch: k.epoch, Cause: cause})
	default:
		r.Generation = c.gen
		if c.boot == (proto.BootID{}) {
			c.boot = k.boot
			h.put(c)
		}
	}
	return c, r
}

// unheeded counts what changes nothing.
func (h *Home) unheeded(id proto.TaskID, from proto.PeerID, epoch proto.Seq, cause string) {
	h.out.Events = append(h.out.Events, Event{Kind: EventUnheeded, Task: id, Peer: from, Epoch: epoch, Cause: cause})
}

// elsewhere answers about a task whose cell is not here.
func (h *Home) elsewhere(k claim, r *proto.Ruling) {
	if g := h.moved[k.task]; g != nil {
		r.Code, r.Home, r.Generation = proto.CodeMoved, slices.Clone(g.home[:]), g.gen
		return
	}
	if e := h.ended[k.task]; e != nil {
		x := e.Value.(*ended)
		r.Code, r.State, r.Generation = proto.CodeStale, x.state, x.gen
		return
	}
	// It may be on its way here from an old home, or have been forgotten: the owner
	// keeps what it has.
	r.Code = proto.CodeBusy
}

// heard notes a sign of life of the owner of c: its lease goes on, also one that was
// over if nobody else was granted the task meanwhile.
func (h *Home) heard(c *cell) {
	c.place.until = h.now.Mono + h.period(c)
	c.place.taken, c.place.silent = true, 0
	if c.place.lapsed {
		c.place.lapsed = false
		h.event(EventRevived, c, c.owner, "")
	}
	if c.state == proto.Indeterminate {
		c.state = proto.Running
		h.put(c)
	}
	h.settle(c)
}

// OnGranted takes what an owner says to grants.
func (h *Home) OnGranted(from proto.PeerID, m *proto.Granted, now Now) Output {
	h.step(now)
	for _, t := range m.GetTaken() {
		k, ok := claimFrom(t.GetClaim())
		if !ok {
			continue
		}
		if t.Code == proto.CodeOK {
			if c, r := h.rule(from, k); r.Code == proto.CodeOK {
				h.heard(c)
				h.event(EventTaken, c, from, "")
			}
			continue
		}
		h.declined(from, k, t)
	}
	return h.done()
}

// declined takes a grant back that its receiver does not want. Whoever declines has
// no boot id to show.
func (h *Home) declined(from proto.PeerID, k claim, t *proto.Taken) {
	c := h.cells[k.task]
	if c == nil || c.epoch != k.epoch || c.owner != from || c.token != k.token || c.released || c.permitted() || c.place.taken {
		h.unheeded(k.task, from, k.epoch, "no grant that it could decline")
		return
	}
	seen := proto.Seq{Boot: t.SeenBoot, Counter: t.SeenCounter}
	if t.Code == proto.CodeStale && seen.Compare(k.epoch) >= 0 && seen.Boot < maxBoot {
		h.raise(seen.Boot)
	}
	h.event(EventDeclined, c, from, t.Code.Name()+": "+t.Detail)
	c.over("declined: "+t.Code.Name(), h.now.Wall)
	c.state, c.released, c.place.lapsed = proto.Pending, true, false
	if c.cancel && h.cfg.flaw != cancelForgotten {
		h.end(c, End{State: proto.Cancelled, Reason: "cancelled before it started"})
		return
	}
	h.put(c)
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
		h.shun(from, c.task.Kind, wait)
	case proto.CodeDraining:
		h.shun(from, "", wait)
	default:
		h.shun(from, c.task.Kind, wait)
	}
	h.settle(c)
}

// maxBoot is far beyond any number of a start, which is at most the time in
// seconds: a member must not use up the numbers.
const maxBoot = 1 << 40

// raise lets the epochs of this home go on above a boot number. The batch of this
// output carries it.
func (h *Home) raise(boot uint64) {
	if h.boot > boot {
		return
	}
	h.boot, h.counter = boot+1, 0
	h.out.put(markKey(h.self), &proto.HomeMark{Home: h.self[:], Boot: h.boot})
}

// OnStart is asked for leave to start tasks of mode at_most_once. What is permitted
// is durable before the answer leaves.
func (h *Home) OnStart(from proto.PeerID, m *proto.Start, now Now) Output {
	o := h.step(now)
	reply := new(proto.Permit)
	for _, cm := range m.GetClaims() {
		k, ok := claimFrom(cm)
		if !ok {
			continue
		}
		c, r := h.rule(from, k)
		if r.Code == proto.CodeOK && c.cancel && !c.permitted() {
			r.Code, r.State = proto.CodeStale, proto.Cancelled
			h.end(c, End{State: proto.Cancelled, Reason: "cancelled before it started"})
		}
		if r.Code == proto.CodeOK && !c.task.once() {
			r.Code, r.State = proto.CodeBadForm, c.state // with leave nobody would take it back from a dead owner
			h.unheeded(k.task, from, k.epoch, "it needs no leave to start")
		}
		if r.Code == proto.CodeOK {
			h.heard(c)
			if !c.permitted() {
				c.state = proto.Running
				if h.cfg.flaw != permitVolatile {
					h.put(c)
				}
				h.event(EventPermitted, c, from, "")
			}
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	if len(reply.Rulings) > 0 {
		o.send(from, proto.TypePermit, reply)
	}
	return h.done()
}

// OnRenew takes the renewals of an owner and answers those that do not count.
func (h *Home) OnRenew(from proto.PeerID, m *proto.Renew, now Now) Output {
	o := h.step(now)
	reply := &proto.Renewed{Number: m.GetNumber()}
	period := time.Duration(0) // the shortest of those that are renewed
	for _, cm := range m.GetClaims() {
		k, ok := claimFrom(cm)
		if !ok {
			continue
		}
		c, r := h.rule(from, k)
		if r.Code == proto.CodeOK || h.cfg.flaw == renewUnchecked && c != nil {
			h.heard(c)
			if cm.GetFetch() {
				o.Lends = append(o.Lends, Lend{Task: k.task, Owner: from})
			}
			if p := h.period(c); period == 0 || p < period {
				period = p
			}
			if r.Code == proto.CodeOK && k.gen >= c.gen {
				continue
			}
			r.Code = proto.CodeOK // it counts, and tells the generation
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	reply.LeaseMs = uint32(cmp.Or(period, h.cfg.Lease).Milliseconds())
	s := h.settledFor(from)
	reply.SettledBoot, reply.SettledCounter = s.Boot, s.Counter
	o.send(from, proto.TypeRenewed, reply)
	return h.done()
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
	h.step(now)
	k, ok := claimFrom(in.Claim)
	if !ok || !in.State.Terminal() {
		r := k.ruling(proto.CodeBadForm)
		h.unheeded(k.task, from, k.epoch, "it is no result")
		return r, h.done()
	}
	c, r := h.rule(from, k)
	switch {
	case c == nil:
		if e := h.ended[k.task]; e != nil && r.Code == proto.CodeStale {
			x := e.Value.(*ended)
			same := x.epoch == k.epoch && x.owner == from && x.state == in.State && x.digest != nil && bytes.Equal(x.digest, in.Digest)
			switch {
			case same:
				r.Code = proto.CodeOK
			case h.cfg.flaw == endedAgain && x.epoch.Compare(k.epoch) <= 0:
				r.Code, x.state, x.digest = proto.CodeOK, in.State, bytes.Clone(in.Digest)
				h.out.Ends = append(h.out.Ends, End{Task: k.task, State: in.State, Digest: in.Digest, From: from, Epoch: k.epoch})
			default:
				h.orphan(from, k, in)
			}
		}
	case r.Code == proto.CodeOK && in.Absent:
		r.Code = proto.CodeNeedBody
		h.heard(c)
	case r.Code == proto.CodeOK:
		if c.place.lapsed {
			h.event(EventLate, c, from, "nobody else was granted it")
		}
		c.over(EndedByResult, h.now.Wall)
		digest := bytes.Clone(in.Digest)
		if digest == nil {
			digest = []byte{}
		}
		h.end(c, End{State: in.State, Reason: in.Reason, Digest: digest, From: from, Epoch: k.epoch})
	case r.Code == proto.CodeStale:
		h.orphan(from, k, in)
	}
	return r, h.done()
}

// EndedByResult is why a grant is over whose result counts.
const EndedByResult = "result"

func (h *Home) orphan(from proto.PeerID, k claim, in Result) {
	h.out.Orphans = append(h.out.Orphans, Orphan{Task: k.task, From: from, Epoch: k.epoch, State: in.State, Digest: in.Digest})
}

// RefuseResult takes the lease of a task back whose owner brings a result that is refused
// for good, and tells it so: the task goes to another node.
func (h *Home) RefuseResult(from proto.PeerID, id proto.TaskID, cause string, now Now) Output {
	o := h.step(now)
	c := h.cells[id]
	if c == nil || c.owner != from || c.free() || c.released {
		h.unheeded(id, from, proto.Seq{}, "a refused result of who has no lease")
		return h.done()
	}
	k := c.claim()
	r := k.ruling(proto.CodeStale)
	r.State, r.Generation = c.state, c.gen
	o.send(from, proto.TypeCommitted, &proto.Committed{Rulings: []*proto.Ruling{r}})
	h.shun(from, "", h.cfg.MaxBackoff)
	h.released(c, from, &proto.Released{Cause: proto.CauseCrashed, Reason: "its result is refused: " + cause})
	return h.done()
}

// OnRelease takes leases back whose owners say that they are over.
func (h *Home) OnRelease(from proto.PeerID, m *proto.Release, now Now) Output {
	o := h.step(now)
	reply := new(proto.ReleaseReply)
	for _, rm := range m.GetReleased() {
		k, ok := claimFrom(rm.GetClaim())
		if !ok {
			continue
		}
		c, r := h.rule(from, k)
		if h.cfg.flaw == releaseUnchecked && c != nil {
			r.Code = proto.CodeOK
		}
		if r.Code == proto.CodeOK {
			h.released(c, from, rm)
		}
		reply.Rulings = append(reply.Rulings, r)
	}
	if len(reply.Rulings) > 0 {
		o.send(from, proto.TypeReleased, reply)
	}
	return h.done()
}

// released decides where c goes when its owner gave it back.
func (h *Home) released(c *cell, from proto.PeerID, m *proto.Released) {
	why := strings.TrimPrefix(m.Cause.String(), "RELEASE_CAUSE_") // a newer node may have causes that this one has no word for
	h.event(EventReleased, c, from, why+": "+m.Reason)
	c.over(why, h.now.Wall)
	c.reason, c.released, c.place.lapsed = proto.Clip(m.Reason, proto.MaxReason), true, false
	h.shy(c, from, m)
	to := c.after(m, h.cfg)
	if m.Cause == proto.CauseExpired && h.now.past(c.task.NotAfter-h.cfg.Skew.Milliseconds()) {
		to = step{state: proto.Expired, reason: c.reason}
	}
	c.attempts += to.attempts
	c.abandons += to.abandons
	if c.cancel && to.state != proto.DeadLetter {
		to = step{state: proto.Cancelled, reason: "cancelled"}
	}
	if to.state.Terminal() {
		h.end(c, End{State: to.state, Reason: cmp.Or(to.reason, c.reason)})
		return
	}
	c.state = to.state
	if to.attempts+to.abandons > 0 {
		c.place.due = h.now.Mono + max(h.cfg.backoff(c.attempts+c.abandons), msec(m.RetryAfterMs))
	}
	h.put(c)
	h.settle(c)
}

// shy keeps a node that gives back what it has not started from being asked at
// once again.
func (h *Home) shy(c *cell, from proto.PeerID, m *proto.Released) {
	switch m.Cause {
	case proto.CauseStopped:
		h.shun(from, c.task.Kind, h.cfg.Heartbeat)
	case proto.CauseExpired: // its clock and ours are far apart
		c.place.due = h.now.Mono + h.cfg.Lease
		h.shun(from, c.task.Kind, h.cfg.Lease)
	case proto.CauseFailed, proto.CauseTimeout, proto.CauseCrashed, proto.CauseParked:
		c.place.failed = from
	default:
		h.shun(from, c.task.Kind, min(max(msec(m.RetryAfterMs), h.cfg.Heartbeat), h.cfg.MaxBackoff))
	}
}

// A step is where a task goes.
type step struct {
	state              proto.TaskState
	reason             string
	attempts, abandons uint32 // that it spends
}

// after decides where a task goes whose owner gave the lease back. A lease that
// ended by no fault of the task spends nothing; what may have been started once,
// and may be started once only, goes to a person.
func (c *cell) after(m *proto.Released, cfg Config) step {
	again := step{state: proto.Retrying}
	dead := func(reason string) step {
		return step{state: proto.DeadLetter, reason: reason}
	}
	limit := c.task.MaxAttempts
	if limit == 0 {
		limit = cfg.MaxAttempts
	}
	if most := m.GetMaxAttempts(); most > 0 { // a task has no more than its handler gives
		limit = min(limit, most)
	}
	cause := m.GetCause()
	switch cause {
	case proto.CauseUnspecified, proto.Unstarted, proto.CauseExpired:
		return step{state: proto.Pending}
	case proto.CauseStopped:
		if c.task.once() {
			return dead("indeterminate: its node stopped while it ran, and its mode is at_most_once")
		}
		return step{state: proto.Pending}
	case proto.CauseFailed, proto.CauseTimeout:
		again.attempts = 1
		if !c.task.once() && c.attempts+1 < limit {
			return again
		}
		again.state = proto.DeadLetter
		if cause == proto.CauseTimeout {
			again.state = proto.Timeout
		}
		again.reason = "attempts used up: " + c.reason
		return again
	case proto.CauseCrashed:
		switch {
		case c.task.once():
			return dead("indeterminate: its node died while it ran, and its mode is at_most_once")
		case c.abandons+1 >= cfg.MaxAbandons:
			return dead("abandoned too often: its nodes died, or lost it, each time")
		}
		again.abandons = 1
		return again
	case proto.CauseParked:
		return dead("indeterminate: its node died while it ran, and its handler asks for a person then")
	default: // its node does not know, or says what this one has no word for
		if c.task.once() && c.state != proto.Accepted && cfg.flaw != startForgotten {
			return dead("indeterminate: its node had leave to start it, does not know of it any more, and its mode is at_most_once")
		}
		return step{state: proto.Pending}
	}
}

// OnStatusReply takes what an owner still works on.
func (h *Home) OnStatusReply(from proto.PeerID, m *proto.StatusReply, now Now) Output {
	h.step(now)
	for _, s := range m.GetHeld() {
		if k, ok := claimFrom(s.GetClaim()); ok {
			if c, r := h.rule(from, k); r.Code == proto.CodeOK {
				h.heard(c)
			}
		}
	}
	return h.done()
}
