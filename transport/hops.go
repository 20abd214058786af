package transport

import (
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// A path through a relay has two halves. The near one is measured here; the far one only
// the peer can measure, so each node publishes the measurements of its own half:
//
//	this node ──── near: its meter ───▶ relay ◀── far: Config.Hops(peer) ──── peer

// maxHops bounds the published paths to relays.
const maxHops = 4

// A Hop is a direct path to a relay, as measured by the node that has it.
type Hop struct {
	Relay proto.PeerID
	Path  route.Path
}

// A hopPicker selects the paths to relays that this node publishes. The selection is
// stable while no other path is much better for long, since each change is sent to every
// member.
type hopPicker struct {
	mu     sync.Mutex
	pick   route.Picker
	picked []proto.PeerID
}

// choose returns the members of all to publish at now, ordered by relay id.
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

// Hops returns this node's direct paths to members that relay, ordered by id: the best
// ones, or those that recently were.
func (t *Transport) Hops() []Hop { return t.relays.published() }

// published is [Transport.Hops].
func (rs *relays) published() []Hop {
	var all []Hop
	for _, r := range rs.list() {
		if c := rs.peers.best(r); c != nil && c.direct() && r != rs.self {
			if p := c.meter.path(); p != (route.Path{}) {
				all = append(all, Hop{r, p})
			}
		}
	}
	score := func(p route.Path) float64 { return rs.cfg.Weights.Score(p).Total }
	return rs.hops.choose(all, score, rs.cfg.Clock.Mono())
}

// farHop returns the path from p to relay r, as published by p; zero: not published.
func (rs *relays) farHop(p, r proto.PeerID) route.Path {
	if rs.cfg.Hops == nil {
		return route.Path{}
	}
	for _, h := range rs.cfg.Hops(p) {
		if h.Relay == r {
			return h.Path
		}
	}
	return route.Path{}
}

// nearHop returns the path from this node to relay r, as far as measured, and a penalty
// for each path through it: a relay that must be dialed first, is unexpectedly silent or drops
// circuits ranks lower.
func (rs *relays) nearHop(r proto.PeerID) (p route.Path, off float64) {
	if rs.drops(r) {
		off = dropPenalty
	}
	c := rs.peers.best(r)
	if c == nil || !c.direct() {
		rs.peers.mu.Lock()
		defer rs.peers.mu.Unlock()
		if n := rs.peers.byID[r]; n != nil {
			p = n.measured
		}
		return p, off + dialPenalty
	}
	if c.silent() {
		off += silentPenalty
	}
	return c.meter.path(), off
}

// A relayDemand lists the paths to relays of the peers that need a relay to reach this
// node.
type relayDemand struct {
	made time.Duration
	hops [][]Hop // of each
}

// maxDemand bounds the peers for which relays are chosen.
const maxDemand = 64

// demand returns the hops of the contacts without a direct connection.
func (rs *relays) demand() (o relayDemand) {
	o.made = rs.cfg.Clock.Mono()
	if rs.cfg.Hops == nil {
		return o
	}
	for _, c := range rs.members.contacts() {
		if conn := rs.peers.best(c.Peer); conn != nil && conn.direct() || len(o.hops) == maxDemand {
			continue
		}
		if h := rs.cfg.Hops(c.Peer); len(h) > 0 {
			o.hops = append(o.hops, h)
		}
	}
	return o
}

// scoreFor returns the score of a reservation at relay r: the mean score of the whole
// paths that the peers in o would have through it to this node, or of the path to it if
// there are none.
func (rs *relays) scoreFor(r proto.PeerID, o relayDemand) (mean route.Score) {
	near, off := rs.nearHop(r)
	if len(o.hops) == 0 {
		mean = rs.cfg.Weights.Score(near)
		mean.Total -= off
		return mean
	}
	for _, hops := range o.hops {
		var far route.Path
		if i := slices.IndexFunc(hops, func(h Hop) bool { return h.Relay == r }); i >= 0 {
			far = hops[i].Path
		}
		s := rs.cfg.Weights.Score(route.Join(near, far))
		mean.Bandwidth += s.Bandwidth / float64(len(o.hops))
		mean.Latency += s.Latency / float64(len(o.hops))
		mean.Loss += s.Loss / float64(len(o.hops))
	}
	mean.Total = mean.Bandwidth + mean.Latency - mean.Loss - off
	return mean
}
