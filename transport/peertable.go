package transport

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A peerTable has all connections and what is known of each peer. Its mu also guards
// each [peerState] and the [guardedState] of each connection. Whoever holds it may emit events,
// start tasks, log, count and move a link.
type peerTable struct {
	clock clock.Clock

	mu      sync.Mutex
	conns   map[network.Conn]*conn
	byID    map[proto.PeerID]*peerState
	joining map[proto.PeerID]int // dialed for a join, without a hello
}

func newPeerTable(clk clock.Clock) *peerTable {
	return &peerTable{
		clock: clk, conns: make(map[network.Conn]*conn), byID: make(map[proto.PeerID]*peerState), joining: make(map[proto.PeerID]int),
	}
}

// get returns the state of p, creating it if needed. The caller holds mu.
func (pt *peerTable) get(p proto.PeerID) *peerState {
	n := pt.byID[p]
	if n == nil {
		n = &peerState{peer: p, tasks: newIntake(), leases: newIntake(), mail: newIntake(), bodies: make(chan struct{}, maxBodies), wake: make(chan struct{}, 1)}
		pt.byID[p] = n
	}
	return n
}

// forget drops the state of a stranger, so that strangers cost no memory. The caller
// holds mu.
func (pt *peerTable) forget(n *peerState) {
	if n.lastSeen.IsZero() && len(n.conns) == 0 && !n.linking && n.dialing == 0 && n.dial == (redialState{}) {
		delete(pt.byID, n.peer)
	}
}

// connected reports whether there is a verified connection to p.
func (pt *peerTable) connected(p proto.PeerID) bool { return pt.best(p) != nil }

// connectedPeers returns the peers with a verified connection.
func (pt *peerTable) connectedPeers() []proto.PeerID {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	var all []proto.PeerID
	for p, n := range pt.byID {
		if len(n.conns) > 0 {
			all = append(all, p)
		}
	}
	return all
}

// roundTrip returns the longest of the known round trips to p; 0: none.
func (pt *peerTable) roundTrip(p proto.PeerID) (rtt time.Duration) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if n := pt.byID[p]; n != nil {
		for _, c := range n.conns {
			rtt = max(rtt, c.longestRTT())
		}
	}
	return rtt
}

// heardSince reports whether anything came from a member since then. The caller holds mu.
func (pt *peerTable) heardSince(then time.Duration) bool {
	for _, n := range pt.byID {
		if slices.ContainsFunc(n.conns, func(c *conn) bool { return c.heard() >= then }) {
			return true
		}
	}
	return false
}

// best returns the connection for new streams: the newest direct one, or else the relayed
// one that was chosen last.
func (pt *peerTable) best(p proto.PeerID) *conn {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	n := pt.byID[p]
	if n == nil {
		return nil
	}
	return n.best()
}

// nextConn returns a connection to p that is not in seen, and adds it.
func (pt *peerTable) nextConn(p proto.PeerID, seen map[network.Conn]bool) *conn {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	for raw, c := range pt.conns {
		if c.peer == p && !seen[raw] {
			if seen != nil {
				seen[raw] = true
			}
			return c
		}
	}
	return nil
}

// addDialing counts the callers that wait for a connection to p.
func (pt *peerTable) addDialing(p proto.PeerID, by int) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	n := pt.get(p)
	if n.dialing == 0 {
		n.helloErr = nil
	}
	n.dialing += by
	pt.forget(n)
}

// dials reports whether a caller waits for a connection to p.
func (pt *peerTable) dials(p proto.PeerID) bool {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	n := pt.byID[p]
	return n != nil && n.dialing > 0
}

// helloError returns why p is not connected.
func (pt *peerTable) helloError(p proto.PeerID) error {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if n := pt.byID[p]; n != nil && n.helloErr != nil {
		return n.helloErr
	}
	return errors.New("the connection closed before the hello: the other side may have blocked or banned this node, or may be stopping")
}

// connOf returns the connection of a stream; nil: it has closed.
func (pt *peerTable) connOf(s network.Stream) *conn {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	return pt.conns[s.Conn()]
}

// verifiedConns returns all connections whose hello succeeded.
func (pt *peerTable) verifiedConns() (all []*conn) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	for _, n := range pt.byID {
		all = append(all, n.conns...)
	}
	return all
}

// setJoining counts the calls that dial p for a join.
func (pt *peerTable) setJoining(p proto.PeerID, by int) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.joining[p] += by; pt.joining[p] == 0 {
		delete(pt.joining, p)
	}
}

// closeDirect closes the other direct connections to the peer of c: they use the same
// path.
func (pt *peerTable) closeDirect(c *conn) {
	pt.mu.Lock()
	all := slices.Clone(pt.get(c.peer).conns)
	pt.mu.Unlock()
	for _, o := range all {
		if o != c && o.direct() {
			o.raw.Close()
		}
	}
	pt.closeHalfOpen(c)
}

// closeHalfOpen closes the direct connections to the peer of c, which is dead, that have had no
// hello for a second: an outage may have cut it short, and while one is there the peer is not
// dialed.
func (pt *peerTable) closeHalfOpen(c *conn) {
	pt.mu.Lock()
	var open []*conn
	for _, o := range pt.conns {
		if o.peer == c.peer && o.direct() && !o.greeting.done.Load() && pt.clock.Mono()-o.since >= minLate {
			open = append(open, o)
		}
	}
	pt.mu.Unlock()
	for _, o := range open {
		o.raw.Close()
	}
}

// recordCircuit records what was measured on a circuit to n through relay r.
func (pt *peerTable) recordCircuit(n *peerState, r proto.PeerID, m circuitRecord) {
	m.at = pt.clock.Mono()
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if n.circuits == nil {
		n.circuits = make(map[proto.PeerID]circuitRecord)
	}
	n.circuits[r] = m
}

// noteCompared records that p has measured a circuit to this node to compare it with others.
func (pt *peerTable) noteCompared(p proto.PeerID) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if n := pt.byID[p]; n != nil {
		n.compared = pt.clock.Mono()
	}
}

// incoming returns how many bytes of work n has sent on its open connections, and when it
// last compared circuits.
func (pt *peerTable) incoming(n *peerState) (bytes uint64, compared time.Duration) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	for _, c := range n.conns {
		bytes += c.work.incoming.Load()
	}
	return bytes, n.compared
}

// openCircuit returns the newest circuit to n through relay r; nil: there is none.
func (pt *peerTable) openCircuit(n *peerState, r proto.PeerID) *conn {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	return n.circuitBy(r)
}

// closeCircuits closes all circuits to n through relay r.
func (pt *peerTable) closeCircuits(n *peerState, r proto.PeerID) {
	pt.mu.Lock()
	all := slices.Clone(n.conns)
	pt.mu.Unlock()
	for _, c := range all {
		if by, ok := relayOf(c.raw.RemoteMultiaddr()); ok && by == r {
			c.raw.Close()
		}
	}
}

// wakeUpgrades makes all upgrades try a direct path at once.
func (pt *peerTable) wakeUpgrades() {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	for _, n := range pt.byID {
		if n.upgrading {
			notify(n.wake)
		}
	}
}
