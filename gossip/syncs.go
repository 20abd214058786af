package gossip

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// Pace of exchanges.
const (
	syncGap    = 250 * time.Millisecond // between two that this node begins
	syncAgain  = 5 * time.Second        // before the same peer is asked again without a reason of its own
	syncSpread = 500 * time.Millisecond // two that just connected do not begin at the same moment
	syncSoon   = 3 * time.Second        // after a connection: until it is tried again with who was never heard
)

// syncs holds the exchanges that are due.
type syncs struct {
	queue []pendingSync
	gap   time.Duration // not before
}

// A pendingSync is an exchange to come.
type pendingSync struct {
	m     *member
	since time.Duration // what came from m after that fulfils it
	due   time.Duration
}

func (s *syncs) next() time.Duration {
	next := never
	for i := range s.queue {
		next = min(next, max(s.queue[i].due, s.gap))
	}
	return next
}

// requestSync asks for an exchange with m. fresh says that there is a new reason.
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

// syncRandom asks for an exchange with a random node: with one that was never heard
// if it is connected, now and then with a dead one, else with one that is alive.
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
		slices.SortFunc(unheard, byID) // the order of a map is not of the seed
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

// RootReceived takes the root that another node published. A difference is mended directly.
func (c *Core) RootReceived(now time.Duration, from proto.PeerID, same bool) []Action {
	c.begin(now)
	c.heardFrom(now, from)
	if m := c.members[from]; m != nil && !same {
		c.requestSync(now, m, false)
	}
	return c.end(now)
}

// NeedsSync says that from knows of somebody that could not be verified here.
func (c *Core) NeedsSync(now time.Duration, from proto.PeerID) []Action {
	c.begin(now)
	if m := c.members[from]; m != nil {
		c.requestSync(now, m, false)
	}
	return c.end(now)
}
