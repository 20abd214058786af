package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// A dialer makes connections to peers: at their addresses and through relays.
type dialer struct {
	self    proto.PeerID
	host    host.Host
	gate    Gate
	timing  Timing
	peers   *peerTable
	relays  *relays
	names   *nameResolver
	opened  chan struct{} // closed when Run has started, or failed to
	targets dialTargets
	quic    quicPunches
}

// connect dials c and waits for the hello. failed: a dial of it failed before.
func (d *dialer) connect(ctx context.Context, c proto.Contact, failed bool) error {
	return d.connectThrough(ctx, c, d.relays.circuitsTo(c, failed), failed)
}

// connectThrough is connect through circuits, the best first.
func (d *dialer) connectThrough(ctx context.Context, c proto.Contact, circuits []ma.Multiaddr, failed bool) error {
	d.peers.addDialing(c.Peer, 1)
	defer d.peers.addDialing(c.Peer, -1)
	if len(circuits) > 0 && !failed { // only the best relay, unless a dial failed
		best, _ := relayOf(circuits[0])
		circuits = slices.DeleteFunc(circuits, func(a ma.Multiaddr) bool { r, _ := relayOf(a); return r != best })
		defer d.targets.set(c.Peer, dialTarget{relay: best})()
	}
	if err := d.dialAll(ctx, c, circuits); err != nil {
		return err
	}
	return d.awaitHello(ctx, c.Peer)
}

// dialAll dials c at its addresses and through circuits. It connects to relays that are
// not connected first, in parallel with the rest. It returns at the first connection.
func (d *dialer) dialAll(ctx context.Context, c proto.Contact, circuits []ma.Multiaddr) error {
	var near []ma.Multiaddr
	far := make(map[proto.PeerID][]string) // addresses of relays
	for _, a := range circuits {
		r, _ := relayOf(a)
		if at, tail := ma.SplitFunc(a, func(p ma.Component) bool { return p.Protocol().Code == ma.P_P2P }); len(at) > 0 && len(tail) > 0 {
			far[r] = append(far[r], at.String())
		} else {
			near = append(near, a)
		}
	}
	if len(far) == 0 {
		return d.dialHost(ctx, c.Peer, c.Addrs, near...)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1+len(far))
	wg.Go(func() { ended <- d.dialHost(ctx, c.Peer, c.Addrs, near...) })
	for r, addrs := range far {
		wg.Go(func() { ended <- d.dialViaNewRelay(ctx, c.Peer, r, addrs) })
	}
	var failures []error
	for range 1 + len(far) {
		err := <-ended
		if err == nil {
			return nil
		}
		failures = append(failures, err)
	}
	return joinDialErrors(failures)
}

// dialViaNewRelay connects to a relay at addrs and dials p through it.
func (d *dialer) dialViaNewRelay(ctx context.Context, p, relay proto.PeerID, addrs []string) error {
	err := d.dialHost(ctx, relay, addrs)
	if err == nil {
		err = d.awaitHello(ctx, relay)
	}
	if err != nil {
		return fmt.Errorf("connect to its relay %s: %v", relay.Short(), err) //nolint:errorlint // it says nothing about p
	}
	return d.dialHost(ctx, p, nil, through(relay, nil))
}

// dialHost makes a connection to p if there is none. The other side may still close it
// when it learns this node's identity.
func (d *dialer) dialHost(ctx context.Context, p proto.PeerID, addrs []string, circuits ...ma.Multiaddr) error {
	switch {
	case p == d.self:
		return errors.New("the peer is this node itself")
	case d.gate.Blocked(p):
		return &RefusedError{Peer: p, Reason: "it is blocked"}
	}
	list, err := parseAddrs(p, addrs)
	if err != nil {
		return err
	}
	select {
	case <-d.opened:
	case <-ctx.Done():
		return fmt.Errorf("the transport is not running: %w", ctx.Err())
	}
	id := toLibp2p(p)
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	if sw := swarmOf(d.host.Network()); sw != nil {
		sw.Backoff().Clear(id)
	}
	list = append(slices.DeleteFunc(list, isCircuit), circuits...)
	return d.names.explain(describeDialError(d.host.Connect(ctx, peer.AddrInfo{ID: id, Addrs: list})), list)
}

