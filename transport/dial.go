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

// A try to reach a peer, without the hello, is given up after a while. Most are
// short: a handshake that began in an outage sends its next packet late. Every
// third is long, for a path that is slow.
const (
	shortDial = 2 * time.Second
	longDial  = 6 * time.Second
	maxDial   = 15 * time.Second // of one that somebody asked for
)

// timeout bounds the next try.
func (d redialState) timeout() time.Duration {
	if d.tries%3 == 2 {
		return longDial
	}
	return shortDial
}

// scanEvery is how often the directory is read for new contacts.
const scanEvery = 5 * time.Second

// A redialState is when a peer is dialled next.
type redialState struct {
	due     time.Duration // monotonic
	started time.Duration // of the last try
	lostAt  time.Duration // unconnected since
	asked   time.Duration // when the DHT was asked last for it; 0: not yet
	tries   int           // in a row that failed
	busy    bool          // a try runs
	wanted  bool          // work came up while it ran
}

// firstDial returns the redial of a peer that is unconnected from now on. Even the
// first try is spread: fifty nodes that lost the same link come back one by one
// (S46). r is random in [0, 1).
func (t Timing) firstDial(now time.Duration, r float64) redialState {
	return redialState{due: now + time.Duration(r*float64(t.Redial)), lostAt: now, started: now - t.Redial}
}

// afterFailure sets the time of the next try after one ended at now. The pause grows
// with the absence, not with the tries alone: a link that was down for 40
// seconds is found again within two (S07), one that was down for days costs a
// try a minute.
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

// wake makes the next try come at once, but not within Redial of the last.
func (t Timing) wake(d redialState, now time.Duration) redialState {
	d.due = min(d.due, max(now, d.started+t.Redial))
	d.wanted = d.busy
	return d
}

// redialLoop keeps every contact of the directory connected until ctx ends.
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

// dueContacts returns who is to be dialled now, marked busy, and how long to
// wait until somebody else is.
func (t *Transport) dueContacts(contacts []Contact) (due []Contact, pause time.Duration) {
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

func (t *Transport) dialContact(ctx context.Context, c Contact) {
	t.mu.Lock()
	n := t.peer(c.Peer)
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
	n.dial.busy = false
	if err == nil {
		return
	}
	n.lastErr, n.failedAt = err, t.cfg.Clock.Now()
	n.dial = t.cfg.Timing.afterFailure(n.dial, t.cfg.Clock.Mono(), rand.Float64())
	t.log.Debug("dial failed", "peer", c.Peer, "tries", n.dial.tries, "why", err)
	notify(t.redialWake)
}

// Want says that work waits for p: it is dialled at once if it is not connected.
func (t *Transport) Want(p proto.PeerID) {
	t.mu.Lock()
	n := t.peer(p)
	was := n.dial
	wake := len(n.conns) == 0
	if wake && was != (redialState{}) {
		n.dial = t.cfg.Timing.wake(was, t.cfg.Clock.Mono())
		wake = n.dial.due != was.due // else the next try is known already
	}
	t.mu.Unlock()
	if wake {
		notify(t.redialWake)
	}
}

// Dial connects to p at one of addrs and returns when both sides have said
// hello. It waits for Run. A refusal is a RefusedError.
func (t *Transport) Dial(ctx context.Context, p proto.PeerID, addrs []string) error {
	c := t.contact(p)
	c.Addrs = addrs
	if err := t.connect(ctx, c, true); err != nil {
		return fmt.Errorf("dial %s: %w", p, err)
	}
	return nil
}

// connect dials c and waits for the hello. failed says that its plain addresses
// did not do before.
func (t *Transport) connect(ctx context.Context, c Contact, failed bool) error {
	t.addDialing(c.Peer, 1)
	defer t.addDialing(c.Peer, -1)
	circuits := t.circuitsTo(c, failed)
	if len(circuits) > 0 && !failed { // the best relay alone, as long as nothing speaks against it
		best, _ := relayOf(circuits[0])
		circuits = slices.DeleteFunc(circuits, func(a ma.Multiaddr) bool { r, _ := relayOf(a); return r != best })
		defer t.reach.dialTargets.set(c.Peer, dialTarget{relay: best})()
	}
	if err := t.dialAll(ctx, c, circuits); err != nil {
		return err
	}
	return t.awaitHello(ctx, c.Peer)
}

// dialAll dials c at its addresses and by circuits. A relay that is not connected is
// met first, while the rest goes on. It returns at the first connection.
func (t *Transport) dialAll(ctx context.Context, c Contact, circuits []ma.Multiaddr) error {
	var near []ma.Multiaddr
	far := make(map[proto.PeerID][]string) // where relays are
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
	return errors.Join(failures...)
}

// dialViaNewRelay meets a relay at addrs and dials p over it.
func (t *Transport) dialViaNewRelay(ctx context.Context, p, relay proto.PeerID, addrs []string) error {
	err := t.dialHost(ctx, relay, addrs)
	if err == nil {
		err = t.awaitHello(ctx, relay)
	}
	if err != nil {
		return fmt.Errorf("meet its relay %s: %w", relay.Short(), err)
	}
	return t.dialHost(ctx, p, nil, through(relay, nil))
}

// dialHost makes a connection to p if there is none. That says nothing yet: the
// other side may end it as soon as it sees who is there.
func (t *Transport) dialHost(ctx context.Context, p proto.PeerID, addrs []string, circuits ...ma.Multiaddr) error {
	switch {
	case p == t.self:
		return errors.New("this is the node itself")
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
		return fmt.Errorf("the transport does not run: %w", ctx.Err())
	}
	id := toLibp2p(p)
	ctx, cancel := context.WithTimeout(ctx, maxDial)
	defer cancel()
	if sw := swarmOf(t.host.Network()); sw != nil {
		sw.Backoff().Clear(id)
	}
	return describeDialError(t.host.Connect(ctx, peer.AddrInfo{ID: id, Addrs: append(slices.DeleteFunc(list, isCircuit), circuits...)}))
}

// awaitHello returns when a connection to p is verified, or when none of those
// that are there can be.
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
			if c.hasCtl.Load() { // its end is told before its verdict
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
	return errors.New("the connection ended before the hello: the other side may have this node blocked or banned, or it stops")
}

// addDialing counts the callers that wait for a connection with p.
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

// nextConn returns a connection to p that was not looked at before.
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
