package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// Timing of exchanges.
const (
	syncGap    = 250 * time.Millisecond // between two exchanges that this node begins
	syncAgain  = 5 * time.Second        // between two exchanges with the same peer without a new reason
	syncSpread = 500 * time.Millisecond // random delay, so that two newly connected nodes do not both begin
	syncSoon   = 3 * time.Second        // retry with a connected node that was never heard from
)

// syncs holds the pending exchanges.
type syncs struct {
	queue     []pendingSync
	gap       time.Duration // no exchange begins before
	different int           // roots received in a row that differ from this node's
}

// A pendingSync is an exchange to begin.
type pendingSync struct {
	m     *member
	since time.Duration // an exchange after this time fulfills it
	due   time.Duration
}

func (s *syncs) next() time.Duration {
	next := never
	for i := range s.queue {
		next = min(next, max(s.queue[i].due, s.gap))
	}
	return next
}

// requestSync requests an exchange with m. fresh: there is a new reason for it.
func (c *Core) requestSync(now time.Duration, m *member, fresh bool) {
	if !fresh && m.synced > 0 && now-m.synced < syncAgain {
		return
	}
	if slices.ContainsFunc(c.syncs.queue, func(w pendingSync) bool { return w.m == m }) {
		return
	}
	c.syncs.queue = append(c.syncs.queue, pendingSync{m: m, since: now, due: now + c.jitter(syncSpread)})
	if m.status == Unknown {
		c.timers.sync = min(c.timers.sync, now+syncSoon)
	}
}

// tickSyncs begins the next exchange.
func (c *Core) tickSyncs(now time.Duration) {
	s := &c.syncs
	for i := 0; i < len(s.queue); {
		w := s.queue[i]
		switch {
		case c.members[w.m.id] != w.m || w.m.synced > w.since:
			s.queue = slices.Delete(s.queue, i, i+1)
		case now >= w.due && now >= s.gap:
			s.queue = slices.Delete(s.queue, i, i+1)
			s.gap = now + syncGap
			c.do(Action{Kind: DoSync, Peer: w.m.id})
		default:
			i++
		}
	}
}

// syncRandom requests an exchange with a random member: with a connected one that was
// never heard from if there is one, sometimes with a dead one, otherwise with one that is
// alive.
func (c *Core) syncRandom(now time.Duration) {
	var unheard, dead []*member
	for _, m := range c.members {
		switch {
		case m.status == Unknown && m.connected:
			unheard = append(unheard, m)
		case m.status == Dead:
			dead = append(dead, m)
		}
	}
	byID := func(a, b *member) int { return a.id.Compare(b.id) }
	if len(unheard) > 0 {
		slices.SortFunc(unheard, byID) // map order does not depend on the seed
		c.requestSync(now, unheard[c.rand.IntN(len(unheard))], false)
		c.timers.sync = min(c.timers.sync, now+syncSoon)
		return
	}
	if len(dead) > 0 && c.rand.IntN(4) == 0 {
		slices.SortFunc(dead, byID)
		c.requestSync(now, dead[c.rand.IntN(len(dead))], false)
		return
	}
	for _, m := range c.pick(1, func(m *member) bool { return m.status == Alive }) {
		c.requestSync(now, m, false)
	}
}

// RootReceived compares another node's published root: a difference leads to an exchange. If only
// the root of that node differs, so that most others see a difference too, about two of them begin one: it may
// be behind a narrow link. After two differences in a row this node may lack something itself; while
// a record spreads most others see that too, so that they do not all ask the same node.
func (c *Core) RootReceived(now time.Duration, from proto.PeerID, same bool) []Action {
	c.begin(now)
	c.lastHeard = now
	if same {
		c.syncs.different = 0
		return c.end(now)
	}
	c.syncs.different++
	m := c.members[from]
	switch {
	case m == nil:
	case c.syncs.different > 1:
		for _, m := range c.pick(1, func(m *member) bool { return m.status == Alive }) {
			c.requestSync(now, m, false)
		}
	case c.rand.IntN(max(c.alive, 1)) < 2:
		c.requestSync(now, m, false)
	}
	return c.end(now)
}

// NeedsSync reports that from knows of a node that is unknown here.
func (c *Core) NeedsSync(now time.Duration, from proto.PeerID) []Action {
	c.begin(now)
	if m := c.members[from]; m != nil {
		c.requestSync(now, m, false)
	}
	return c.end(now)
}
