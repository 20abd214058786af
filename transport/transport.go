package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// ErrNotConnected is returned when there is no verified connection to a peer.
var ErrNotConnected = errors.New("transport: not connected")

// A Transport is this node's side of all its connections. It joins its parts, each of which
// has what it uses of the others: see build.
type Transport struct {
	self  proto.PeerID
	host  host.Host
	recv  Receiver
	cfg   Config
	log   *slog.Logger
	met   *metrics
	group *taskGroup

	peers    *peerTable     // connections, and what is known of each peer
	members  *members       // who is a member, and where peers are
	rates    *rates         // what peers may cost
	greeter  *greeter       // the hello
	guards   *streamGuard   // which streams are served
	joins    *joins         // of nodes that are no members yet
	dialer   *dialer        // of one connection
	redialer *redialer      // of contacts that are not connected
	links    *links         // task streams and mail streams
	bodies   *bodyTransfers // streamed bodies
	relays   *relays        // members that relay, and the paths through them
	chooser  *relayChooser  // of the relay in use
	puncher  *puncher       // direct paths through NATs
	reach    *reach         // how others reach this node
	local    *localAddrs    // of this machine
	events   *eventQueue    // for operators
	disc     discovery      // of members
	thinner  thinner        // of packets

	running atomic.Bool // Run is running: connections are accepted
}

// New returns a transport that listens but admits no one before [Transport.Run]. If Run
// is not called, call Close.
func New(keys Keys, gate Gate, recv Receiver, cfg Config) (*Transport, error) {
	cfg = cfg.withDefaults()
	met, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	t := &Transport{
		self: keys.Peer(), recv: recv, cfg: cfg, log: cfg.Logger, met: met,
		group: newTaskGroup(), peers: newPeerTable(cfg.Clock), events: newEventQueue(cfg),
	}
	t.build(gate)
	if cfg.AnyPort && cfg.Sockets == nil {
		cfg.Listen = anyPort(cfg.Listen)
	}
	hooks := hostHooks{t.relays.scoreOf, t.reach.addrs, t.local.correct, &t.reach.router, t.guards.filterStream, t.dialer.awaitHelloByID, &t.thinner, t.relays.noteCircuit, t.dialer.names}
	if t.host, err = newHost(keys, &gater{t.mayConnect, t.dialer.mayDial}, hooks, cfg); err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	if err := t.attach(); err != nil {
		t.host.Close()
		return nil, fmt.Errorf("transport: %w", err)
	}
	t.serve()
	return t, nil
}

// Run accepts and makes connections until ctx is done. It must be called once. When it
// returns, even with an error during startup, the host is closed and nothing of the
// transport is running.
func (t *Transport) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, err := t.startAll(ctx)
	if err != nil {
		err = fmt.Errorf("transport: %w", err)
		cancel() // stop what was started
	}
	t.group.run(ctx, func() {
		t.running.Store(false)
		t.disc.stop()
		stop()
		t.host.Close()
	})
	return err
}

// startAll starts everything. stop stops what the task group and discovery do not, even
// after an error.
func (t *Transport) startAll(ctx context.Context) (stop func(), err error) {
	defer close(t.dialer.opened)
	if err := t.disc.start(ctx); err != nil {
		return func() {}, err
	}
	t.running.Store(true)
	t.group.start(t.redialer.run)
	t.group.start(t.watchNetwork)
	t.group.start(t.watchMembers)
	stop = func() {}
	if t.cfg.Relay {
		end, err := t.startRelay()
		if err != nil {
			return stop, err
		}
		stop = end
	}
	t.group.start(t.reach.reserver.run)
	t.group.start(t.puncher.run)
	t.group.start(t.measureAll)
	if t.cfg.Observe != nil {
		t.group.start(t.events.run)
	}
	return stop, nil
}

// Opened is closed when Run has begun to accept connections, or failed to.
func (t *Transport) Opened() <-chan struct{} { return t.dialer.opened }

// Close releases what New acquired. After Run it does nothing.
func (t *Transport) Close() error { return t.host.Close() }

// Peer returns this node's id.
func (t *Transport) Peer() proto.PeerID { return t.self }

// Addrs returns the multiaddrs that this node announces or listens on, the best first:
// those that only this machine can use come last.
func (t *Transport) Addrs() []string {
	var far, near []string
	for _, a := range addrStrings(t.host.Addrs()) {
		if (Multiaddrs{}).Loopback(a) {
			near = append(near, a)
		} else {
			far = append(far, a)
		}
	}
	return append(far, near...)
}

