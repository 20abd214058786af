package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// An attempt to reach a peer, without the hello, is limited. Most attempts are short,
// because a handshake that starts during an outage retransmits late. Every third one is
// long, for slow paths.
const (
	shortDial = 2 * time.Second
	longDial  = 6 * time.Second
	maxDial   = 15 * time.Second // for an explicit request
)

// timeout returns the limit of the next attempt.
func (d redialState) timeout() time.Duration {
	if d.tries%3 == 2 {
		return longDial
	}
	return shortDial
}

// scanEvery is how often the directory is checked for new contacts.
const scanEvery = 5 * time.Second

// A redialState determines when a peer is dialed next.
type redialState struct {
	due     time.Duration // monotonic
	started time.Duration // start of the last attempt
	lostAt  time.Duration // when the connection was lost
	asked   time.Duration // last DHT query for it; 0: none
	tries   int           // consecutive failures
	busy    bool          // an attempt is running
	wanted  bool          // work arrived during the attempt
}

// firstDial returns the state of a peer whose connection was just lost. Even the first
// attempt is delayed randomly, so that fifty nodes that lost the same link return one by
// one (S46). r is random in [0, 1).
func (t Timing) firstDial(now time.Duration, r float64) redialState {
	return redialState{due: now + time.Duration(r*float64(t.Redial)), lostAt: now, started: now - t.Redial}
}

// afterFailure returns the state after an attempt failed at now. The delay grows with the
// absence, not only with the attempts: a link that was down for 40 seconds is back within
// two (S07), one that was down for days costs an attempt per minute.
func (t Timing) afterFailure(d redialState, now time.Duration, r float64) redialState {
	d.tries++
	d.busy = false
	pause := min(t.MaxRedial, t.Redial<<min(d.tries-1, 16), max(t.Redial, (now-d.lostAt)/30))
	if d.wanted {
		d.wanted, d.tries, pause = false, 0, t.Redial
	}
	d.due = now + time.Duration((0.5+r)/1.5*float64(pause))
	return d
}

// wake makes the next attempt due at once, but not within Redial of the last one.
func (t Timing) wake(d redialState, now time.Duration) redialState {
	d.due = min(d.due, max(now, d.started+t.Redial))
	d.wanted = d.busy
	return d
}

// redialLoop keeps every contact of the directory connected until ctx is done.
func (t *Transport) redialLoop(ctx context.Context) {
	if t.cfg.Directory == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxDials)
	for {
		due, pause := t.dueContacts(t.cfg.Directory.Contacts())
		for _, c := range due {
			wg.Go(func() {
				select {
				case slots <- struct{}{}:
					defer func() { <-slots }()
					t.dialContact(ctx, c)
				case <-ctx.Done():
				}
			})
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-t.redialWake:
			timer.Stop()
		}
	}
}

// dueContacts returns the contacts to dial now, marked busy, and the time until the next
// one is due.
func (t *Transport) dueContacts(contacts []proto.Contact) (due []proto.Contact, pause time.Duration) {
	expelled := t.selfRevoked()
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.cfg.Clock.Mono()
	pause = scanEvery
	for _, c := range contacts {
		n := t.peer(c.Peer)
		if c.Peer == t.self || len(n.conns) > 0 || n.dial.busy || len(c.Addrs)+len(c.Relays) == 0 {
			continue
		}
		if n.dial == (redialState{}) {
			n.dial = t.cfg.Timing.firstDial(now, rand.Float64())
		}
		wait := n.dial.due - now
		if expelled && n.dial.tries > 0 {
			wait = max(wait, n.dial.started+revokedRedial-now)
		}
		if wait > 0 {
			pause = min(pause, wait)
			continue
		}
		n.dial.busy, n.dial.started = true, now
		due = append(due, c)
	}
	return due, pause
}

// A redialAttempt is a running attempt of the redial loop.
type redialAttempt struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// endRedial ends the running attempt of the redial loop to reach p, whose next packet may
// be seconds away: a new dial starts at once.
func (t *Transport) endRedial(ctx context.Context, p proto.PeerID) {
	t.mu.Lock()
	a := t.peer(p).redial
	t.mu.Unlock()
	if a == nil {
		return
	}
	a.cancel()
	select {
	case <-a.ended:
	case <-ctx.Done():
	}
}

func (t *Transport) dialContact(ctx context.Context, c proto.Contact) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attempt := &redialAttempt{cancel, make(chan struct{})}
	defer close(attempt.ended)
	t.mu.Lock()
	n := t.peer(c.Peer)
	n.redial = attempt
	last, asks := n.dial, n.dial.shouldAskDHT(t.cfg.Clock.Mono())
	if asks {
		n.dial.asked = t.cfg.Clock.Mono()
	}
	t.mu.Unlock()
	c.Addrs = t.freshAddrs(ctx, c, asks)
	dialing, cancel := context.WithTimeout(ctx, last.timeout())
	err := t.connect(dialing, c, last.tries > 0)
	cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	n = t.peer(c.Peer)
	n.dial.busy, n.redial = false, nil
	if err == nil || len(n.conns) > 0 {
		return
	}
	n.lastErr, n.failedAt = err, t.cfg.Clock.Now()
	n.dial = t.cfg.Timing.afterFailure(n.dial, t.cfg.Clock.Mono(), rand.Float64())
	t.log.Debug("dial failed", "peer", c.Peer, "tries", n.dial.tries, "why", err)
	notify(t.redialWake)
}

