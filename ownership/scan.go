package ownership

import (
	"time"

	"github.com/balefire/balefire/proto"
)

func msec(n uint64) time.Duration {
	return time.Duration(min(n, uint64(365*24*time.Hour/time.Millisecond))) * time.Millisecond
}

// Tick is called about once a second. It sends again what was not answered, and
// every scan interval takes back the leases that are over.
func (h *Home) Tick(now Now) Output {
	h.step(now)
	h.resend()
	if !h.scan.met || now.Mono-h.scan.last.Mono >= h.cfg.Scan || now.Boot-h.scan.last.Boot >= h.cfg.Scan {
		h.scanAll()
	}
	h.sendAsked(false)
	return h.done()
}

// jumped reports whether the clocks have gone apart since the last scan, or this
// node stood still: what owners sent meanwhile may not have been read yet.
func (h *Home) jumped() bool {
	last := h.scan.last
	if !h.scan.met || h.cfg.flaw == jumpUnguarded {
		return false
	}
	mono, boot := h.now.Mono-last.Mono, h.now.Boot-last.Boot
	wall := time.Duration(h.now.Wall-last.Wall) * time.Millisecond
	return (wall-mono).Abs() > h.cfg.Jump || (boot-mono).Abs() > h.cfg.Jump || mono > h.cfg.Scan+h.cfg.Lease/2
}

// scanAll looks at every live task.
func (h *Home) scanAll() {
	skip := h.jumped()
	h.scan = guard{last: h.now, met: true}
	h.markOwners()
	if skip {
		h.out.Events = append(h.out.Events, Event{Kind: EventSkipped, Peer: h.self, Cause: "the clocks jumped, or the node stood still: no lease is taken back in this round"})
	}
	for e := h.live.Front(); e != nil; {
		c := e.Value.(*cell)
		e = e.Next()
		h.look(c, skip)
		if l := c.place.lane; c.sharesLane() && len(l.heads()) > 1 && l.heads()[0] == c {
			h.settle(c) // others may serve its kind now, or nobody any more
		}
	}
	h.forget()
	h.yieldAll()
}

// look decides about one task at a scan.
func (h *Home) look(c *cell, skip bool) {
	late := h.now.past(h.cfg.lastWord(c.task.NotAfter))
	switch {
	case c.doubtful() && !c.leased() && !c.permitted() && c.place.queue.here(h.self) && h.now.Mono >= c.place.until:
		h.end(c, End{State: proto.DeadLetter, Reason: "indeterminate: the home of its queue was restored from an older copy, and its mode is at_most_once"})
	case c.free(), h.cfg.flaw == expiredEarly && !c.leased():
		if h.now.past(c.task.NotAfter) && !skip {
			h.end(c, End{State: proto.Expired, Reason: "its time was over before it could start; last: " + c.reason})
		}
		return
	case c.leased() && h.now.Mono >= c.place.until:
		if skip || !h.mayReclaim() {
			c.place.until = max(c.place.until, h.now.Mono+h.cfg.Scan)
			h.ask(c)
			return
		}
		h.lapse(c, EventLapsed, "no renewal came")
	case c.leased():
		if h.now.Mono+h.cfg.Lease/2 >= c.place.until {
			h.ask(c)
		}
		return
	}
	switch {
	case c.state.Terminal():
	case late && !skip:
		h.outlive(c)
	case c.permitted():
		h.silence(c)
	case c.cancel && !skip:
		h.end(c, lostCancelled())
	}
}

func lostCancelled() End {
	return End{State: proto.Cancelled, Reason: "cancelled; its owner was lost"}
}

// outlive ends a task whose owner will not say any more what became of it (I3).
func (h *Home) outlive(c *cell) {
	if c.task.once() && c.permitted() {
		h.end(c, End{State: proto.DeadLetter, Reason: "indeterminate: its owner was lost while it ran, and its mode is at_most_once"})
		return
	}
	h.end(c, End{State: proto.Expired, Reason: "its time is over, and its owner was lost"})
}