// mayConnect reports whether libp2p may proceed with a connection to id.
func (t *Transport) mayConnect(id peer.ID) bool {
	p, err := fromLibp2p(id)
	if err != nil || !t.running.Load() || t.members.gate.Blocked(p) && t.members.revocationOf(p) == nil { // a revoked peer is connected so that it can be told
		return false
	}
	return !t.rates.banned(p)
}

// connected handles a new connection of libp2p. It must not block.
func (t *Transport) connected(_ network.Network, raw network.Conn) {
	p, err := fromLibp2p(raw.RemotePeer())
	if err != nil {
		return
	}
	c := newConn(raw, p, t.cfg.Clock)
	c.guarded.trial = !c.inbound && t.dialer.isTrial(raw, p)
	allowed, member := !c.inbound || t.rates.allow(p, admit.Conn), t.members.isMember(p)
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	welcome := allowed
	if allowed && c.inbound && !member {
		var evicted *conn
		if evicted, welcome = t.peers.admitStranger(c); evicted != nil {
			t.group.start(func(context.Context) { evicted.raw.CloseWithError(network.ConnRateLimited) })
		}
	}
	t.peers.conns[raw] = c
	switch {
	case !welcome:
		t.met.refused.Inc()
		t.group.start(func(context.Context) { raw.CloseWithError(network.ConnRateLimited) })
	case c.inbound:
		t.group.start(func(ctx context.Context) { t.greeter.expectHello(ctx, c) })
	case t.peers.joining[p] == 0:
		c.hasCtl.Store(true)
		t.group.start(func(ctx context.Context) { t.initiateHello(ctx, c) })
	}
}

// disconnected handles the end of a connection of libp2p. It must not block.
func (t *Transport) disconnected(_ network.Network, raw network.Conn) {
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	c := t.peers.conns[raw]
	if c == nil {
		return
	}
	delete(t.peers.conns, raw)
	t.puncher.seen.drop(raw)
	close(c.gone)
	t.leave(c)
}

// handleCtl handles a ctl stream: there is one per connection, opened by the side that
// dialed. When both sides dialed, through NATs, it is the side with the lower id.
func (t *Transport) handleCtl(raw network.Stream) {
	c := t.peers.connOf(raw)
	switch {
	case c != nil && !c.inbound && c.hasCtl.Load():
		if comparePeers(t.self, c.peer) < 0 {
			t.group.start(func(ctx context.Context) { // this node's stream is used
				t.greeter.awaitVerified(ctx, c)
				raw.Reset()
			})
			return
		}
		if c.greeting.done.Load() || c.greeting.yielded.Swap(true) {
			raw.Reset()
			return
		}
	case c == nil || !c.inbound || c.hasCtl.Swap(true):
		raw.Reset()
		return
	}
	s := newStream(raw, raw, c, proto.MaxControl, t.cfg.Timing)
	s.ctl = true
	if !t.group.start(func(ctx context.Context) { t.respondHello(ctx, c, s) }) {
		raw.Reset()
	}
}

// Offend counts an offense of p in a message that was accepted, like a broken stream: a
// peer with many offenses is banned for a while.
func (t *Transport) Offend(p proto.PeerID, err error) { t.rates.offend(p, "task", err) }

// initiateHello sends the first hello, as the side that dialed, and serves the ctl stream
// until the connection closes.
func (t *Transport) initiateHello(ctx context.Context, c *conn) {
	var h *proto.Hello
	s, err := openStream(ctx, c, streamCtl, proto.MaxControl, t.cfg.Timing)
	if err == nil {
		defer s.unblock(ctx)()
		h, err = t.greeter.exchangeHellos(s, true)
	}
	if c.greeting.yielded.Load() { // the other side's hello is used instead
		if s != nil {
			s.Reset()
		}
		return
	}
	t.finishHello(ctx, c, s, h, err)
}

// respondHello answers the other side's hello.
func (t *Transport) respondHello(ctx context.Context, c *conn, s *stream) {
	defer s.unblock(ctx)()
	h, err := t.greeter.exchangeHellos(s, false)
	t.finishHello(ctx, c, s, h, err)
}

// finishHello completes the hello and, if it succeeded, serves the connection.
func (t *Transport) finishHello(ctx context.Context, c *conn, s *stream, h *proto.Hello, err error) {
	switch {
	case !t.greeter.endHello(c, h, err):
		err = fmt.Errorf("%w: a second hello", ErrProtocol)
	case err == nil:
		t.identify(c)
		err = t.serveCtl(ctx, c, s)
		t.greeter.noteRefusal(c, err)
	}
	if errors.Is(err, ErrProtocol) {
		t.rates.offend(c.peer, "ctl", err)
	}
	t.log.Debug("connection closed", "peer", c.peer, "addr", c.raw.RemoteMultiaddr(), "why", err)
	c.raw.Close()
}
