package transport

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	libtransport "github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// A relayed connection moves to another relay if the whole path through it is better: a
// new circuit is established next to the old one, new streams and the open link move to
// it, and the old one is closed when nothing uses it anymore.

// Timing and bounds of a switch.
const (
	switchMargin  = 0.1              // score margin by which another relay must be better
	switchHold    = time.Minute      // for this long without interruption
	switchStagger = 15 * time.Second // added on one of the two sides, so that not both switch
	switchDial    = longDial
	maxPeerConns  = 4 // connections to a peer; no switch while there are this many
)

// dialTargets restricts the relays through which peers are dialed, for peers with an
// entry: libp2p dials every address of a peer that it remembers.
type dialTargets struct {
	mu     sync.Mutex
	byPeer map[proto.PeerID][]*dialTarget // one per dial
}

type dialTarget struct {
	relay      proto.PeerID
	additional bool // even if there is a connection
}

// set restricts dials of p to this relay, and to those of other concurrent dials, until
// the returned function is called.
func (a *dialTargets) set(p proto.PeerID, at dialTarget) (done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byPeer == nil {
		a.byPeer = make(map[proto.PeerID][]*dialTarget)
	}
	mine := &at
	a.byPeer[p] = append(a.byPeer[p], mine)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.byPeer[p] = slices.DeleteFunc(a.byPeer[p], func(o *dialTarget) bool { return o == mine }); len(a.byPeer[p]) == 0 {
			delete(a.byPeer, p)
		}
	}
}

// allow reports whether p may be dialed through a relay now, and whether even if there is
// a connection.
func (a *dialTargets) allow(p, relay proto.PeerID) (ok, beside bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ok = len(a.byPeer[p]) == 0
	for _, at := range a.byPeer[p] {
		if at.relay == relay {
			ok, beside = true, beside || at.additional
		}
	}
	return ok, beside
}

// mayDialCircuit reports whether p may be dialed at a circuit address now: through the
// relay that is set, or else any. While p is connected a dial seeks a direct path, unless
// it targets an additional circuit.
func (t *Transport) mayDialCircuit(p proto.PeerID, a ma.Multiaddr) bool {
	by, _ := relayOf(a)
	ok, beside := t.reach.dialTargets.allow(p, by)
	return ok && (beside || !t.Connected(p))
}

// A circuitDialer is libp2p's circuit dialer with two changes. To bypass existing
// connections, libp2p omits every transport that calls itself a proxy, which would omit
// another relay. And a disconnected relay is not dialed implicitly: two peers, each
// announced behind the other, would be dialed in a loop, and neither dial would end.
// [Transport.mayDialCircuit] decides which circuits are dialed, [Transport.connect] dials
// relays.
type circuitDialer struct{ *client.Client }

// Proxy returns false, so that a circuit may be dialed next to another connection.
func (circuitDialer) Proxy() bool { return false }

// Dial makes a circuit to p through a connected relay.
func (c circuitDialer) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (libtransport.CapableConn, error) {
	return c.Client.Dial(network.WithNoDial(ctx, "the relay of a circuit"), a, p)
}

var _ libtransport.SkipResolver = circuitDialer{}

// addCircuitDialer adds this dialer to the network of h, as libp2p's constructor adds its
// own.
func addCircuitDialer(h host.Host, b netStack) error {
	c, err := client.New(h, b.upgrader)
	if err != nil {
		return err
	}
	if err := b.swarm.AddTransport(circuitDialer{c}); err != nil {
		return err
	}
	if err := b.swarm.Listen(ma.StringCast("/p2p-circuit")); err != nil {
		return err
	}
	c.Start()
	return nil
}

// relayPicker returns the picker of the relay to one peer.
func (t *Transport) relayPicker(p proto.PeerID) *route.Picker {
	hold := switchHold
	if comparePeers(t.self, p) > 0 {
		hold += switchStagger
	}
	return &route.Picker{Want: 1, Margin: switchMargin, Hold: hold}
}

// switchRelay makes a circuit to n through a relay that has been better than that of c,
// which is in use, for long.
func (t *Transport) switchRelay(ctx context.Context, n *peerState, c *conn, pick *route.Picker) {
	current, ok := relayOf(c.raw.RemoteMultiaddr())
	if !ok {
		return
	}
	there := []route.Candidate{{Peer: current, Score: t.scoreVia(current, n.peer)}}
	for _, r := range t.contact(n.peer).Relays {
		hop := t.best(r)
		known := slices.ContainsFunc(there, func(o route.Candidate) bool { return o.Peer == r })
		if !known && hop != nil && hop.direct() && r != t.self && r != n.peer && !t.gate.Blocked(r) {
			there = append(there, route.Candidate{Peer: r, Score: t.scoreVia(r, n.peer)})
		}
	}
	picked := pick.Pick([]proto.PeerID{current}, there, t.cfg.Clock.Mono())[0]
	t.mu.Lock()
	full := len(n.conns) >= maxPeerConns
	t.mu.Unlock()
	if picked == current || full {
		return
	}
	if err := t.dialVia(ctx, n.peer, picked); err != nil {
		t.log.Info("keeping the path: the better relay does not reach the peer", "peer", n.peer, "relay", picked, "why", err)
	}
}

// dialVia makes an additional circuit to p through relay.
func (t *Transport) dialVia(ctx context.Context, p, relay proto.PeerID) error {
	defer t.reach.dialTargets.set(p, dialTarget{relay, true})()
	ctx, cancel := context.WithTimeout(network.WithForceDirectDial(ctx, "by another relay"), switchDial)
	defer cancel()
	return t.host.Connect(ctx, peer.AddrInfo{ID: toLibp2p(p), Addrs: []ma.Multiaddr{through(relay, nil)}})
}