// lapse takes a lease back. Nothing is written until somebody else is granted the
// task: until then its owner's word still counts.
func (h *Home) lapse(c *cell, kind EventKind, cause string) {
	h.event(kind, c, c.owner, cause)
	c.place.lapsed = true
	switch {
	case c.permitted() && h.cfg.flaw != onceReclaimed:
		if c.place.silent == 0 {
			c.place.silent = max(h.now.Mono, 1)
		}
		h.ask(c)
	case c.cancel:
		h.end(c, lostCancelled())
		return
	case c.place.taken && c.abandons+1 >= h.cfg.MaxAbandons:
		h.end(c, End{State: proto.DeadLetter, Reason: "abandoned too often: its nodes died, or lost it, each time"})
		return
	case !c.place.taken:
		h.shun(c.owner, "", h.cfg.Scan) // it did not even answer
	}
	h.settle(c)
}

// silence asks an owner again that may have started what may be started once only,
// and says so when it stays away.
func (h *Home) silence(c *cell) {
	h.ask(c)
	if c.state == proto.Running && c.place.silent > 0 && !h.out.full() && h.now.Mono-c.place.silent >= 4*h.cfg.Lease {
		c.state = proto.Indeterminate
		c.reason = "its owner has not been heard of since its lease ran out"
		h.put(c)
		h.event(EventIndeterminate, c, c.owner, c.reason)
	}
}

// ask lets the owner of c be asked what it does.
func (h *Home) ask(c *cell) { h.asking = append(h.asking, c) }

// sendAsked sends one Status to each owner that is asked.
func (h *Home) sendAsked(moved bool) {
	byOwner := map[proto.PeerID]*proto.Status{}
	for _, c := range h.asking {
		if c.released || c.state.Terminal() || h.cells[c.task.ID] != c {
			continue
		}
		s := byOwner[c.owner]
		if s == nil || len(s.Claims) >= proto.MaxGroup {
			s = &proto.Status{QueueMoved: moved}
			byOwner[c.owner] = s
			h.out.send(c.owner, proto.TypeStatus, s)
		}
		c.place.asked = h.now.Mono
		s.Claims = append(s.Claims, c.claim().message())
	}
	h.asking = h.asking[:0]
}

// resend sends grants and wishes to cancel again that were not answered, and
// handoffs.
func (h *Home) resend() {
	for e := h.live.Front(); e != nil; e = e.Next() {
		c := e.Value.(*cell)
		if h.now.Mono-c.place.asked < h.cfg.Heartbeat || c.free() {
			continue
		}
		switch {
		case c.cancel && !c.place.lapsed:
			h.sendCancel(c)
		case c.leased() && !c.place.taken:
			h.sendGrant(c)
		}
	}
	h.resendGone()
}

// mayReclaim reports whether this home may take leases back (I16).
func (h *Home) mayReclaim() bool { return h.active || h.cfg.flaw == isolatedReclaims }

// Dead says that a node is dead, as membership sees it. Its leases are taken back
// at once: if it lives after all, the epoch fences it. What may have been started
// once, and may be once only, waits for its lease and its owner's word.
func (h *Home) Dead(p proto.PeerID, now Now) Output {
	h.step(now)
	if !h.mayReclaim() {
		return h.out
	}
	for e := h.live.Front(); e != nil; {
		c := e.Value.(*cell)
		e = e.Next()
		if c.leased() && c.owner == p && !c.permitted() {
			h.lapse(c, EventDead, "its owner is dead")
		}
	}
	return h.done()
}

// Recover takes one lease back by a person's hand, as Dead does.
func (h *Home) Recover(id proto.TaskID, now Now) (bool, Output) {
	h.step(now)
	c := h.cells[id]
	if c == nil || !c.leased() || c.permitted() {
		return false, h.out
	}
	h.lapse(c, EventDead, "taken back by hand")
	return true, h.done()
}
