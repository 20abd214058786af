package ownership

import (
	"slices"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// grantAll grants what can be granted now. The grant is in the batch before it is
// sent.
func (h *Home) grantAll() {
	if !h.active && h.cfg.flaw == isolatedIdle {
		return
	}
	for _, q := range h.order {
		if q.idle() {
			continue
		}
		h.ripen(q)
		if !q.state.GetPaused() {
			h.grantSome(q)
		}
	}
}

// maxPassed is how many kinds of task that nobody can take now are passed over
// before the rest has to wait.
const maxPassed = 64

// grantSome grants tasks of q as its classes share them until nobody has room.
func (h *Home) grantSome(q *queue) {
	var passed []string                           // shapes of tasks that nobody can take now
	for q.usage.Room(q.limits) && !h.out.full() { // the rest is granted with the next input
		var first [4]*cell
		var waits [4]bool
		for class := range first {
			first[class] = q.ready[class].firstNotIn(passed)
			waits[class] = first[class] != nil
		}
		class := q.mix.Next(waits)
		if class < 0 || len(passed) >= maxPassed {
			return
		}
		c := first[class]
		if h.now.Wall > c.task.NotAfter {
			c.place.due = h.now.Mono + h.cfg.Scan // the next scan ends it, unless the clock goes back
			h.settle(c)
			continue
		}
		if c.doubtful() {
			c.place.due = h.now.Mono + h.cfg.Scan // the next scan ends it
			h.settle(c)
			continue
		}
		among := notLast(h.ownOnly(h.candidates(q, c)), c)
		if len(among) == 0 {
			passed = append(passed, shapeOf(c))
			continue
		}
		q.mix.Took(class, waits)
		h.grant(c, among[q.strategy.Pick(c.wants(), among)].Peer)
	}
}

// ownOnly leaves all but this node out while it takes itself for suspect or isolated
// (I16). To itself it may grant: its record is here, and the epoch fences it.
func (h *Home) ownOnly(among []dispatch.Candidate) []dispatch.Candidate {
	if h.active || h.cfg.flaw == isolatedGrants {
		return among
	}
	return slices.DeleteFunc(among, func(d dispatch.Candidate) bool { return d.Peer != h.self })
}

// notLast leaves the node out that lost the task last, unless it is the only one.
func notLast(among []dispatch.Candidate, c *cell) []dispatch.Candidate {
	if len(among) < 2 || !c.place.lapsed {
		return among
	}
	return slices.DeleteFunc(among, func(d dispatch.Candidate) bool { return d.Peer == c.owner })
}

// grant gives c to p under the next epoch.
func (h *Home) grant(c *cell, p proto.PeerID) {
	if c.place.lapsed && c.place.taken {
		c.abandons++
		if h.cfg.flaw == abandonSpends {
			c.attempts++
		}
	}
	if c.place.lapsed {
		c.over("the lease ran out", h.now.Wall)
	}
	if h.cfg.flaw != epochReused || c.epoch == (proto.Seq{}) {
		c.epoch = h.nextEpoch()
	}
	c.owner, c.token, c.boot = p, h.cfg.token(), proto.BootID{}
	if n := h.nodes[p]; n != nil {
		c.boot = n.BootID
	}
	c.state, c.released = proto.Accepted, false
	c.place.lapsed, c.place.taken, c.place.silent = false, false, 0
	c.place.until = h.now.Mono + h.period(c)
	c.granted(h.now.Wall)
	h.settle(c)
	h.put(c)
	h.sendGrant(c)
	h.event(EventGranted, c, p, "")
}

// nextEpoch is above all that this home gave out, and all that it was handed.
func (h *Home) nextEpoch() proto.Seq {
	h.counter++
	return proto.Seq{Boot: h.boot, Counter: h.counter}
}

func (h *Home) sendGrant(c *cell) {
	c.place.asked = h.now.Mono
	g := &proto.Grant{
		Claim: c.claim().message(), Queue: c.task.Queue, LeaseMs: uint32(h.period(c).Milliseconds()), Mode: c.task.Mode,
		OnLostLease: c.place.queue.state.GetOnLostLease(), Attempt: c.attempts + c.abandons + 1, NotAfterMs: c.task.NotAfter,
	}
	h.out.send(c.owner, proto.TypeGrant, g)
}

// markOwners reckons for each owner the highest epoch so that no grant up to it
// will ever be sent to it again.
func (h *Home) markOwners() {
	h.settled = map[proto.PeerID]proto.Seq{}
	h.newest = proto.Seq{Boot: h.boot, Counter: h.counter}
	for e := h.live.Front(); e != nil; e = e.Next() {
		c := e.Value.(*cell)
		if !c.leased() || c.place.taken {
			continue
		}
		if low, ok := h.settled[c.owner]; !ok || c.epoch.Compare(low) <= 0 {
			h.settled[c.owner] = before(c.epoch)
		}
	}
}

// settledFor is the mark of p as it was reckoned last: it only rises.
func (h *Home) settledFor(p proto.PeerID) proto.Seq {
	if low, ok := h.settled[p]; ok {
		return low
	}
	return h.newest
}

// before is an epoch below e and at or above all lower ones of its boot.
func before(e proto.Seq) proto.Seq {
	if e.Counter == 0 {
		return proto.Seq{Boot: e.Boot - 1, Counter: 1<<64 - 1}
	}
	return proto.Seq{Boot: e.Boot, Counter: e.Counter - 1}
}
