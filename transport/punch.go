package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// While a peer is connected only through relays, a direct path is tried at once, after
// each of these delays, and whenever an address changes.
var punchPauses = []time.Duration{2 * time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute}

// Bounds of attempts.
const (
	punchDial   = 4 * time.Second // per punch
	directDial  = 3 * time.Second // for the plain addresses
	maxPunches  = 16              // attempts remembered per peer
	maxPunching = 8               // peers

	quicFirst = time.Second            // head start of QUIC in a punch, without some round trips
	punchWait = 200 * time.Millisecond // for a second packet of QUIC, without some round trips
)

// A Punch is one attempt to establish a direct path.
type Punch struct {
	Time   time.Time
	OK     bool
	Took   time.Duration
	Detail string // why it failed, or how it succeeded
}

// A puncher seeks direct paths: by libp2p's hole punching, initiated by this node and for
// members only, and by plain addresses. It learns how others see this node.
type puncher struct {
	self     proto.PeerID
	host     host.Host
	cfg      Config
	log      *slog.Logger
	met      *metrics
	group    *taskGroup
	peers    *peerTable
	members  *members
	greeter  *greeter
	dialer   *dialer
	redialer *redialer
	emit     func(Event)
	guard    func(network.StreamHandler) network.StreamHandler // serves members only

	seen  *observed     // addresses of this node
	slots chan struct{} // held by each attempt

	mu      sync.Mutex
	service *holepunch.Service // nil until a peer observed this node's address
	ended   bool               // stopped
	history map[proto.PeerID][]Punch
}

// A punchHost is the host as the hole puncher sees it. It serves only members and
// initiates nothing: [Transport.upgrade] decides when to try.
type punchHost struct {
	guardedHost
	puncher *puncher
}

// Network returns a network without connection notifications.
func (h *punchHost) Network() network.Network { return quietNetwork{h.Host.Network()} }

// Connect allows only punches: upgrade dials plain addresses. The other side supplies the
// addresses; those of this machine are rejected.
//
// libp2p has the initiator only open its NAT, and the other side dial. If the initiator is
// behind a symmetric NAT, the other side dials a port that is not mapped for it, so then
// both dial. While the kind of the NAT is unknown, the initiator dials once the other side had
// time for a handshake whose first packet came before there was a hole.
func (h *punchHost) Connect(ctx context.Context, pi peer.AddrInfo) error {
	ok, dials, why := network.GetSimultaneousConnect(ctx)
	if !ok {
		return errors.New("plain addresses are dialed elsewhere")
	}
	if pi.Addrs = plausible(h.puncher.host.Addrs(), pi.Addrs); len(pi.Addrs) == 0 {
		return errors.New("the other side announced no usable address")
	}
	return describeDialError(h.punchQUICFirst(ctx, pi, dials, why))
}

// punchQUICFirst punches over QUIC alone for a while if it works on both sides, and then over
// TCP too: where both get through, the first would be left to chance, most often TCP, because
// the first packet of QUIC may come before there is a hole. Both sides do so at the same time.
func (h *punchHost) punchQUICFirst(ctx context.Context, pi peer.AddrInfo, dials bool, why string) error {
	p, err := fromLibp2p(pi.ID)
	if err != nil {
		return err
	}
	rtt := h.puncher.peers.roundTrip(p)
	head := min(punchDial/2, quicFirst+3*rtt)
	waits := min(head/2, punchWait+2*rtt)
	if !slices.ContainsFunc(pi.Addrs, isQUIC) || !slices.ContainsFunc(h.puncher.addrs(), isQUIC) {
		return h.punch(ctx, pi, dials, why, 0)
	}
	first, cancel := context.WithTimeout(ctx, head)
	allowTCP := h.puncher.dialer.quic.start(p)
	err = h.punch(first, pi, dials, why, waits)
	allowTCP()
	cancel()
	if err == nil || ctx.Err() != nil {
		return err
	}
	return h.punch(ctx, pi, dials, why, 0)
}

