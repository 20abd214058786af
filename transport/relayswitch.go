package transport

import (
	"context"
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

// A circuitDialer is libp2p's circuit dialer with two changes. To bypass existing
// connections, libp2p omits every transport that calls itself a proxy, which would omit
// another relay. And a disconnected relay is not dialed implicitly: two peers, each
// announced behind the other, would be dialed in a loop, and neither dial would end.
// [dialer.mayDialCircuit] decides which circuits are dialed, [dialer.connect] dials
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

// watchRelays seeks a better relay to n until ctx is done: by comparisons while work waits,
// and otherwise by what is known of the relays.
func (t *Transport) watchRelays(ctx context.Context, n *peerState) {
	pick, watch, theirs := t.relayPicker(n.peer), new(relayWatch), new(theirChoice)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	looked, acked := time.Duration(0), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		t.peers.mu.Lock()
		c := n.best()
		if l := n.link; c != nil && l != nil && !shouldMove(c, l.conn) && !l.conn.direct() {
			c = l.conn // the same relay, and this one carries the tasks
		}
		t.peers.mu.Unlock()
		if c == nil || c.direct() {
			continue // upgrade ends soon
		}
		now := t.cfg.Clock.Mono()
		watch.sample(c, now)
		if busy, late := c.pendingAcks.busy(now); watch.due(now, busy, late) {
			t.compareRelays(ctx, n, c, watch)
		} else if now-looked >= measureEvery {
			bytes, compared := t.peers.incoming(n)
			works, holds := c.work.acked.Load() != acked, theirs.holds(now, bytes, compared)
			looked, acked = now, c.work.acked.Load()
			if works && now >= watch.next && t.expectedGain(n, c) >= expectGain {
				t.compareRelays(ctx, n, c, watch)
			} else {
				t.switchRelay(ctx, n, c, pick, holds && !works)
			}
		}
	}
}

// expectedGain returns by how much the score of the best other relay to n is better than
// that of c, as far as known.
func (t *Transport) expectedGain(n *peerState, c *conn) (gain float64) {
	current, _ := relayOf(c.raw.RemoteMultiaddr())
	for _, r := range t.relays.others(n.peer, current) {
		gain = max(gain, t.relays.scoreVia(r, n.peer)-t.relays.scoreVia(current, n.peer))
	}
	return gain
}

// switchRelay makes a circuit to n through a relay that has been better than that of c,
// which is in use, for long. theirs: it is left to the other side,
// unless round trips through the other relay take less than half as long.
func (t *Transport) switchRelay(ctx context.Context, n *peerState, c *conn, pick *route.Picker, theirs bool) {
	current, ok := relayOf(c.raw.RemoteMultiaddr())
	if !ok {
		return
	}
	there := []route.Candidate{{Peer: current, Score: t.relays.scoreVia(current, n.peer)}}
	path, _ := t.relays.viaPath(current, n.peer)
	for _, r := range t.relays.others(n.peer, current) {
		if other, _ := t.relays.viaPath(r, n.peer); theirs && 2*other.RTT > path.RTT {
			continue
		}
		there = append(there, route.Candidate{Peer: r, Score: t.relays.scoreVia(r, n.peer)})
	}
	picked := pick.Pick([]proto.PeerID{current}, there, t.cfg.Clock.Mono())[0]
	t.peers.mu.Lock()
	full := len(n.conns) >= maxPeerConns
	t.peers.mu.Unlock()
	if picked == current || full {
		return
	}
	if err := t.dialer.dialVia(ctx, n.peer, picked, false); err != nil {
		t.log.Info("keeping the path: the better relay does not reach the peer", "peer", n.peer, "relay", picked, "why", err)
	}
}
