package gossip

import (
	"cmp"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// Prune forgets up to limit nodes that have been dead for longer than age, the
// longest first, and returns them. With dry it only returns them. Only liveness is
// forgotten: the node stays a member, and gets a new row when it returns.
func (c *Core) Prune(now, age time.Duration, limit int, dry bool) ([]proto.PeerID, []Action) {
	c.begin(now)
	if dry {
		return ids(c.prunable(now, age, limit)), c.end(now)
	}
	return ids(c.prune(now, age, limit)), c.end(now)
}

func (c *Core) prune(now, age time.Duration, limit int) []*member {
	stale := c.prunable(now, age, limit)
	for _, m := range stale {
		c.counts.Pruned++
		c.tombstones.add(m.id, m.incarnation)
		c.remove(m)
		if again := c.row(m.id); again != nil { // still a member of the mesh, with unknown liveness
			again.since = m.since
		}
		c.emit(Event{Kind: Pruned, Peer: m.id, From: m.status, Incarnation: m.incarnation})
	}
	return stale
}

// prunable returns the members that may be forgotten. One that has left is not: with its row
// this node would forget that nothing is to be heard of it, and call itself isolated.
func (c *Core) prunable(now, age time.Duration, limit int) []*member {
	var stale []*member
	for _, m := range c.members {
		if m.status == Dead && now-m.since > age {
			stale = append(stale, m)
		}
	}
	slices.SortFunc(stale, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.since, b.since), a.id.Compare(b.id))
	})
	return stale[:min(len(stale), max(limit, 0))]
}

// remove removes m from all lists.
func (c *Core) remove(m *member) {
	is := func(o *member) bool { return o == m }
	delete(c.members, m.id)
	c.full = false
	c.probing.remove(m)
	c.suspects = slices.DeleteFunc(c.suspects, is)
	c.recovering = slices.DeleteFunc(c.recovering, is)
	c.rumors.drop(m.id)
	delete(c.accusationLimit.byPeer, m.id)
	delete(c.recordLimit.byPeer, m.id)
	switch m.status {
	case Alive, Suspect:
		c.alive--
	case Left:
		c.left--
	}
	c.cachedDigest = nil
}

func ids(rows []*member) []proto.PeerID {
	var all []proto.PeerID
	for _, m := range rows {
		all = append(all, m.id)
	}
	return all
}
