package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// maxRumors bounds the rumors that wait to be piggybacked.
const maxRumors = 512

// rumors holds the updates to piggyback on probes, each a limited number of times. The
// one that was sent least often is first.
type rumors struct {
	waiting []rumor
}

type rumor struct {
	update *Update
	sent   int
}

func (r *rumors) init() { r.waiting = make([]rumor, 0, 16) }

// add adds n and removes what it supersedes.
func (r *rumors) add(n *Update) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o rumor) bool {
		return o.update.Peer == n.Peer && (o.update.Incarnation < n.Incarnation || o.update.By == n.By)
	})
	if len(r.waiting) >= maxRumors {
		r.waiting = r.waiting[:maxRumors-1]
	}
	r.waiting = slices.Insert(r.waiting, 0, rumor{update: n})
}

// drop removes the updates about and by p.
func (r *rumors) drop(p proto.PeerID) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o rumor) bool { return o.update.Peer == p || o.update.By == p })
}

// take appends up to room of them to updates and counts them as sent.
func (r *rumors) take(updates []*Update, runner, limit int) []*Update {
	n := min(runner, len(r.waiting))
	if n <= 0 {
		return updates
	}
	head := make([]rumor, 0, proto.MaxPiggyback)
	for _, o := range r.waiting[:n] {
		if !slices.Contains(updates, o.update) {
			updates = append(updates, o.update)
		}
		if o.sent++; o.sent < limit {
			head = append(head, o)
		}
	}
	r.waiting = append(slices.Delete(r.waiting, 0, n), head...)
	return updates
}

// piggyback returns the updates for a message to m: first an accusation of m, so that it
// can refute it, then rumors.
func (c *Core) piggyback(m *member) []*Update {
	var updates []*Update
	if m.suspicion != nil && !c.t.Plain && len(m.suspicion.by) > 0 {
		updates = append(updates, m.suspicion.by[0])
	}
	return c.rumors.take(updates, proto.MaxPiggyback-len(updates), transmits(c.alive+1))
}

// piggybackTo is piggyback for a node that may be unknown or forgotten: a node with a
// tombstone is told that it is dead, so that it can return with a higher incarnation.
func (c *Core) piggybackTo(p proto.PeerID) []*Update {
	if m := c.members[p]; m != nil {
		if m.status == Dead && c.t.Plain { // the only way back in SWIM
			return m.suspicion.by[:1]
		}
		if m.status != Unknown {
			return c.piggyback(m)
		}
	}
	if inc, buried := c.tombstones.byPeer[p]; buried {
		return []*Update{c.signer.Accuse(p, inc, proto.Dead)}
	}
	return c.rumors.take(nil, proto.MaxPiggyback, transmits(c.alive+1))
}

// maxTombstones bounds the number of tombstones.
const maxTombstones = 4096

// tombstones holds the last incarnations of pruned nodes: an old record that is still
// circulating does not bring them back.
type tombstones struct {
	byPeer map[proto.PeerID]uint64
	order  []proto.PeerID // oldest first
}

func (g *tombstones) init() { g.byPeer = make(map[proto.PeerID]uint64) }

func (g *tombstones) add(p proto.PeerID, incarnation uint64) {
	g.remove(p)
	if len(g.order) >= maxTombstones {
		delete(g.byPeer, g.order[0])
		g.order = g.order[1:]
	}
	g.byPeer[p] = incarnation
	g.order = append(g.order, p)
}

func (g *tombstones) remove(p proto.PeerID) {
	if _, ok := g.byPeer[p]; ok {
		delete(g.byPeer, p)
		g.order = slices.DeleteFunc(g.order, func(o proto.PeerID) bool { return o == p })
	}
}

func (g *tombstones) covers(p proto.PeerID, incarnation uint64) bool {
	inc, ok := g.byPeer[p]
	return ok && incarnation <= inc
}

// The rate limit of accusations by one node, and of changes that it states of itself: a burst,
// and one more every limitEvery. A node that exceeds it is faulty or malicious.
const (
	limitBurst = 32
	limitEvery = 2 * time.Second
)

// A rateLimit limits the rate of something by each node.
type rateLimit struct {
	byPeer map[proto.PeerID]tokenBucket
}

type tokenBucket struct {
	tokens float64
	at     time.Duration
}

func (t *rateLimit) init() { t.byPeer = make(map[proto.PeerID]tokenBucket) }

func (t *rateLimit) allow(now time.Duration, p proto.PeerID) bool {
	c, ok := t.byPeer[p]
	if !ok {
		c = tokenBucket{tokens: limitBurst, at: now}
	}
	c.tokens = min(limitBurst, c.tokens+float64(now-c.at)/float64(limitEvery))
	c.at = now
	ok = c.tokens >= 1
	if ok {
		c.tokens--
	}
	t.byPeer[p] = c
	return ok
}
