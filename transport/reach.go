package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ma "github.com/multiformats/go-multiaddr"
)

// A reach is what makes this node reachable besides its own sockets: reservations, a port
// mapping and what AutoNAT has found.
type reach struct {
	reserver *reserver
	router   atomic.Pointer[portMap]       // nil: no port mapping
	autonat  atomic.Pointer[addrConfirmer] // nil: not available
	served   *relayCounters
}

// startReach starts what makes this node reachable. stop stops the relay service; the
// rest stops with Run.
func (t *Transport) startReach() (stop func(), err error) {
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

// addrs returns the circuit addresses of this node, and addresses that AutoNAT would make
// libp2p hide: AutoNAT is only informative here. libp2p calls it at any time.
func (r *reach) addrs() (out []ma.Multiaddr) {
	if h := r.autonat.Load(); h != nil {
		_, out, _ = (*h).ConfirmedAddrs()
	}
	if p := r.reserver.circuits.Load(); p != nil {
		out = append(out, *p...)
	}
	return out
}

// An addrConfirmer is a host whose addresses are checked by others.
type addrConfirmer interface {
	ConfirmedAddrs() (reachable, unreachable, unknown []ma.Multiaddr)
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

// BroadcastHello sends the hello again to all peers: the certificate, the key record or
// the addresses have changed.
func (t *Transport) BroadcastHello() { t.greeter.sendHellos(func(*conn) bool { return true }) }

// tellRelays sends the hello again because the relays have changed. Gossip tells them to all:
// only who is connected through a relay must know at once. Hellos to all, because of what a
// narrow link loses, would be the next that it loses.
func (t *Transport) tellRelays() {
	gossip := t.disc.topic.Load() != nil
	t.greeter.sendHellos(func(c *conn) bool { return !gossip || !c.direct() })
}

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