// punch dials the addresses in the role that the NAT of this node asks for. While that is
// unknown it only opens its NAT at first, for so long; 0: for as long as it lasts. Over TCP both
// sides dial in either role, and if both are clients the handshake of what they open fails.
// What an attempt leaves behind, in a NAT or as a half-open connection, occupies the ports of
// the next one.
func (h *punchHost) punch(ctx context.Context, pi peer.AddrInfo, dials bool, why string, waits time.Duration) error {
	nat := h.puncher.nat()
	if dials || nat == NATCone || nat == NATNone || nat == NATUnknown && waits == 0 {
		return h.Host.Connect(ctx, pi)
	}
	if nat == NATUnknown {
		first, cancel := context.WithTimeout(ctx, waits)
		err := h.Host.Connect(first, pi)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return h.Host.Connect(network.WithSimultaneousConnect(ctx, true, why), pi)
}

type quietNetwork struct{ network.Network }

func (quietNetwork) Notify(network.Notifiee)     {}
func (quietNetwork) StopNotify(network.Notifiee) {}

// run learns this node's addresses as seen by members, and starts hole punching
// after the first one. It runs until ctx is done.
func (pu *puncher) run(ctx context.Context) {
	sub, err := pu.host.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted))
	if err != nil {
		pu.log.Warn("observed addresses are not available", "why", err)
		return
	}
	defer sub.Close()
	defer pu.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-sub.Out():
			if !ok {
				return
			}
			if seen, ok := e.(event.EvtPeerIdentificationCompleted); ok {
				pu.group.start(func(ctx context.Context) { pu.addObservation(ctx, seen.Conn, seen.ObservedAddr) })
			}
		}
	}
}

// addObservation handles this node's address as seen by the other end of raw, after both
// hellos: observations by strangers are ignored.
func (pu *puncher) addObservation(ctx context.Context, raw network.Conn, at ma.Multiaddr) {
	pu.peers.mu.Lock()
	c := pu.peers.conns[raw]
	pu.peers.mu.Unlock()
	if c == nil || !pu.greeter.awaitVerified(ctx, c) || !pu.seen.add(raw, at) {
		return
	}
	if err := pu.start(at); err != nil {
		pu.log.Warn("hole punching is not available", "why", err)
	}
	pu.peers.wakeUpgrades()
}

// start starts hole punching. first is the first observed address.
func (pu *puncher) start(first ma.Multiaddr) error {
	pu.mu.Lock()
	defer pu.mu.Unlock()
	if pu.service != nil || pu.ended {
		return nil
	}
	h, ok := pu.host.(interface{ IDService() identify.IDService })
	if !ok {
		return errors.New("the host has no identify service")
	}
	addrs := func() []ma.Multiaddr {
		if a := pu.addrs(); len(a) > 0 {
			return a
		}
		return []ma.Multiaddr{first}
	}
	s, err := holepunch.NewService(&punchHost{guardedHost{pu.host, pu.guard}, pu}, h.IDService(), addrs,
		holepunch.DirectDialTimeout(punchDial), holepunch.WithTracer(punchTracer{pu}))
	if err != nil {
		return err
	}
	// The service finds its address in a goroutine, and a call that waits for it blocks
	// forever if the service is closed meanwhile. This call waits now, and fails.
	s.DirectConnect(pu.host.ID())
	pu.service = s
	return nil
}

