package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A suspicion is the time in which a node can refute, shortened by each other node
// that accuses it too.
type suspicion struct {
	start     time.Duration
	deadline  time.Duration
	low, high time.Duration
	k         int       // others that must agree for low
	by        []*Update // one of each accuser, at most k+2; at the front the first
}

func (s *suspicion) has(p proto.PeerID) bool {
	return slices.ContainsFunc(s.by, func(n *Update) bool { return n.By == p })
}

// suspect takes an accusation of m by by. news is nil when this node makes it.
func (c *Core) suspect(now time.Duration, m *member, by proto.PeerID, updates *Update) {
	s := m.suspicion
	if s == nil || m.status != Suspect {
		s = c.newSuspicion(now, m)
		c.counts.Suspicions++
		c.change(now, m, Suspect, by)
		m.suspicion = s
		c.suspects = append(c.suspects, m)
	} else if s.has(by) || len(s.by) > s.k+1 {
		return // nothing new
	} else {
		c.counts.Confirmations++
	}
	if updates == nil {
		updates = c.signer.Accuse(m.id, m.incarnation, proto.Suspect)
		c.do(Action{Kind: DoPublish, Updates: []*Update{updates}})
	}
	s.by = append(s.by, updates)
	s.deadline = s.start + refuteIn(s.low, s.high, len(s.by)-1, s.k)
	c.rumors.add(updates)
}

func (c *Core) newSuspicion(now time.Duration, m *member) *suspicion {
	low, high, k := c.t.suspicion(c.alive + 1)
	if !c.t.Plain {
		slow := 4 * m.path.rtt // a refutation needs the way there and back
		low, high = low+slow, high+slow
	}
	return &suspicion{start: now, deadline: now + high, low: low, high: high, k: k}
}

// tickSuspects comes to the verdict about those whose time is over.
func (c *Core) tickSuspects(now time.Duration) {
	for i := 0; i < len(c.suspects); {
		if m := c.suspects[i]; now >= m.suspicion.deadline {
			c.declareDead(now, m, nil) // takes it from the list
		} else {
			i++
		}
	}
}

// declareDead calls m dead. news is nil when this node came to the verdict.
func (c *Core) declareDead(now time.Duration, m *member, updates *Update) {
	s := m.suspicion
	c.counts.Verdicts++
	by := c.self
	if updates != nil {
		by = updates.By
	}
	c.change(now, m, Dead, by)
	if updates == nil {
		updates = c.signer.Accuse(m.id, m.incarnation, proto.Dead)
		if s == nil || verdicts(s.by) < 3 { // more would tell nobody anything
			c.do(Action{Kind: DoPublish, Updates: []*Update{updates}})
		}
	}
	m.suspicion = &suspicion{start: now, deadline: never, by: []*Update{updates}}
	c.rumors.add(updates)
}

// verdicts counts the accusations that say DEAD.
func verdicts(by []*Update) (n int) {
	for _, a := range by {
		if a.Liveness == proto.Dead {
			n++
		}
	}
	return n
}

// change moves m to another status. It keeps the counts and lists that follow from it.
func (c *Core) change(now time.Duration, m *member, to Status, by proto.PeerID) {
	from, after := m.status, now-m.since
	if from == Suspect {
		c.suspects = slices.DeleteFunc(c.suspects, func(o *member) bool { return o == m })
	}
	if was, is := from == Alive || from == Suspect, to == Alive || to == Suspect; was != is {
		if is {
			c.alive++
		} else {
			c.alive--
		}
	}
	if from == Left && to != Left {
		c.left--
	} else if to == Left && from != Left {
		c.left++
	}
	if from == Unknown {
		c.probing.add(m, c.rand.IntN(len(c.probing.ring)+1))
	}
	if from != to && (to == Suspect || to == Dead) && now < m.eligibleAt {
		m.flaps++
		c.counts.Suppressed++
		c.emit(Event{Kind: Suppressed, Peer: m.id, From: from, To: to, Incarnation: m.incarnation})
	}
	m.status, m.since = to, now
	c.cachedDigest = nil
	if to != Suspect && to != Dead {
		m.suspicion = nil
	}
	c.startRecovery(now, m, from)
	if from != to {
		c.emit(Event{Kind: Changed, Peer: m.id, From: from, To: to, By: by, Incarnation: m.incarnation, After: after})
	}
}

