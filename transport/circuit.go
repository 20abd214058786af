package transport

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	libtransport "github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// A circuit address is the address of a relay, its id, and /p2p-circuit.

// isCircuit reports whether a leads through a relay.
func isCircuit(a ma.Multiaddr) bool { _, err := a.ValueForProtocol(ma.P_CIRCUIT); return err == nil }

// relayOf returns the relay of circuit address a.
func relayOf(a ma.Multiaddr) (relay proto.PeerID, ok bool) {
	if !isCircuit(a) {
		return proto.PeerID{}, false
	}
	s, err := a.ValueForProtocol(ma.P_P2P)
	if err != nil {
		return proto.PeerID{}, false
	}
	id, err := peer.Decode(s)
	if err != nil {
		return proto.PeerID{}, false
	}
	relay, err = fromLibp2p(id)
	return relay, err == nil
}

// through returns the circuit address through relay at a. If a is nil the relay must be
// connected.
func through(relay proto.PeerID, a ma.Multiaddr) ma.Multiaddr {
	tail := ma.StringCast("/p2p/" + toLibp2p(relay).String() + "/p2p-circuit")
	if a == nil {
		return tail
	}
	return a.Encapsulate(tail)
}

// Bounds of the circuits that are tried or announced at once.
const (
	maxRelaysTried   = 4
	maxAddrsPerRelay = 3
)

// Delays of the dial ranker.
const (
	lanHeadStart   = 100 * time.Millisecond // of TCP on a private address
	relayDelay     = 500 * time.Millisecond // of the first relay, after direct addresses
	nextRelayDelay = 1 * time.Second        // of each further relay
)

// ranker returns when to dial each address of a peer: TCP first on private addresses (it
// uses a quarter of the CPU of QUIC), QUIC first elsewhere, as in libp2p; then the
// relays, best first, each with time to answer before the next.
func ranker(score func(proto.PeerID) float64) network.DialRanker {
	return func(addrs []ma.Multiaddr) []network.AddrDelay {
		var direct, circuits []ma.Multiaddr
		for _, a := range addrs {
			if isCircuit(a) {
				circuits = append(circuits, a)
			} else {
				direct = append(direct, a)
			}
		}
		return append(rankDirect(direct), rankCircuits(circuits, len(direct) > 0, score)...)
	}
}

func rankDirect(addrs []ma.Multiaddr) []network.AddrDelay {
	out := swarm.DefaultDialRanker(addrs)
	lan := func(d network.AddrDelay) bool { return isTCP(d.Addr) && manet.IsPrivateAddr(d.Addr) }
	if !slices.ContainsFunc(out, lan) {
		return out
	}
	for i := range out {
		if lan(out[i]) {
			out[i].Delay = 0
		} else {
			out[i].Delay += lanHeadStart
		}
	}
	return out
}

// rankCircuits ranks one relay after another, and for each first the address that needs
// no dial, then QUIC, then TCP.
func rankCircuits(addrs []ma.Multiaddr, behind bool, score func(proto.PeerID) float64) []network.AddrDelay {
	type ranked struct {
		addr  ma.Multiaddr
		relay proto.PeerID
		score float64
	}
	var all []ranked
	for _, a := range addrs {
		r, _ := relayOf(a)
		all = append(all, ranked{a, r, score(r)})
	}
	kind := func(a ma.Multiaddr) int {
		switch {
		case len(a) == 2: // only the relay's id
			return 0
		case !isTCP(a):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.score, a.score), slices.Compare(a.relay[:], b.relay[:]), cmp.Compare(kind(a.addr), kind(b.addr)))
	})
	delay := time.Duration(0)
	if behind {
		delay = relayDelay
	}
	var out []network.AddrDelay
	for i, r := range all {
		if i > 0 && r.relay != all[i-1].relay {
			delay += nextRelayDelay
		}
		out = append(out, network.AddrDelay{Addr: r.addr, Delay: delay})
	}
	return out
}

// A circuitDialer is libp2p's circuit dialer with two changes. To bypass existing
// connections, libp2p omits every transport that calls itself a proxy, which would omit
// another relay. And a disconnected relay is not dialed implicitly: two peers, each
// announced behind the other, would be dialed in a loop, and neither dial would end.
// [dialer.mayDialCircuit] decides which circuits are dialed, [dialer.connect] dials
// relays. What became of the circuits is told to note.
type circuitDialer struct {
	*client.Client
	note circuitNote
}

// A circuitNote records what a relay did with a circuit to p: err is nil, or why it failed although
// the relay had agreed to it, or that the relay reset the request. gaveUp: this node ended it after
// the time took, and the relay may just have been slow.
type circuitNote func(relay, p proto.PeerID, err error, gaveUp bool, took time.Duration)

// Proxy returns false, so that a circuit may be dialed next to another connection.
func (*circuitDialer) Proxy() bool { return false }

// Dial makes a circuit to p through a connected relay.
func (c *circuitDialer) Dial(ctx context.Context, a ma.Multiaddr, p peer.ID) (libtransport.CapableConn, error) {
	ctx = network.WithNoDial(ctx, "the relay of a circuit")
	var circuit agreement
	conn, err := c.Client.Dial(context.WithValue(ctx, agreementKey{}, &circuit), a, p)
	relay, ok := relayOf(a)
	to, bad := fromLibp2p(p)
	agreed, gaveUp := !circuit.at.IsZero(), !circuit.at.IsZero() && ctx.Err() != nil
	_, lost := errors.AsType[*network.ConnError](err) // the connection to the relay
	slow := gaveUp && circuit.heard.Load()            // the peer has answered
	if ok && bad == nil && c.note != nil && !lost && !slow && (agreed || errors.Is(err, network.ErrReset)) {
		c.note(relay, to, err, gaveUp, time.Since(circuit.at))
	}
	return conn, err
}

// An agreement is when a relay agreed to a circuit, and whether anything has come over it.
type agreement struct {
	at    time.Time
	heard atomic.Bool
}

type agreementKey struct{}

// A circuitUpgrader notes the agreement to a circuit.
type circuitUpgrader struct{ libtransport.Upgrader }

// Upgrade makes a connection of the circuit c.
func (u circuitUpgrader) Upgrade(ctx context.Context, t libtransport.Transport, c manet.Conn, dir network.Direction, p peer.ID, scope network.ConnManagementScope) (libtransport.CapableConn, error) {
	if circuit, ok := ctx.Value(agreementKey{}).(*agreement); ok {
		circuit.at = time.Now()
		if stat, ok := c.(network.ConnStat); ok {
			c = heardConn{c, stat, &circuit.heard}
		}
	}
	return u.Upgrader.Upgrade(ctx, t, c, dir, p, scope)
}

// A heardConn notes that something has come over a circuit.
type heardConn struct {
	manet.Conn
	network.ConnStat
	heard *atomic.Bool
}

func (c heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

var _ libtransport.SkipResolver = (*circuitDialer)(nil)

// addCircuitDialer adds this dialer to the network of h, as libp2p's constructor adds its
// own.
func addCircuitDialer(h host.Host, b netStack, note circuitNote) error {
	c, err := client.New(h, circuitUpgrader{b.upgrader})
	if err != nil {
		return err
	}
	if err := b.swarm.AddTransport(&circuitDialer{c, note}); err != nil {
		return err
	}
	if err := b.swarm.Listen(ma.StringCast("/p2p-circuit")); err != nil {
		return err
	}
	c.Start()
	return nil
}