func (pu *puncher) stop() {
	pu.mu.Lock()
	s := pu.service
	pu.ended = true
	pu.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// addrs returns the addresses that others can punch: observed and announced ones, and
// TCP ones that are likely.
func (pu *puncher) addrs() []ma.Multiaddr {
	out := pu.seen.addrs()
	for _, s := range pu.cfg.Announce {
		if a, err := ma.NewMultiaddr(s); err == nil && !isCircuit(a) && !slices.ContainsFunc(out, a.Equal) {
			out = append(out, a)
		}
	}
	if pu.nat() != NATNone { // otherwise its plain addresses can be dialed, over QUIC if that works
		out = append(out, likelyTCP(out, pu.host.Network().ListenAddresses())...)
	}
	return out[:min(len(out), maxPunchAddrs)]
}

// likelyTCP returns the TCP addresses that a NAT probably gives this node, for each address of
// which only the UDP port was observed: a NAT that keeps the port of UDP mostly keeps that of
// TCP. Nodes with QUIC use no TCP that others could observe, but where UDP is blocked on the
// other side only TCP can be punched.
func likelyTCP(seen, listen []ma.Multiaddr) (out []ma.Multiaddr) {
	for _, a := range seen {
		keeps := func(l ma.Multiaddr) bool { return sameFamily(a, l) && portOf(l, ma.P_UDP) == portOf(a, ma.P_UDP) }
		known := func(b ma.Multiaddr) bool { return isTCP(b) && ipOf(b) == ipOf(a) }
		if isTCP(a) || !slices.ContainsFunc(listen, keeps) || slices.ContainsFunc(slices.Concat(seen, out), known) {
			continue
		}
		for _, l := range listen {
			if isTCP(l) && sameFamily(a, l) {
				out = append(out, a[:1].Encapsulate(ma.StringCast("/tcp/"+portOf(l, ma.P_TCP))))
			}
		}
	}
	return out
}

// sameFamily reports whether both addresses are IPv4, or both IPv6.
func sameFamily(a, b ma.Multiaddr) bool {
	return len(a) > 0 && len(b) > 0 && a[0].Code() == b[0].Code()
}

// portOf returns the port of a in this protocol, or "".
func portOf(a ma.Multiaddr, protocol int) string {
	port, err := a.ValueForProtocol(protocol)
	if err != nil {
		return ""
	}
	return port
}

// A punchTracer records the results of punches, including those initiated by the other
// side.
type punchTracer struct{ puncher *puncher }

// Trace handles one of libp2p's events.
func (p punchTracer) Trace(e *holepunch.Event) {
	id, err := fromLibp2p(e.Remote)
	if err != nil || id == p.puncher.self {
		return
	}
	switch v := e.Evt.(type) {
	case *holepunch.EndHolePunchEvt:
		p.puncher.record(id, Punch{OK: v.Success, Took: v.EllapsedTime, Detail: v.Error})
	case *holepunch.ProtocolErrorEvt:
		p.puncher.log.Debug("the two sides did not agree on a punch", "peer", id, "why", v.Error)
		p.puncher.record(id, Punch{Detail: "the two sides did not agree on it"})
	}
}

// record records an attempt and reports it.
func (pu *puncher) record(id proto.PeerID, p Punch) {
	p.Time = pu.cfg.Clock.Now()
	p.Detail = proto.Clip(p.Detail, maxReason)
	kind, outcome := EventPunchFailed, "failed"
	if p.OK {
		kind, outcome = EventPunched, "direct"
		if p.Detail == "" {
			p.Detail = "through the NATs"
		}
	}
	pu.met.punches.WithLabelValues(outcome).Inc()
	pu.mu.Lock()
	list := append(pu.history[id], p)
	pu.history[id] = list[max(0, len(list)-maxPunches):]
	pu.mu.Unlock()
	pu.log.Debug("punch", "peer", id, "ok", p.OK, "took", p.Took, "detail", p.Detail)
	pu.emit(Event{Peer: id, Kind: kind, Detail: p.Detail})
}

// attempts returns the attempts to reach p, oldest first.
func (pu *puncher) attempts(p proto.PeerID) []Punch {
	pu.mu.Lock()
	defer pu.mu.Unlock()
	return slices.Clone(pu.history[p])
}

// tryDirect tries each way to a direct path once: a punch, initiated by the side that was
// dialed, then the plain addresses, one of which may work by now. Those of a peer that any
// node can dial come first. Those of others must not: what arrives at a router before its
// node has sent anything may take the port that the punch needs, if the router itself
// accepts connections.
func (pu *puncher) tryDirect(ctx context.Context, p proto.PeerID, punches bool) {
	select {
	case pu.slots <- struct{}{}:
		defer func() { <-pu.slots }()
	case <-ctx.Done():
		return
	}
	pu.redialer.end(ctx, p)
	open := pu.cfg.Open(p)
	if open && pu.dialDirect(ctx, p) == nil || punches && pu.punch(p) == nil || open {
		return
	}
	if err := pu.dialDirect(ctx, p); err != nil {
		pu.log.Debug("no direct path", "peer", p, "why", err)
		pu.observeAgain(p)
	}
}

// punch makes both sides dial each other at the same time. It returns early when Run
// stops.
func (pu *puncher) punch(p proto.PeerID) error {
	pu.mu.Lock()
	s := pu.service
	pu.mu.Unlock()
	if s == nil || len(pu.addrs()) == 0 {
		return errors.New("no address of this node has been observed yet")
	}
	return s.DirectConnect(toLibp2p(p))
}

// dialDirect dials the plain addresses of p.
func (pu *puncher) dialDirect(ctx context.Context, p proto.PeerID) error {
	list, err := parseAddrs(p, pu.members.contact(p).Addrs)
	if err != nil {
		return err
	}
	if list = slices.DeleteFunc(list, isCircuit); len(list) == 0 {
		return errors.New("no plain address is known")
	}
	ctx, cancel := context.WithTimeout(network.WithForceDirectDial(ctx, "away from the relay"), directDial)
	defer cancel()
	began := pu.cfg.Clock.Mono()
	if err := pu.host.Connect(ctx, peer.AddrInfo{ID: toLibp2p(p), Addrs: list}); err != nil {
		return fmt.Errorf("dial directly: %w", err)
	}
	pu.record(p, Punch{OK: true, Took: pu.cfg.Clock.Mono() - began, Detail: "by a plain address"})
	return nil
}

var _ host.Host = (*punchHost)(nil)
