package transport

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// A peerState is this node's state of a peer. It is guarded by the mu of its [peerTable].
type peerState struct {
	peer      proto.PeerID
	conns     []*conn       // verified and open, oldest first
	link      *Link         // the outgoing task stream; nil: none
	linking   bool          // keepLinked is running
	tasks     intake        // its task streams
	leases    intake        // its lease streams
	mail      intake        // its mail streams
	bodies    chan struct{} // held by each streamed body to it
	receiving []bodyStream  // streamed bodies from it
	dial      redialState
	redial    *redialAttempt // running; nil: none
	lastSeen  time.Time      // wall time of the last byte on closed verified connections
	clock     peerClock      // as it was told last
	lastErr   error
	failedAt  time.Time  // wall time of lastErr
	dialing   int        // running calls of connect
	helloErr  error      // why the last connection was not verified, since connect was called
	measured  route.Path // of the last closed direct connection
	path      *conn      // the best one at the last check
	upgrading bool       // upgrade is running
	wake      chan struct{}
	circuits  map[proto.PeerID]circuitRecord // by relay
	drops     circuitDrops                   // of circuits through it
	compared  time.Duration                  // monotonic; when it last measured a circuit to this node in a comparison; 0: never
}

// maxBodies is how many streamed bodies are transferred at once to, and from, a peer.
const maxBodies = 2

// join adds a verified connection. The caller holds the mu of peers.
func (t *Transport) join(n *peerState, c *conn) {
	for _, old := range n.conns {
		switch {
		case !bytes.Equal(old.hello.GetBootId(), c.hello.GetBootId()):
			// the peer was restarted: its old connections are gone
			t.group.start(func(context.Context) { old.raw.Close() })
		default:
			t.group.start(func(ctx context.Context) { old.checkAlive(ctx, t.cfg.Timing.Busy) })
		}
	}
	if c.inbound && !c.direct() && n.path != nil {
		c.guarded.trial = true // until the other side uses it
	}
	if !c.guarded.trial {
		c.guarded.preferred = max(t.cfg.Clock.Mono(), 1)
	}
	n.conns = append(n.conns, c)
	n.lastErr = nil
	n.dial = redialState{}
	t.host.ConnManager().Protect(toLibp2p(n.peer), "member")
	t.met.connections.WithLabelValues(c.kind(), c.network()).Inc()
	t.group.start(func(context.Context) { t.disc.host.announceMember(toLibp2p(c.peer)) })
	t.log.Info("connected", "peer", c.peer, "addr", c.raw.RemoteMultiaddr(), "inbound", c.inbound)
	t.updatePath(n)
	if !n.linking {
		n.linking = t.group.start(func(ctx context.Context) { t.links.keep(ctx, n) })
	}
}

// leave removes a closed connection. The caller holds the mu of peers.
func (t *Transport) leave(c *conn) {
	n := t.peers.byID[c.peer]
	if n == nil {
		return
	}
	i := slices.Index(n.conns, c)
	if i < 0 {
		t.peers.forget(n)
		return
	}
	n.conns = slices.Delete(n.conns, i, i+1)
	if heard := t.cfg.Clock.Now().Add(c.heard() - t.cfg.Clock.Mono()); heard.After(n.lastSeen) {
		n.lastSeen = heard
	}
	t.met.connections.WithLabelValues(c.kind(), c.network()).Dec()
	if c.direct() {
		n.measured = c.meter.path()
		t.noteSlow(c)
	}
	t.updatePath(n)
	if len(n.conns) == 0 {
		t.host.ConnManager().Unprotect(toLibp2p(n.peer), "member")
		n.dial = t.cfg.Timing.firstDial(t.cfg.Clock.Mono(), rand.Float64())
		t.log.Info("disconnected", "peer", c.peer)
		notify(t.redialer.wake)
	}
}

// aliveRounds bounds the PINGs of a check whether a connection is alive.
const aliveRounds = 5