// Want requests a connection to p, for which there is work: it is dialed at once if it is
// not connected.
func (t *Transport) Want(p proto.PeerID) {
	t.mu.Lock()
	n := t.peer(p)
	was := n.dial
	wake := len(n.conns) == 0
	if wake && was != (redialState{}) {
		n.dial = t.cfg.Timing.wake(was, t.cfg.Clock.Mono())
		wake = n.dial.due != was.due // otherwise the next attempt is already scheduled
	}
	t.mu.Unlock()
	if wake {
		notify(t.redialWake)
	}
}

// Dial connects to p at one of addrs and returns after both hellos. It waits for Run. A
// refusal by p or of p is a RefusedError.
func (t *Transport) Dial(ctx context.Context, p proto.PeerID, addrs []string) error {
	c := t.contact(p)
	c.Addrs = addrs
	if err := t.connect(ctx, c, true); err != nil {
		return fmt.Errorf("dial %s: %w", p, err)
	}
	return nil
}

// connect dials c and waits for the hello. failed: its plain addresses failed before.
func (t *Transport) connect(ctx context.Context, c proto.Contact, failed bool) error {
	t.addDialing(c.Peer, 1)
	defer t.addDialing(c.Peer, -1)
	circuits := t.circuitsTo(c, failed)
	if len(circuits) > 0 && !failed { // only the best relay, unless a dial failed
		best, _ := relayOf(circuits[0])
		circuits = slices.DeleteFunc(circuits, func(a ma.Multiaddr) bool { r, _ := relayOf(a); return r != best })
		defer t.reach.dialTargets.set(c.Peer, dialTarget{relay: best})()
	}
	if err := t.dialAll(ctx, c, circuits); err != nil {
		return err
	}
	return t.awaitHello(ctx, c.Peer)
}

// dialAll dials c at its addresses and through circuits. It connects to relays that are
// not connected first, in parallel with the rest. It returns at the first connection.
func (t *Transport) dialAll(ctx context.Context, c proto.Contact, circuits []ma.Multiaddr) error {
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
		return t.dialHost(ctx, c.Peer, c.Addrs, near...)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1+len(far))
	wg.Go(func() { ended <- t.dialHost(ctx, c.Peer, c.Addrs, near...) })
	for r, addrs := range far {
		wg.Go(func() { ended <- t.dialViaNewRelay(ctx, c.Peer, r, addrs) })
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
func (t *Transport) dialViaNewRelay(ctx context.Context, p, relay proto.PeerID, addrs []string) error {
	err := t.dialHost(ctx, relay, addrs)
	if err == nil {
		err = t.awaitHello(ctx, relay)
	}
	if err != nil {
		return fmt.Errorf("connect to its relay %s: %v", relay.Short(), err) //nolint:errorlint // it says nothing about p
	}
	return t.dialHost(ctx, p, nil, through(relay, nil))
}

// dialHost makes a connection to p if there is none. The other side may still close it
// when it learns this node's identity.
func (t *Transport) dialHost(ctx context.Context, p proto.PeerID, addrs []string, circuits ...ma.Multiaddr) error {
	switch {
	case p == t.self:
		return errors.New("the peer is this node itself")
	case t.gate.Blocked(p):
		return &RefusedError{p, "it is blocked", false}
	}
	list, err := parseAddrs(p, addrs)
	if err != nil {
		return err
	}
	select {
	case <-t.opened:
	case <-ctx.Done():
		return fmt.Errorf("the transport is not running: %w", ctx.Err())
	}
	id := toLibp2p(p)
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	if sw := swarmOf(t.host.Network()); sw != nil {
		sw.Backoff().Clear(id)
	}
	return describeDialError(t.host.Connect(ctx, peer.AddrInfo{ID: id, Addrs: append(slices.DeleteFunc(list, isCircuit), circuits...)}))
}

// awaitHello returns when a connection to p is verified, or when no existing one can be.
func (t *Transport) awaitHello(ctx context.Context, p proto.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, 2*t.cfg.Timing.Hello)
	defer cancel()
	seen := make(map[network.Conn]bool)
	for {
		c := t.nextConn(p, seen)
		if c == nil {
			return t.helloError(p)
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

// helloError returns why p is not connected.
func (t *Transport) helloError(p proto.PeerID) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.peers[p]; n != nil && n.helloErr != nil {
		return n.helloErr
	}
	return errors.New("the connection closed before the hello: the other side may have blocked or banned this node, or may be stopping")
}

// addDialing counts the callers that wait for a connection to p.
func (t *Transport) addDialing(p proto.PeerID, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.peer(p)
	if n.dialing == 0 {
		n.helloErr = nil
	}
	n.dialing += by
	t.forget(n)
}

// nextConn returns a connection to p that is not in seen, and adds it.
func (t *Transport) nextConn(p proto.PeerID, seen map[network.Conn]bool) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	for raw, c := range t.conns {
		if c.peer == p && !seen[raw] {
			if seen != nil {
				seen[raw] = true
			}
			return c
		}
	}
	return nil
}
