package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// maxRumors bounds what waits to ride on probes.
const maxRumors = 512

// rumors holds the news that ride on probes, each a number of times. The one that
// was sent least often is at the front.
type rumors struct {
	waiting []rumor
}

type rumor struct {
	news *News
	sent int
}

func (r *rumors) init() { r.waiting = make([]rumor, 0, 16) }

// add takes n up and drops what it makes void.
func (r *rumors) add(n *News) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o rumor) bool {
		return o.news.Peer == n.Peer && (o.news.Incarnation < n.Incarnation || o.news.By == n.By)
	})
	if len(r.waiting) >= maxRumors {
		r.waiting = r.waiting[:maxRumors-1]
	}
	r.waiting = slices.Insert(r.waiting, 0, rumor{news: n})
}

// drop forgets the news of p.
func (r *rumors) drop(p proto.PeerID) {
	r.waiting = slices.DeleteFunc(r.waiting, func(o rumor) bool { return o.news.Peer == p || o.news.By == p })
}

// take appends up to room of them to news and counts it.
func (r *rumors) take(news []*News, room, limit int) []*News {
	n := min(room, len(r.waiting))
	if n <= 0 {
		return news
	}
	head := make([]rumor, 0, proto.MaxPiggyback)
	for _, o := range r.waiting[:n] {
		if !slices.Contains(news, o.news) {
			news = append(news, o.news)
		}
		if o.sent++; o.sent < limit {
			head = append(head, o)
		}
	}
	r.waiting = append(slices.Delete(r.waiting, 0, n), head...)
	return news
}

// piggyback returns what rides on a message to m: at the front what is said of m, so
// that it can answer, and news.
func (c *Core) piggyback(m *member) []*News {
	var news []*News
	if m.suspicion != nil && !c.t.Plain && len(m.suspicion.by) > 0 {
		news = append(news, m.suspicion.by[0])
	}
	return c.rumors.take(news, proto.MaxPiggyback-len(news), transmits(c.alive+1))
}

// piggybackTo is piggyback for somebody who may be unknown, or forgotten: who is in a
// grave is told that it is dead, so that it can come back with a higher incarnation.
func (c *Core) piggybackTo(p proto.PeerID) []*News {
	if m := c.members[p]; m != nil {
		if m.status == Dead && c.t.Plain { // SWIM has no other way back
			return m.suspicion.by[:1]
		}
		if m.status != Unknown {
			return c.piggyback(m)
		}
	}
	if inc, buried := c.graves.of[p]; buried {
		return []*News{c.voice.Accuse(p, inc, proto.Dead)}
	}
	return c.rumors.take(nil, proto.MaxPiggyback, transmits(c.alive+1))
}

// maxGraves bounds how many forgotten nodes are remembered by their incarnation.
const maxGraves = 4096

// graves remembers the last incarnation of nodes whose rows were pruned: an old record
// that still goes round does not bring them back.
type graves struct {
	of    map[proto.PeerID]uint64
	order []proto.PeerID // the oldest first
}

func (g *graves) init() { g.of = make(map[proto.PeerID]uint64) }

func (g *graves) dig(p proto.PeerID, incarnation uint64) {
	g.open(p)
	if len(g.order) >= maxGraves {
		delete(g.of, g.order[0])
		g.order = g.order[1:]
	}
	g.of[p] = incarnation
	g.order = append(g.order, p)
}

func (g *graves) open(p proto.PeerID) {
	if _, ok := g.of[p]; ok {
		delete(g.of, p)
		g.order = slices.DeleteFunc(g.order, func(o proto.PeerID) bool { return o == p })
	}
}

func (g *graves) covers(p proto.PeerID, incarnation uint64) bool {
	inc, ok := g.of[p]
	return ok && incarnation <= inc
}

// What one accuser may say: so many accusations at once, and one more each time that
// trustEvery has passed. Who accuses more is ill, or lies.
const (
	trustBurst = 32
	trustEvery = 2 * time.Second
)

// trust bounds the accusations of each node that are listened to.
type trust struct {
	of map[proto.PeerID]credit
}

type credit struct {
	left float64
	at   time.Duration
}

func (t *trust) init() { t.of = make(map[proto.PeerID]credit) }

func (t *trust) take(now time.Duration, p proto.PeerID) bool {
	c, ok := t.of[p]
	if !ok {
		c = credit{left: trustBurst, at: now}
	}
	c.left = min(trustBurst, c.left+float64(now-c.at)/float64(trustEvery))
	c.at = now
	ok = c.left >= 1
	if ok {
		c.left--
	}
	t.of[p] = c
	return ok
}