// checkAlive closes an old connection that brings nothing in answer to a PING: a peer that
// reconnects, or this node itself, may have lost it. What comes instead may have been on its
// way before that: then it is asked again, and in the end left to the heartbeat.
func (c *conn) checkAlive(ctx context.Context, busy time.Duration) {
	pong := make(chan time.Duration, aliveRounds)
	for range aliveRounds {
		before := c.heard()
		c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), pong)})
		timer := time.NewTimer(busy + 2*c.longestRTT())
		select {
		case <-ctx.Done():
		case <-c.gone:
		case <-pong:
		case <-timer.C:
			if c.heard() != before {
				continue
			}
			c.raw.Close()
		}
		timer.Stop()
		return
	}
}

func (n *peerState) best() *conn {
	var best *conn
	for _, c := range n.conns {
		if best == nil || c.direct() || !best.direct() && c.guarded.preferred >= best.guarded.preferred {
			best = c
		}
	}
	return best
}

// A PeerStatus describes this node's connection to a peer.
type PeerStatus struct {
	Peer      proto.PeerID
	Connected bool
	Linked    bool          // the outgoing task stream is open
	Path      string        // multiaddr of the other side
	Network   string        // quic or tcp
	Direct    bool          // no relay in between
	RTT       time.Duration // of the last heartbeat, before the first one by QUIC; 0: none yet
	LastSeen  time.Time     // wall time of the last received byte; zero: never
	LastError string        // why it is not connected
	FailedAt  time.Time     // wall time of LastError
	Refused   *RefusedError // LastError, if one side rejects the other
	Failed    int           // consecutive failed dials
	NextDial  time.Duration // time to the next dial of a disconnected peer; 0: one is running, or none is planned
	Relay     proto.PeerID  // the relay, if not direct
	Clock     time.Duration // its clock minus this node's; 0: the same, or not told yet
}

// Peers returns all peers that were ever connected or dialed, ordered by id.
func (t *Transport) Peers() []PeerStatus {
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	var all []PeerStatus
	for _, n := range t.peers.byID {
		all = append(all, n.status(t.cfg.Clock))
	}
	sort.Slice(all, func(i, j int) bool { return bytes.Compare(all[i].Peer[:], all[j].Peer[:]) < 0 })
	return all
}

// status describes the connection to n. The caller holds the mu of its table.
func (n *peerState) status(clk clock.Clock) PeerStatus {
	s := PeerStatus{Peer: n.peer, LastSeen: n.lastSeen, Linked: n.link != nil}
	if n.lastErr != nil {
		s.LastError, s.FailedAt = n.lastErr.Error(), n.failedAt
		s.Refused = asRefusal(n.peer, n.lastErr)
	}
	if !n.clock.wall.IsZero() {
		s.Clock = n.clock.ahead(clk)
	}
	c := n.best()
	if c == nil {
		s.Failed, s.NextDial = n.dial.tries, max(0, n.dial.due-clk.Mono())
		return s
	}
	s.Connected, s.LastSeen = true, clk.Now().Add(n.heard()-clk.Mono())
	s.Path, s.Network, s.Direct = c.raw.RemoteMultiaddr().String(), c.network(), c.direct()
	s.Relay, _ = relayOf(c.raw.RemoteMultiaddr())
	s.RTT = cmp.Or(time.Duration(c.rtt.Load()), c.meter.path().RTT)
	return s
}

// heard returns the time of the last received byte on any connection, monotonic. The
// caller holds mu.
func (n *peerState) heard() (last time.Duration) {
	for _, c := range n.conns {
		last = max(last, c.heard())
	}
	return last
}

// Connected reports whether there is a verified connection to p.
func (t *Transport) Connected(p proto.PeerID) bool { return t.peers.connected(p) }

// Direct reports whether the best connection to p is verified and leads through no relay.
func (t *Transport) Direct(p proto.PeerID) bool {
	c := t.peers.best(p)
	return c != nil && c.direct()
}

// ConnectedPeers returns the peers with a verified connection.
func (t *Transport) ConnectedPeers() []proto.PeerID { return t.peers.connectedPeers() }

// Disconnect closes all connections to p. It is redialed like any contact, unless the
// gate blocks it.
func (t *Transport) Disconnect(p proto.PeerID) { t.host.Network().ClosePeer(toLibp2p(p)) }