// startRecovery keeps new work away from a node that came back, for a while.
func (c *Core) startRecovery(now time.Duration, m *member, from Status) {
	if m.status != Alive || from == Unknown || from == Left {
		return
	}
	wait := c.t.SuspectRecover
	if from == Dead {
		wait = c.t.DeadRecover
		c.counts.Returns++
	} else {
		c.counts.Refutations++
	}
	m.eligibleAt = max(m.eligibleAt, now+wait)
	if !m.recovering {
		m.recovering = true
		c.recovering = append(c.recovering, m)
	}
}

// tickRecovering tells of those that may have new work again.
func (c *Core) tickRecovering(now time.Duration) {
	c.recovering = slices.DeleteFunc(c.recovering, func(m *member) bool {
		if now < m.eligibleAt {
			return false
		}
		m.recovering, m.flaps = false, 0
		if m.eligible(now) {
			c.emit(Event{Kind: Eligible, Peer: m.id, From: m.status, To: m.status, Incarnation: m.incarnation})
		}
		return true
	})
}

// accuserMemory is how long an accuser of this node must have been silent for its next
// word to count against this node.
const accuserMemory = time.Minute

// An accuser is a node that accused this one, of late.
type accuser struct {
	last    time.Duration // when it last did
	counted time.Duration // when its word last counted; 0: never
}

// countAccusation takes an accusation of this node into account: enough others who say so, and may
// be right, make it doubt itself.
func (c *Core) countAccusation(now time.Duration, n *Update) {
	a := accuser{last: now, counted: c.own.accusers[n.By].counted}
	if c.credible(now, n) {
		a.counted = now
	}
	c.own.accusers[n.By] = a
	agree := 0
	for p, a := range c.own.accusers {
		switch {
		case now-a.last > accuserMemory:
			delete(c.own.accusers, p)
		case a.counted > 0 && now-a.counted <= c.t.SuspectRecover:
			agree++
		}
	}
	if agree >= min(2, c.alive) { // one alone may be the one that is ill
		c.own.accused = now
	}
}

// credible reports whether an accusation of this node may be right: of the incarnation
// that it has, or had until a moment ago, by a node that lives, and that did not answer
// when this one probed it last. Who goes on and on is answered each time, hears the
// answer, and says nothing new.
func (c *Core) credible(now time.Duration, n *Update) bool {
	m := c.members[n.By]
	switch {
	case n.Incarnation+1 < c.own.incarnation || c.own.accusers[n.By].last > 0:
		return false
	case m == nil || m.status != Alive || m.path.replied > 0 && now-m.path.replied <= accuserMemory:
		return false
	}
	return c.accusationLimit.allow(now, n.By)
}

// Accusers returns who accused this node within the last minute, in order of their ids.
func (c *Core) Accusers(now time.Duration) (all []proto.PeerID) {
	for p, a := range c.own.accusers {
		if now-a.last <= accuserMemory {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, proto.PeerID.Compare)
	return all
}

// handleSelfAccusation takes an accusation of this node itself, and refutes it: only its own
// incarnation can be raised by it, and only it can raise its own.
func (c *Core) handleSelfAccusation(now time.Duration, n *Update) {
	if n.Incarnation > c.own.incarnation {
		c.emit(Event{Kind: Alarm, Peer: n.By, Incarnation: n.Incarnation, Cause: "accuses an incarnation that this node never had"})
		return
	}
	again := c.own.accusers[n.By].last > 0
	c.countAccusation(now, n)
	if n.Incarnation < c.own.incarnation {
		return // answered already
	}
	c.counts.OwnRefutations++
	if !again { // who goes on and on says nothing new of this node's health
		c.degrade(1)
	}
	c.refute(now)
	c.emit(Event{Kind: Refuted, Peer: c.self, By: n.By, Incarnation: c.own.incarnation})
}

// Isolated reports whether this node is suspected itself, or hears from nobody though
// it knows two others or more. It must claim nothing new then (I16).
func (c *Core) Isolated(now time.Duration) bool {
	others := len(c.members)
	if others < 2 || c.left > others-2 {
		return false
	}
	if c.own.accused > 0 && now-c.own.accused < c.t.SuspectRecover {
		return true
	}
	silent := now - c.lastHeard
	if silent <= time.Duration(c.t.SuspicionMult)*c.t.ProbeInterval {
		return false
	}
	low, _, _ := c.t.suspicion(c.alive + 1)
	return silent > low
}

// Degraded reports whether this node is isolated, or its own probes fail so often that it
// takes itself for the one that is ill.
func (c *Core) Degraded(now time.Duration) bool {
	return c.Isolated(now) || c.health() >= degradedHealth && len(c.members) > 1
}
