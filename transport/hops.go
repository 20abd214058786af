package transport

import (
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// A way over a relay has two halves. The one from here is measured here; the one
// from there to the peer only the peer can measure, so that each node tells the
// others of its own:
//
//	this node ──── near: its gauge ───▶ relay ◀── far: Config.Hops(peer) ──── peer

// maxHops bounds the ways to relays that a node tells.
const maxHops = 4

// A Hop is a direct way to a relay, as the node that has it measured it.
type Hop struct {
	Relay proto.PeerID
	Path  route.Path
}

// hopPicker is which ways to relays this node tells. They stay the same while none is better
// by much for long: each change goes to every member.
type hopPicker struct {
	mu     sync.Mutex
	pick   route.Picker
	picked []proto.PeerID
}

// choose returns those of all that are told at now, by the ids of the relays.
func (t *hopPicker) choose(all []Hop, score func(route.Path) float64, now time.Duration) []Hop {
	there := make([]route.Candidate, len(all))
	for i, h := range all {
		there[i] = route.Candidate{Peer: h.Relay, Score: score(h.Path)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pick.Want = maxHops
	t.picked = t.pick.Pick(t.picked, there, now)
	all = slices.DeleteFunc(all, func(h Hop) bool { return !slices.Contains(t.picked, h.Relay) })
	slices.SortFunc(all, func(a, b Hop) int { return comparePeers(a.Relay, b.Relay) })
	return all
}

// Hops returns this node's direct ways to members that relay, by their ids: of
// many the best, or those that were it until a moment ago.
func (t *Transport) Hops() []Hop {
	var all []Hop
	for _, r := range t.relays() {
		if c := t.best(r); c != nil && c.direct() && r != t.self {
			if p := c.meter.path(); p != (route.Path{}) {
				all = append(all, Hop{r, p})
			}
		}
	}
	score := func(p route.Path) float64 { return t.cfg.Weights.Score(p).Total }
	return t.reach.hops.choose(all, score, t.cfg.Clock.Mono())
}

// farHop returns the way from p to relay r, as p says; zero: it says nothing of it.
func (t *Transport) farHop(p, r proto.PeerID) route.Path {
	if t.cfg.Hops == nil {
		return route.Path{}
	}
	for _, h := range t.cfg.Hops(p) {
		if h.Relay == r {
			return h.Path
		}
	}
	return route.Path{}
}

// nearHop returns the way from here to relay r, as far as it was measured, and what
// is taken off the score of each way over it: one that must be dialled first, or
// that is silent when it should not be, stands behind.
func (t *Transport) nearHop(r proto.PeerID) (p route.Path, off float64) {
	c := t.best(r)
	if c == nil || !c.direct() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if n := t.peers[r]; n != nil {
			p = n.measured
		}
		return p, dialPenalty
	}
	if c.holdsReservation.Load() && c.clock.Mono()-c.heard() > silentAfter {
		off = silentPenalty
	}
	return c.meter.path(), off
}

// scoreOf returns how good the path to a relay is.
func (t *Transport) scoreOf(r proto.PeerID) float64 {
	p, off := t.nearHop(r)
	return t.cfg.Weights.Score(p).Total - off
}

// scoreVia returns how good the whole way to p over relay r is.
func (t *Transport) scoreVia(r, p proto.PeerID) float64 {
	near, off := t.nearHop(r)
	return t.cfg.Weights.Score(route.Join(near, t.farHop(p, r))).Total - off
}

// An relayDemand is who needs a relay to come to this node, and their ways to relays.
type relayDemand struct {
	made time.Duration
	hops [][]Hop // of each
}

// maxDemand bounds the peers for whom relays are chosen.
const maxDemand = 64

// relayDemand returns the hops of the contacts that no direct connection leads to.
func (t *Transport) relayDemand() (o relayDemand) {
	o.made = t.cfg.Clock.Mono()
	if t.cfg.Directory == nil || t.cfg.Hops == nil {
		return o
	}
	for _, c := range t.cfg.Directory.Contacts() {
		if conn := t.best(c.Peer); conn != nil && conn.direct() || len(o.hops) == maxDemand {
			continue
		}
		if h := t.cfg.Hops(c.Peer); len(h) > 0 {
			o.hops = append(o.hops, h)
		}
	}
	return o
}

// scoreFor returns how good a place at relay r is: the mean of the whole ways
// that those in o would have over it to this node, or of the way to it when there
// are none.
func (t *Transport) scoreFor(r proto.PeerID, o relayDemand) float64 {
	near, off := t.nearHop(r)
	if len(o.hops) == 0 {
		return t.cfg.Weights.Score(near).Total - off
	}
	var sum float64
	for _, hops := range o.hops {
		var far route.Path
		if i := slices.IndexFunc(hops, func(h Hop) bool { return h.Relay == r }); i >= 0 {
			far = hops[i].Path
		}
		sum += t.cfg.Weights.Score(route.Join(near, far)).Total
	}
	return sum/float64(len(o.hops)) - off
}
