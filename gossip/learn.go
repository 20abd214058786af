package gossip

import (
	"bytes"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// learn takes news from another node, in their order.
func (c *Core) learn(now time.Duration, from proto.PeerID, news []*News) {
	for _, n := range news {
		switch {
		case n.accuses() && n.Peer == c.self:
			c.accused(now, n)
		case n.accuses():
			c.accusation(now, from, n)
		case n.Peer == c.self:
			c.ownRecord(n)
		default:
			c.recorded(now, n)
		}
	}
}

// ownRecord takes a record that this node signed itself: of an earlier life, when the
// disk was rolled back and the clock with it. It has to get above that.
func (c *Core) ownRecord(n *News) {
	if n.Incarnation <= c.own.incarnation {
		c.counts.Old++
		return
	}
	c.tell(Event{What: Alarm, Peer: c.self, Incarnation: n.Incarnation, Cause: "an earlier start of this node had a higher incarnation"})
	c.own.incarnation = n.Incarnation + 1
	c.speak()
}

// accusation takes what one node says of another.
func (c *Core) accusation(now time.Duration, from proto.PeerID, n *News) {
	m := c.members[n.Peer]
	switch {
	case m == nil || m.status == Unknown || n.Incarnation > m.incarnation:
		c.counts.Unheard++ // somebody knows a record of it that is lacking here
		if f := c.members[from]; f != nil {
			c.wantSync(now, f, false)
		}
	case n.Incarnation < m.incarnation || m.gone() || n.By == c.self:
		c.counts.Old++
	case c.t.Plain && n.Liveness == proto.Dead:
		c.condemn(now, m, n)
	case m.status == Suspect && m.suspicion.has(n.By):
		c.counts.Old++
	case !c.t.Plain && !c.trust.take(now, n.By):
		c.counts.Silenced++
	default:
		c.suspect(now, m, n.By, n)
	}
}

// recorded takes what a node says of itself.
func (c *Core) recorded(now time.Duration, n *News) {
	if c.graves.covers(n.Peer, n.Incarnation) {
		c.counts.StaleDead++
		return
	}
	m := c.row(n.Peer)
	if m == nil {
		return // full
	}
	known := m.status != Unknown
	if known && (n.Incarnation < m.incarnation || n.Incarnation == m.incarnation && (m.status == Left || n.Record.GetRevision() <= m.revision())) {
		c.counts.Old++
		return
	}
	newer := !known || n.Incarnation > m.incarnation
	described := m.record == nil || !alike(m.record.Record, n.Record)
	m.incarnation, m.record = n.Incarnation, n
	c.known = nil
	c.rumors.add(n)
	switch {
	case n.Record.GetState() == proto.NodeStopped:
		c.change(now, m, Left, n.Peer)
	case newer && m.status != Alive:
		c.change(now, m, Alive, n.Peer)
		c.graves.open(n.Peer)
		if !known {
			c.wantSync(now, m, false) // first sight
		}
	}
	if described {
		c.tell(Event{What: Described, Peer: m.id, From: m.status, To: m.status, Incarnation: m.incarnation})
	}
}

// alike reports whether two records differ in nothing but load and numbers.
func alike(a, b *proto.NodeRecord) bool {
	return a.GetState() == b.GetState() && a.GetPriority() == b.GetPriority() && a.GetVersion() == b.GetVersion() &&
		slices.Equal(a.GetKinds(), b.GetKinds()) && slices.Equal(a.GetLabels(), b.GetLabels()) && slices.Equal(a.GetAddrs(), b.GetAddrs()) &&
		slices.EqualFunc(a.GetRelays(), b.GetRelays(), bytes.Equal)
}