// awaitHello returns when a connection to p is verified, or when no existing one can be.
func (d *dialer) awaitHello(ctx context.Context, p proto.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, 4*d.timing.Hello)
	defer cancel()
	seen := make(map[network.Conn]bool)
	for {
		c := d.peers.nextConn(p, seen)
		if c == nil {
			return d.peers.helloError(p)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ready:
		case <-c.gone:
			if c.hasCtl.Load() { // it closes before its hello error is set
				select {
				case <-c.ready:
				case <-ctx.Done():
				}
			}
		}
		if c.verified() {
			return nil
		}
	}
}

// awaitHelloByID returns when hellos were exchanged with the peer, or none can be.
func (d *dialer) awaitHelloByID(ctx context.Context, id peer.ID) error {
	p, err := fromLibp2p(id)
	if err != nil || d.peers.connected(p) {
		return err
	}
	return d.awaitHello(ctx, p)
}

// isTrial reports whether an additional circuit to p is made for a comparison.
func (d *dialer) isTrial(raw network.Conn, p proto.PeerID) bool {
	r, ok := relayOf(raw.RemoteMultiaddr())
	return ok && d.targets.trial(p, r)
}

// dialVia makes an additional circuit to p through relay, for a comparison or for use.
func (d *dialer) dialVia(ctx context.Context, p, relay proto.PeerID, trial bool) error {
	defer d.targets.set(p, dialTarget{relay, true, trial})()
	ctx, cancel := context.WithTimeout(network.WithForceDirectDial(ctx, "by another relay"), switchDial)
	defer cancel()
	return d.host.Connect(ctx, peer.AddrInfo{ID: toLibp2p(p), Addrs: []ma.Multiaddr{through(relay, nil)}})
}

// mayDial reports whether p may be dialed at an address now.
func (d *dialer) mayDial(p proto.PeerID, a ma.Multiaddr) bool {
	switch {
	case isCircuit(a):
		return d.mayDialCircuit(p, a)
	case isTCP(a):
		return !d.quic.running(p)
	}
	return true
}

// mayDialCircuit reports whether p may be dialed at a circuit address now: through the
// relay that is set, or else any other node. While p is connected a dial seeks a direct
// path, unless it targets an additional circuit. Libraries that dial on their own would
// use all relays that they remember, and the one through which a circuit is asked for first
// excludes the others until it answers.
func (d *dialer) mayDialCircuit(p proto.PeerID, a ma.Multiaddr) bool {
	by, _ := relayOf(a)
	ok, beside := d.targets.allow(p, by)
	return ok && by != d.self && (beside || d.peers.dials(p) && !d.peers.connected(p))
}

// dialTargets restricts the relays through which peers are dialed, for peers with an
// entry: libp2p dials every address of a peer that it remembers.
type dialTargets struct {
	mu     sync.Mutex
	byPeer map[proto.PeerID][]*dialTarget // one per dial
}

type dialTarget struct {
	relay      proto.PeerID
	additional bool // even if there is a connection
	trial      bool // for a comparison: not used before that ends
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

// trial reports whether p is being dialed through relay for a comparison.
func (a *dialTargets) trial(p, relay proto.PeerID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.byPeer[p], func(at *dialTarget) bool { return at.relay == relay && at.trial })
}

// quicPunches are the punches over QUIC alone that are running.
type quicPunches struct {
	mu sync.Mutex
	of map[proto.PeerID]int
}

// start lets p be dialed directly over QUIC alone until the returned function is called.
func (q *quicPunches) start(p proto.PeerID) (done func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[proto.PeerID]int)
	}
	q.of[p]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.of[p]--; q.of[p] == 0 {
			delete(q.of, p)
		}
	}
}

func (q *quicPunches) running(p proto.PeerID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of[p] > 0
}
