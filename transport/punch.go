package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// A relayed connection is a beginning: while a peer is connected through relays
// only, a direct path is tried at once, after each of these pauses, and whenever
// an address changed.
var punchPauses = []time.Duration{2 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute}

// Bounds of a try.
const (
	punchDial   = 4 * time.Second // of one punch
	directDial  = 3 * time.Second // of the plain addresses
	maxPunches  = 16              // tries remembered a peer
	maxPunching = 8               // peers
)

// A Punch is one try to make a direct path.
type Punch struct {
	Time   time.Time
	OK     bool
	Took   time.Duration
	Detail string // why it failed, or which way it went
}

// A puncher is libp2p's hole punching, begun by us and for members only.
type puncher struct {
	slots chan struct{} // held by each try

	mu      sync.Mutex
	service *holepunch.Service // nil until somebody saw our address
	ended   bool               // none is started any more
	history map[proto.PeerID][]Punch
}

func newPuncher() *puncher {
	return &puncher{slots: make(chan struct{}, maxPunching), history: make(map[proto.PeerID][]Punch)}
}

// A punchHost is the host as the hole puncher sees it. It takes part for members
// only and begins nothing by itself: when to try is decided in [Transport.upgrade].
type punchHost struct{ guardedHost }

// Network returns a network that tells of no connections.
func (h *punchHost) Network() network.Network { return quietNetwork{h.Host.Network()} }

// Connect refuses what is no punch: plain addresses are dialled by upgrade. The other
// side says where it is aimed at: that leads to no doors of this machine itself.
func (h *punchHost) Connect(ctx context.Context, pi peer.AddrInfo) error {
	if ok, _, _ := network.GetSimultaneousConnect(ctx); !ok {
		return errors.New("the plain addresses are dialled elsewhere")
	}
	if pi.Addrs = plausible(h.t.host.Addrs(), pi.Addrs); len(pi.Addrs) == 0 {
		return errors.New("the other side names no address that can lead to it")
	}
	return h.Host.Connect(ctx, pi)
}

type quietNetwork struct{ network.Network }

func (quietNetwork) Notify(network.Notifiee)     {}
func (quietNetwork) StopNotify(network.Notifiee) {}

// watchObserved learns from members where they see this node, and starts hole
// punching when the first one said so. It runs until ctx ends.
func (t *Transport) watchObserved(ctx context.Context) {
	sub, err := t.host.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted))
	if err != nil {
		t.log.Warn("nobody tells where this node is seen", "why", err)
		return
	}
	defer sub.Close()
	defer t.stopPunching()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-sub.Out():
			if !ok {
				return
			}
			if seen, ok := e.(event.EvtPeerIdentificationCompleted); ok {
				t.group.start(func(ctx context.Context) { t.addObservation(ctx, seen.Conn, seen.ObservedAddr) })
			}
		}
	}
}

// addObservation takes where the other end of raw sees this node, after both hellos: a
// stranger's word moves nothing.
func (t *Transport) addObservation(ctx context.Context, raw network.Conn, at ma.Multiaddr) {
	t.mu.Lock()
	c := t.conns[raw]
	t.mu.Unlock()
	if c == nil || !t.awaitVerified(ctx, c) || !t.reach.seen.add(raw, at) {
		return
	}
	if err := t.startPunching(at); err != nil {
		t.log.Warn("no hole punching", "why", err)
	}
	t.wakeUpgrades()
}

// startPunching takes part in hole punching from now on. This node was seen at first.
func (t *Transport) startPunching(first ma.Multiaddr) error {
	p := t.reach.punching
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.service != nil || p.ended {
		return nil
	}
	h, ok := t.host.(interface{ IDService() identify.IDService })
	if !ok {
		return errors.New("the host identifies nobody")
	}
	addrs := func() []ma.Multiaddr {
		if a := t.punchAddrs(); len(a) > 0 {
			return a
		}
		return []ma.Multiaddr{first}
	}
	s, err := holepunch.NewService(&punchHost{guardedHost{t.host, t}}, h.IDService(), addrs,
		holepunch.DirectDialTimeout(punchDial), holepunch.WithTracer(punchTracer{t}))
	if err != nil {
		return err
	}
	// The service finds its address in a goroutine, and whoever asks it before
	// its end waits for ever when it is closed meanwhile. This asks, and fails.
	s.DirectConnect(t.host.ID())
	p.service = s
	return nil
}

