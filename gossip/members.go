package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Member describes another node. It is a copy.
type Member struct {
	Peer        proto.PeerID
	Status      Status
	Eligible    bool // may receive new work: ALIVE, RUNNING, and not recovering
	Connected   bool
	Incarnation uint64
	Since       time.Duration     // time since the last status change; of a pruned node, since it died
	Record      *proto.NodeRecord // newest; nil: none received. Must not be modified
	Loss        float64           // of direct probes, smoothed: 0 to 1
	Accusers    []proto.PeerID    // of a SUSPECT or DEAD member
}

// Member returns what is known about p; false: p is unknown.
func (c *Core) Member(now time.Duration, p proto.PeerID) (Member, bool) {
	m := c.members[p]
	if m == nil {
		return Member{}, false
	}
	return m.view(now), true
}

// Members returns all other known nodes, ordered by id.
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
		Since: now - m.since, Loss: m.path.loss,
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

// maxRTTs bounds the unread round trips.
const maxRTTs = 64

// RTTs returns the round trips of probes since the last call.
func (c *Core) RTTs() []time.Duration {
	all := c.probing.rtts
	c.probing.rtts = c.probing.rtts[:0]
	return all
}
