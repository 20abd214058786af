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

// A relayed connection moves to a relay over which the whole way is better: the
// new circuit is made beside the old one, new streams and open work go over to
// it, and the old one ends when nothing uses it any more.

// Times and bounds of a shift.
const (
	switchMargin  = 0.1              // of the score, by which another relay must be better
	switchHold    = time.Minute      // for so long without a break
	switchStagger = 15 * time.Second // later for one of the two sides, so that not both shift
	switchDial    = longDial
	maxPeerConns  = 4 // connections with a peer; as long as there are as many none shifts
)

// dialTargets are the only relays by which a peer is dialled now, of those with such an
// order. libp2p dials every address of a peer that it remembers.
type dialTargets struct {
	mu     sync.Mutex
	byPeer map[proto.PeerID][]*dialTarget // one of each dial
}

type dialTarget struct {
	relay      proto.PeerID
	additional bool // also when there is a connection
}

// set has p dialled by way of a relay alone until the returned function is called,
// and by those of other dials that go on.
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

// allow reports whether p may be dialled by way of a relay now, and whether also
// beside a connection.
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

// mayDialCircuit reports whether p may be dialled at a circuit address now: by the relay
// that is set, or else by any. While there is a connection who dials looks for a
// direct path, unless another circuit beside it is the aim.
func (t *Transport) mayDialCircuit(p proto.PeerID, a ma.Multiaddr) bool {
	by, _ := relayOf(a)
	ok, beside := t.reach.dialTargets.allow(p, by)
	return ok && (beside || !t.Connected(p))
}

// circuitDialer is libp2p's dialer of circuits, but for two words. Asked for a way
// around the connections that are there, libp2p leaves out every transport that
// calls itself a proxy, and a way over another relay is one. And a relay that is
// not connected is not dialled on the way: two peers, each said to be behind the
// other, would be dialled in a circle, and neither dial would end. Which circuits
// are dialled is decided in [Transport.mayDialCircuit], relays are in [Transport.connect].
type circuitDialer struct{ *client.Client }

// Proxy says that a circuit may be dialled beside another connection.
func (circuitDialer) Proxy() bool { return false }

// Dial makes a circuit to p over a relay that is connected.
func (c circuitDialer) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (libtransport.CapableConn, error) {
	return c.Client.Dial(network.WithNoDial(ctx, "the relay of a circuit"), a, p)
}

var _ libtransport.SkipResolver = circuitDialer{}

// addCircuitDialer adds this dialer to the network of h, as libp2p's constructor adds
// its own.
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

// relayPicker returns what chooses the relay of one peer.
func (t *Transport) relayPicker(p proto.PeerID) *route.Picker {
	hold := switchHold
	if comparePeers(t.self, p) > 0 {
		hold += switchStagger
	}
	return &route.Picker{Want: 1, Margin: switchMargin, Hold: hold}
}

// switchRelay makes a circuit to n by way of a relay that was better than that of c,
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
		t.log.Info("the path stays: the better relay does not lead to the peer", "peer", n.peer, "relay", picked, "why", err)
	}
}

// dialVia makes a circuit to p by way of relay, beside the connections there are.
func (t *Transport) dialVia(ctx context.Context, p, relay proto.PeerID) error {
	defer t.reach.dialTargets.set(p, dialTarget{relay, true})()
	ctx, cancel := context.WithTimeout(network.WithForceDirectDial(ctx, "by another relay"), switchDial)
	defer cancel()
	return t.host.Connect(ctx, peer.AddrInfo{ID: toLibp2p(p), Addrs: []ma.Multiaddr{through(relay, nil)}})
}