func (t *Transport) stopPunching() {
	p := t.reach.punching
	p.mu.Lock()
	s := p.service
	p.ended = true
	p.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// punchAddrs returns where others can aim at: where they see this node, and
// where it says that it is.
func (t *Transport) punchAddrs() []ma.Multiaddr {
	out := t.reach.seen.addrs()
	for _, s := range t.cfg.Announce {
		if a, err := ma.NewMultiaddr(s); err == nil && !isCircuit(a) && len(out) < maxPunchAddrs && !slices.ContainsFunc(out, a.Equal) {
			out = append(out, a)
		}
	}
	return out
}

// A punchTracer keeps what became of punches, of those that the other side
// began too.
type punchTracer struct{ t *Transport }

// Trace takes one of libp2p's events.
func (p punchTracer) Trace(e *holepunch.Event) {
	id, err := fromLibp2p(e.Remote)
	if err != nil || id == p.t.self {
		return
	}
	switch v := e.Evt.(type) {
	case *holepunch.EndHolePunchEvt:
		p.t.punched(id, Punch{OK: v.Success, Took: v.EllapsedTime, Detail: v.Error})
	case *holepunch.ProtocolErrorEvt:
		p.t.punched(id, Punch{Detail: v.Error})
	}
}

// punched remembers a try and tells of it.
func (t *Transport) punched(id proto.PeerID, p Punch) {
	p.Time = t.cfg.Clock.Now()
	p.Detail = proto.Clip(p.Detail, maxReason)
	kind, outcome := EventPunchFailed, "failed"
	if p.OK {
		kind, outcome = EventPunched, "direct"
		if p.Detail == "" {
			p.Detail = "through the NATs"
		}
	}
	t.met.punches.WithLabelValues(outcome).Inc()
	r := t.reach.punching
	r.mu.Lock()
	list := append(r.history[id], p)
	r.history[id] = list[max(0, len(list)-maxPunches):]
	r.mu.Unlock()
	t.log.Debug("punch", "peer", id, "ok", p.OK, "took", p.Took, "detail", p.Detail)
	t.emit(Event{Peer: id, Kind: kind, Detail: p.Detail})
}

// upgrade looks for a direct path to n, and until there is one for a better relay,
// until no connection is there at all, or ctx ends.
func (t *Transport) upgrade(ctx context.Context, n *peerState) {
	pick := t.relayPicker(n.peer)
	look := time.NewTicker(measureEvery)
	defer look.Stop()
	var next time.Duration // when a direct path is tried again
	for tries := 0; ; {
		t.mu.Lock()
		c := n.best()
		if c == nil || c.direct() || ctx.Err() != nil {
			n.upgrading = false
			t.mu.Unlock()
			return
		}
		punches := slices.ContainsFunc(n.conns, func(c *conn) bool { return c.inbound && !c.direct() })
		t.mu.Unlock()
		if now := t.cfg.Clock.Mono(); now >= next {
			t.tryDirect(ctx, n.peer, punches)
			next = t.cfg.Clock.Mono() + punchPauses[min(tries, len(punchPauses)-1)]
			tries++
		}
		timer := time.NewTimer(next - t.cfg.Clock.Mono())
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-look.C:
			t.switchRelay(ctx, n, c, pick)
		case <-n.wake:
			tries, next = 0, 0
		}
		timer.Stop()
	}
}

// tryDirect tries each way to a direct path once: the punch, which the side that
// was dialled begins, then the plain addresses, of which one may work by now.
func (t *Transport) tryDirect(ctx context.Context, p proto.PeerID, punches bool) {
	select {
	case t.reach.punching.slots <- struct{}{}:
		defer func() { <-t.reach.punching.slots }()
	case <-ctx.Done():
		return
	}
	if punches && t.punch(p) == nil {
		return
	}
	if err := t.dialDirect(ctx, p); err != nil {
		t.log.Debug("no direct path", "peer", p, "why", err)
	}
}

// punch has both sides dial each other at the same moment. It ends early when
// Run ends.
func (t *Transport) punch(p proto.PeerID) error {
	r := t.reach.punching
	r.mu.Lock()
	s := r.service
	r.mu.Unlock()
	if s == nil || len(t.punchAddrs()) == 0 {
		return errors.New("nobody said yet where this node is seen")
	}
	return s.DirectConnect(toLibp2p(p))
}

// dialDirect dials the plain addresses of p.
func (t *Transport) dialDirect(ctx context.Context, p proto.PeerID) error {
	list, err := parseAddrs(p, t.contact(p).Addrs)
	if err != nil {
		return err
	}
	if list = slices.DeleteFunc(list, isCircuit); len(list) == 0 {
		return errors.New("no plain address is known")
	}
	ctx, cancel := context.WithTimeout(network.WithForceDirectDial(ctx, "away from the relay"), directDial)
	defer cancel()
	began := t.cfg.Clock.Mono()
	if err := t.host.Connect(ctx, peer.AddrInfo{ID: toLibp2p(p), Addrs: list}); err != nil {
		return fmt.Errorf("dial directly: %w", err)
	}
	t.punched(p, Punch{OK: true, Took: t.cfg.Clock.Mono() - began, Detail: "by a plain address"})
	return nil
}

// wakeUpgrades has direct paths looked for at once.
func (t *Transport) wakeUpgrades() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.peers {
		if n.upgrading {
			notify(n.wake)
		}
	}
}

var _ host.Host = (*punchHost)(nil)