// SendCtl queues m for p's ctl stream: best effort, for messages that may be lost.
func (t *Transport) SendCtl(p proto.PeerID, m *proto.Message) error {
	c := t.peers.best(p)
	if c == nil {
		return fmt.Errorf("%w to %s", ErrNotConnected, p)
	}
	return c.queueCtl(m)
}

// Received returns how many packets have come from p over its present connections,
// acknowledgments included; where the transport cannot count packets, bytes of its streams.
func (t *Transport) Received(p proto.PeerID) (n uint64) {
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	if s := t.peers.byID[p]; s != nil {
		for _, c := range s.conns {
			n += c.packets()
		}
	}
	return n
}

// Ping measures the round trip to p.
func (t *Transport) Ping(ctx context.Context, p proto.PeerID) (time.Duration, error) {
	c := t.peers.best(p)
	if c == nil {
		return 0, ErrNotConnected
	}
	done := make(chan time.Duration, 1)
	if err := c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), done)}); err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	select {
	case rtt := <-done:
		return rtt, nil
	case <-c.gone:
		return 0, fmt.Errorf("ping %s: the connection closed", p)
	case <-ctx.Done():
		return 0, fmt.Errorf("ping %s: %w", p, ctx.Err())
	}
}

// updatePath checks whether the best path to n has changed: then new streams use it, the
// open link moves to it, and observers are notified. The caller holds the mu of peers.
func (t *Transport) updatePath(n *peerState) {
	now, before := n.best(), n.path
	if l := n.link; l != nil && now != nil && shouldMove(now, l.conn) {
		l.move()
	}
	if now != nil && !now.direct() && !n.upgrading {
		n.upgrading = t.group.start(func(ctx context.Context) { t.upgrade(ctx, n) })
	}
	if now == before {
		return
	}
	n.path = now
	notify(t.reach.reserver.wake)
	switch {
	case now == nil:
		t.events.emit(Event{Peer: n.peer, Kind: EventDisconnected, Path: pathOf(before)})
	case before == nil:
		t.events.emit(Event{Peer: n.peer, Kind: EventConnected, Path: pathOf(now)})
	case pathOf(now) != pathOf(before): // otherwise both sides dialed each other
		t.met.paths.Inc()
		t.log.Info("path", "peer", n.peer, "old", pathOf(before), "new", pathOf(now))
		t.events.emit(Event{Peer: n.peer, Kind: EventPath, Path: pathOf(now), Detail: pathOf(before)})
	}
}

// shouldMove reports whether the link on old moves to c, which is now in use: a direct
// path, or another relay.
func shouldMove(c, old *conn) bool {
	by, _ := relayOf(c.raw.RemoteMultiaddr())
	before, relayed := relayOf(old.raw.RemoteMultiaddr())
	return relayed && by != before
}

func pathOf(c *conn) string { return c.raw.RemoteMultiaddr().String() }

// upgrade seeks a direct path to n and, until there is one, a better relay, until there
// is no connection or ctx is done.
func (t *Transport) upgrade(ctx context.Context, n *peerState) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { t.chooser.watch(ctx, n) })
	var next time.Duration // when a direct path is tried next
	for tries := 0; ; {
		t.peers.mu.Lock()
		c := n.best()
		if c == nil || c.direct() || ctx.Err() != nil {
			n.upgrading = false
			t.peers.mu.Unlock()
			return
		}
		punches := slices.ContainsFunc(n.conns, func(c *conn) bool { return c.inbound && !c.direct() })
		t.peers.mu.Unlock()
		if now := t.cfg.Clock.Mono(); now >= next {
			t.puncher.tryDirect(ctx, n.peer, punches)
			next = t.cfg.Clock.Mono() + punchPauses[min(tries, len(punchPauses)-1)]
			tries++
		}
		timer := time.NewTimer(min(measureEvery, next-t.cfg.Clock.Mono()))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-n.wake:
			tries, next = 0, 0
		}
		timer.Stop()
	}
}
