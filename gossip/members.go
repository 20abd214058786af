package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Member is what is known of another node. It is a copy.
type Member struct {
	Peer        proto.PeerID
	Status      Status
	Eligible    bool // may have new work: ALIVE, RUNNING, and not just back
	Connected   bool
	Incarnation uint64
	Since       time.Duration     // that it has had this status
	Heard       time.Duration     // since it last spoke to this node; negative: never
	Flaps       int               // within the time in which new work is kept away
	Record      *proto.NodeRecord // newest; nil: none was heard. Not to be changed
	RTT         time.Duration     // of probes, smoothed; 0: not measured
	Loss        float64           // of direct probes, smoothed: 0 to 1
	Accusers    []proto.PeerID    // of a suspect and of the dead
}

// Member returns what is known of p; false: nothing.
func (c *Core) Member(now time.Duration, p proto.PeerID) (Member, bool) {
	m := c.members[p]
	if m == nil {
		return Member{}, false
	}
	return m.view(now), true
}

// Members returns all others that are known, in order of their ids.
func (c *Core) Members(now time.Duration) []Member {
	all := make([]Member, 0, len(c.members))
	for _, m := range c.members {
		all = append(all, m.view(now))
	}
	slices.SortFunc(all, func(a, b Member) int { return a.Peer.Compare(b.Peer) })
	return all
}

func (m *member) view(now time.Duration) Member {
	v := Member{
		Peer: m.id, Status: m.status, Eligible: m.eligible(now), Connected: m.connected, Incarnation: m.incarnation,
		Since: now - m.since, Heard: -1, Flaps: m.flaps, RTT: m.path.rtt, Loss: m.path.loss,
	}
	if m.path.heard > 0 {
		v.Heard = now - m.path.heard
	}
	if m.record != nil {
		v.Record = m.record.Record
	}
	if m.suspicion != nil {
		for _, n := range m.suspicion.by {
			v.Accusers = append(v.Accusers, n.By)
		}
	}
	return v
}

// Counts returns what happened since the start.
func (c *Core) Counts() Counts { return c.counts }

// Health returns the local health: 0 is good, 8 is as bad as it gets.
func (c *Core) Health() int { return c.own.health }

// Incarnation returns the node's own.
func (c *Core) Incarnation() uint64 { return c.own.incarnation }

// maxRTTs bounds the round trips that wait to be read.
const maxRTTs = 64

// RTTs returns the round trips of probes since it was last asked.
func (c *Core) RTTs() []time.Duration {
	all := c.probing.rtts
	c.probing.rtts = c.probing.rtts[:0]
	return all
}
