package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A suspicion is the time in which a node can refute accusations, shortened by each
// further accuser.
type suspicion struct {
	start     time.Duration
	received  uint64 // packets from it until then
	deadline  time.Duration
	low, high time.Duration
	k         int       // confirmations that reduce the time to low
	by        []*Update // one per accuser, at most k+1, or 2; the first accuser first
}

func (s *suspicion) has(p proto.PeerID) bool {
	return slices.ContainsFunc(s.by, func(n *Update) bool { return n.By == p })
}

// suspect applies an accusation of m by by. update is nil if this node itself makes it.
func (c *Core) suspect(now time.Duration, m *member, by proto.PeerID, updates *Update) {
	s := m.suspicion
	if s == nil || m.status != Suspect {
		s = c.newSuspicion(now, m)
		c.counts.Suspicions++
		c.change(now, m, Suspect, by)
		m.suspicion = s
		c.suspects = append(c.suspects, m)
	} else if s.has(by) || len(s.by) > max(s.k, 1) {
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
		slow := 4 * m.path.rtt // a refutation needs a round trip
		low, high = low+slow, high+slow
	}
	return &suspicion{start: now, received: c.received(m.id), deadline: now + high, low: low, high: high, k: k}
}

// tickSuspects declares suspects dead whose time has expired.
func (c *Core) tickSuspects(now time.Duration) {
	for i := 0; i < len(c.suspects); {
		if m := c.suspects[i]; now >= m.suspicion.deadline && !c.postpone(now, m) {
			c.declareDead(now, m, nil) // removes it from the list
		} else {
			i++
		}
	}
}

// postpone gives a suspect whose packets arrive the time that it has without confirmations
// by others: its refutation may wait in a queue.
func (c *Core) postpone(now time.Duration, m *member) bool {
	s, received := m.suspicion, c.received(m.id)
	if c.t.Plain || received <= s.received || now >= s.start+s.high {
		return false
	}
	c.counts.Postponed++
	s.received, s.deadline = received, min(now+s.low, s.start+s.high)
	return true
}

// declareDead declares m dead. update is nil if this node reached the verdict itself.
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
		if c.t.Plain || s != nil && s.has(c.self) { // all others whose time is over now reach the same verdict
			c.do(Action{Kind: DoPublish, Updates: []*Update{updates}})
		}
	}
	m.suspicion = &suspicion{start: now, deadline: never, by: []*Update{updates}}
	c.rumors.add(updates)
}

// change sets the status of m and updates the counts and lists that depend on it.
func (c *Core) change(now time.Duration, m *member, to Status, by proto.PeerID) {
	from := m.status
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
		c.counts.Suppressed++
		c.emit(Event{Kind: Suppressed, Peer: m.id, From: from, To: to, Incarnation: m.incarnation})
	}
	m.status, m.since = to, now
	c.cachedDigest = nil
	suspicion := m.suspicion
	if to != Suspect && to != Dead {
		m.suspicion = nil
	}
	c.startRecovery(now, m, from, suspicion)
	if from != to {
		c.emit(Event{Kind: Changed, Peer: m.id, From: from, To: to, By: by, Incarnation: m.incarnation})
	}
}

// startRecovery makes a member that came back ineligible for new work for a while. One that was
// only accused by others, and refuted that at once, was not away: members that accuse
// repeatedly keep nobody out of the shared queues.
func (c *Core) startRecovery(now time.Duration, m *member, from Status, s *suspicion) {
	if m.status != Alive || from == Unknown || from == Left {
		return
	}
	wait := c.t.SuspectRecover
	if from == Dead {
		wait = c.t.DeadRecover
		c.counts.Returns++
	} else {
		c.counts.Refutations++
		if !s.has(c.self) && now-s.start <= c.t.ProbeInterval+4*m.path.rtt {
			return
		}
	}
	m.eligibleAt = max(m.eligibleAt, now+wait)
	if !m.recovering {
		m.recovering = true
		c.recovering = append(c.recovering, m)
	}
}

// tickRecovering reports members that are eligible again.
func (c *Core) tickRecovering(now time.Duration) {
	c.recovering = slices.DeleteFunc(c.recovering, func(m *member) bool {
		if now < m.eligibleAt {
			return false
		}
		m.recovering = false
		if m.eligible(now) {
			c.emit(Event{Kind: Eligible, Peer: m.id, From: m.status, To: m.status, Incarnation: m.incarnation})
		}
		return true
	})
}

// accuserMemory is how long an accuser must be silent before its next accusation counts
// again.
const accuserMemory = time.Minute

// An accuser is a node that recently accused this one.
type accuser struct {
	last    time.Duration // time of its last accusation
	counted time.Duration // time of its last accusation that counted; 0: never
}

// countAccusation counts an accusation of this node: if enough credible accusers agree,
// this node considers itself isolated.
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
	if agree >= min(2, c.alive) { // a single accuser may itself be faulty
		c.own.accused = now
	}
}

// credible reports whether an accusation of this node may be right: it is of the current
// or the previous incarnation, by a live member that did not answer this node's last
// probe. A node that accuses repeatedly receives a refutation each time, and adds no
// information.
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

// Accusers returns the nodes that accused this one within the last minute, ordered by id.
func (c *Core) Accusers(now time.Duration) (all []proto.PeerID) {
	for p, a := range c.own.accusers {
		if now-a.last <= accuserMemory {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, proto.PeerID.Compare)
	return all
}

// handleSelfAccusation refutes an accusation of this node. An accusation can only raise
// this node's incarnation, and only this node can raise it.
func (c *Core) handleSelfAccusation(now time.Duration, n *Update) {
	if n.Incarnation > c.own.incarnation {
		if c.accusationLimit.allow(now, n.By) {
			c.emit(Event{Kind: Alarm, Peer: n.By, Incarnation: n.Incarnation, Cause: "it accuses this node of an incarnation that it never had"})
		}
		return
	}
	again := c.own.accusers[n.By].last > 0
	c.countAccusation(now, n)
	if n.Incarnation < c.own.incarnation {
		return // already refuted
	}
	c.counts.OwnRefutations++
	if !again { // repeated accusations add nothing about this node's health
		c.degrade(1)
	}
	c.refute(now)
	if c.accusationLimit.allow(now, n.By) { // all are refuted; old ones, which anybody can repeat, count for nothing
		c.emit(Event{Kind: Refuted, Peer: c.self, By: n.By, Incarnation: c.own.incarnation})
	}
}

// Isolated reports whether this node is itself suspected, or hears from no one although
// it knows at least two others. It must not claim new work then (I16).
func (c *Core) Isolated(now time.Duration) bool {
	others := len(c.members)
	if others < 2 || c.left > others-2 {
		return false
	}
	if c.own.accused > 0 && now-c.own.accused < c.t.SuspectRecover {
		return true
	}
	silent := now - c.lastHeard
	if silent <= suspicionMult*c.t.ProbeInterval {
		return false
	}
	low, _, _ := c.t.suspicion(c.alive + 1)
	return silent > low
}

// Degraded reports whether this node is isolated, or so many of its own probes fail, or are
// answered late, that the fault is probably its own.
func (c *Core) Degraded(now time.Duration) bool {
	return c.Isolated(now) || (c.health() >= degradedHealth || c.own.late > 0.5) && len(c.members) > 1
}
