package transport

import (
	"cmp"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/peerstore"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// relays knows the members that relay, and how good the paths through them are. It keeps
// nothing but which paths it has published last: what was measured is in the table of peers.
type relays struct {
	self    proto.PeerID
	cfg     Config
	gate    Gate
	peers   *peerTable
	members *members
	book    peerstore.Peerstore
	hops    hopPicker // selects the paths to relays that this node publishes
}

// list returns the members that may be asked for a reservation or a circuit. Many
// certificates permit relaying although the operator disabled it: what a node announced
// by identify, while that is remembered, avoids futile attempts.
func (rs *relays) list() []proto.PeerID {
	return slices.DeleteFunc(rs.cfg.Relays(), func(p proto.PeerID) bool {
		announced, err := rs.book.GetProtocols(toLibp2p(p))
		return err == nil && slices.Contains(announced, identify.ID) && !slices.Contains(announced, circuitproto.ProtoIDv2Hop)
	})
}

// viaPath returns the path to p through relay r: as compared last, or as measured on an
// open circuit, or else as estimated from its two halves. off is subtracted from its score.
func (rs *relays) viaPath(r, p proto.PeerID) (path route.Path, off float64) {
	near, off := rs.nearHop(r)
	path = route.Join(near, rs.farHop(p, r))
	rs.peers.mu.Lock()
	n := rs.peers.byID[p]
	if n == nil {
		rs.peers.mu.Unlock()
		return path, off
	}
	m, compared := n.circuits[r]
	c := n.circuitBy(r)
	rs.peers.mu.Unlock()
	switch {
	case compared && rs.cfg.Clock.Mono()-m.at < measureTTL:
		return m.path, off
	case c != nil:
		if own := c.meter.path(); own.RTT > 0 {
			own.Rate = cmp.Or(own.Rate, path.Rate)
			return own, off
		}
	}
	return path, off
}

// A circuitDrops counts the circuits through a relay that failed in a row although it had agreed
// to them, or that it did not even refuse.
type circuitDrops struct {
	count int
	last  time.Duration // monotonic
}

// A relay drops circuits once so many failed in a row, until one succeeds or for so long: it is
// not tried while there are others.
const (
	maxDrops = 3
	dropsFor = 6 * time.Hour
)

// noteCircuit is a [circuitNote]. A handshake over a circuit takes some round trips, and a new relay
// resets the requests of a member whose hello it has not read yet.
func (rs *relays) noteCircuit(r, p proto.PeerID, err error, gaveUp bool, took time.Duration) {
	path, _ := rs.viaPath(r, p)
	rs.peers.mu.Lock()
	defer rs.peers.mu.Unlock()
	n := rs.peers.byID[r]
	switch {
	case n == nil:
	case err == nil:
		n.drops = circuitDrops{}
	case !gaveUp || took >= time.Second+4*path.RTT:
		n.drops.count++
		n.drops.last = rs.cfg.Clock.Mono()
	}
}

// drops reports whether r drops the circuits that this node makes.
func (rs *relays) drops(r proto.PeerID) bool {
	rs.peers.mu.Lock()
	defer rs.peers.mu.Unlock()
	n := rs.peers.byID[r]
	return n != nil && n.drops.count >= maxDrops && rs.cfg.Clock.Mono()-n.drops.last < dropsFor
}

// others returns the relays other than current through which p can be reached now.
func (rs *relays) others(p, current proto.PeerID) (all []proto.PeerID) {
	for _, r := range rs.members.contact(p).Relays {
		hop := rs.peers.best(r)
		if hop != nil && hop.direct() && r != rs.self && r != p && r != current && !rs.gate.Blocked(r) && !slices.Contains(all, r) && len(all) < maxRelaysTried-1 {
			all = append(all, r)
		}
	}
	return all
}

// circuitScore returns the path to p through relay r and its score, as relays are compared.
func (rs *relays) circuitScore(r, p proto.PeerID) (route.Path, route.Score) {
	path, off := rs.viaPath(r, p)
	s := rs.cfg.Weights.Score(path)
	s.Total -= off
	return path, s
}

// scoreOf returns the score of the path to a relay.
func (rs *relays) scoreOf(r proto.PeerID) float64 {
	p, off := rs.nearHop(r)
	return rs.cfg.Weights.Score(p).Total - off
}

// scoreVia returns the score of the whole path to p through relay r.
func (rs *relays) scoreVia(r, p proto.PeerID) float64 {
	_, s := rs.circuitScore(r, p)
	return s.Total
}

// circuitsTo returns the circuit addresses to try for c, best relay first. The relays
// that c named come first; after a failure all members that relay are added. Where that gives none,
// connected relays are tried.
func (rs *relays) circuitsTo(c proto.Contact, failed bool) []ma.Multiaddr {
	named := slices.Clone(c.Relays)
	announced := make(map[proto.PeerID][]ma.Multiaddr) // addresses of relays according to c
	for _, s := range c.Addrs {
		a, err := ma.NewMultiaddr(s)
		if err != nil {
			continue
		}
		if r, ok := relayOf(a); ok {
			named = append(named, r)
			announced[r] = append(announced[r], a)
		}
	}
	relays := rs.rank(named, c.Peer)
	if failed {
		relays = append(relays, rs.rank(rs.list(), c.Peer)...)
	}
	out := rs.circuits(relays, announced)
	if len(out) == 0 && !failed {
		out = rs.circuits(rs.rank(slices.DeleteFunc(rs.list(), func(r proto.PeerID) bool { return !rs.peers.connected(r) }), c.Peer), nil)
	}
	return out
}

// circuits returns circuit addresses through the best of relays, which are ranked. announced are those
// that the peer announced.
func (rs *relays) circuits(relays []proto.PeerID, announced map[proto.PeerID][]ma.Multiaddr) (out []ma.Multiaddr) {
	// Dials through relays are sequential, and a dead relay takes long to fail: relays
	// that are not connected are tried only if no other is.
	if slices.ContainsFunc(relays, rs.peers.connected) {
		relays = slices.DeleteFunc(relays, func(r proto.PeerID) bool { return !rs.peers.connected(r) })
	}
	var seen []proto.PeerID
	for _, r := range relays {
		if slices.Contains(seen, r) || len(seen) == maxRelaysTried {
			continue
		}
		if list := rs.circuitsBy(r, announced[r]); len(list) > 0 {
			seen = append(seen, r)
			out = append(out, list...)
		}
	}
	return out
}

// circuitsBy returns the circuit addresses through r. said are those that a peer
// announced.
func (rs *relays) circuitsBy(r proto.PeerID, announced []ma.Multiaddr) []ma.Multiaddr {
	if c := rs.peers.best(r); c != nil {
		if !c.direct() {
			return nil // a relay that is itself relayed is of no use
		}
		return []ma.Multiaddr{through(r, nil)}
	}
	out := slices.Clone(announced)
	for _, s := range rs.members.contact(r).Addrs {
		if a, err := ma.NewMultiaddr(s); err == nil && !isCircuit(a) {
			out = append(out, through(r, a))
		}
	}
	return out[:min(len(out), maxAddrsPerRelay)]
}

// rank sorts relays by the quality of the whole path through them, and omits this
// node, the target and blocked peers.
func (rs *relays) rank(relays []proto.PeerID, to proto.PeerID) []proto.PeerID {
	type ranked struct {
		relay proto.PeerID
		score float64
	}
	var all []ranked
	for _, r := range relays {
		if r == rs.self || r == to || rs.gate.Blocked(r) {
			continue
		}
		all = append(all, ranked{r, rs.scoreVia(r, to)})
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return cmp.Compare(b.score, a.score) })
	out := make([]proto.PeerID, len(all))
	for i, r := range all {
		out[i] = r.relay
	}
	return out
}

// scored returns the directly connected relays, best first, at most maxScored.
func (rs *relays) scored() (all []route.Candidate) {
	for _, p := range rs.list() {
		if c := rs.peers.best(p); c != nil && c.direct() && p != rs.self {
			all = append(all, route.Candidate{Peer: p, Score: rs.scoreOf(p)})
		}
	}
	slices.SortFunc(all, func(a, b route.Candidate) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), comparePeers(a.Peer, b.Peer))
	})
	return all[:min(len(all), maxScored)]
}
