package gossip

import (
	"bytes"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// learn applies updates from another node, in order.
func (c *Core) learn(now time.Duration, from proto.PeerID, updates []*Update) {
	for _, n := range updates {
		switch {
		case n.accuses() && n.Peer == c.self:
			c.handleSelfAccusation(now, n)
		case n.accuses():
			c.handleAccusation(now, from, n)
		case n.Peer == c.self:
			c.handleOwnRecord(n)
		default:
			c.handleRecord(now, n)
		}
	}
}

// handleOwnRecord handles a record that this node signed in an earlier life, after its
// disk was rolled back and its clock set back. The incarnation must exceed that one.
func (c *Core) handleOwnRecord(n *Update) {
	if n.Incarnation <= c.own.incarnation {
		c.counts.Stale++
		return
	}
	c.emit(Event{Kind: Alarm, Peer: c.self, Incarnation: n.Incarnation, Cause: "an earlier start of this node used a higher incarnation"})
	c.own.incarnation = n.Incarnation + 1
	c.announce()
}

// handleAccusation applies an accusation of another node.
func (c *Core) handleAccusation(now time.Duration, from proto.PeerID, n *Update) {
	m := c.members[n.Peer]
	switch {
	case m == nil || m.status == Unknown || n.Incarnation > m.incarnation:
		c.counts.UnknownIncarnation++ // a record of it is missing here
		if f := c.members[from]; f != nil {
			c.requestSync(now, f, false)
		}
	case n.Incarnation < m.incarnation || m.gone() || n.By == c.self:
		c.counts.Stale++
	case c.t.Plain && n.Liveness == proto.Dead:
		c.declareDead(now, m, n)
	case m.status == Suspect && m.suspicion.has(n.By):
		c.counts.Stale++
	case !c.t.Plain && !c.accusationLimit.allow(now, n.By):
		c.counts.Throttled++
	default:
		c.suspect(now, m, n.By, n)
	}
}

// handleRecord applies a record that a node signed itself.
func (c *Core) handleRecord(now time.Duration, n *Update) {
	if c.tombstones.covers(n.Peer, n.Incarnation) {
		c.counts.StaleDead++
		return
	}
	m := c.row(n.Peer)
	if m == nil {
		return // full
	}
	known := m.status != Unknown
	if known && (n.Incarnation < m.incarnation || n.Incarnation == m.incarnation && (m.status == Left || n.Record.GetRevision() <= m.revision())) {
		c.counts.Stale++
		return
	}
	newer := !known || n.Incarnation > m.incarnation
	described := m.record == nil || !sameDescription(m.record.Record, n.Record)
	refutes := newer && m.status == Suspect
	leaves := n.Record.GetState() == proto.NodeStopped && m.status != Left // nobody may be left to tell it later
	// An event leads to a write to disk. The newest of the records that are ignored comes with an exchange.
	event := described || newer && m.status != Alive
	if known && event && !refutes && !leaves && !c.t.Plain && !c.recordLimit.allow(now, n.Peer) {
		c.counts.Throttled++
		return
	}
	m.incarnation, m.record = n.Incarnation, n
	c.cachedDigest = nil
	if newer || described { // of load and measurements the topic and exchanges tell
		c.rumors.add(n)
	}
	switch {
	case n.Record.GetState() == proto.NodeStopped:
		c.change(now, m, Left, n.Peer)
	case newer && m.status != Alive:
		c.change(now, m, Alive, n.Peer)
		c.tombstones.remove(n.Peer)
		if !known {
			c.requestSync(now, m, false) // first record
		}
	}
	if described {
		c.emit(Event{Kind: Described, Peer: m.id, From: m.status, To: m.status, Incarnation: m.incarnation})
	}
}

// sameDescription reports whether two records differ only in load and measurements.
func sameDescription(a, b *proto.NodeRecord) bool {
	return a.GetState() == b.GetState() && a.GetPriority() == b.GetPriority() && a.GetVersion() == b.GetVersion() &&
		slices.Equal(a.GetKinds(), b.GetKinds()) && slices.Equal(a.GetLabels(), b.GetLabels()) && slices.Equal(a.GetAddrs(), b.GetAddrs()) &&
		slices.EqualFunc(a.GetRelays(), b.GetRelays(), bytes.Equal)
}
