package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	ma "github.com/multiformats/go-multiaddr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/proto"
)

// TestStrangerGetsNoRelay checks S54: a peer without a hello gets no reservation, no
// circuit and no hole punching, and costs a bounded number of streams.
func TestStrangerGetsNoRelay(t *testing.T) {
	t.Parallel()
	relay := func(n *testNode, cfg *Config) {
		cfg.Relay = true
		n.gate.admit = func(_ *proto.Hello, p proto.PeerID) error {
			if p == newTestKeys(1).Peer() {
				return errors.New("not a member")
			}
			return nil
		}
	}
	b := start(t, 2, relay)
	patient := start(t, 4, func(n *testNode, cfg *Config) {
		relay(n, cfg)
		cfg.Timing.Hello = patience // until then the connection stays
	})
	a := start(t, 1, nil)
	link(t, start(t, 3, nil), b) // a member as a possible target
	raw := rawConnect(t, a, b)
	c := newConn(raw, b.Peer(), a.cfg.Clock)
	if addrs, err := a.reach.reserver.ask(t.Context(), c); err == nil {
		t.Errorf("a stranger got a reservation: %v", addrs)
	}
	id := toLibp2p(newTestKeys(3).Peer())
	if (relayACL{b.members}).AllowConnect(a.host.ID(), nil, id) || (relayACL{b.members}).AllowReserve(a.host.ID(), nil) {
		t.Error("a stranger is admitted")
	}
	if !(relayACL{b.members}).AllowReserve(id, nil) {
		t.Error("a member is not admitted")
	}
	if s := b.Reach().Service; s.Reservations != 0 || s.Circuits != 0 {
		t.Errorf("%+v", s)
	}
	raw = rawConnect(t, a, patient)
	const streams = 300
	for range streams {
		s, err := raw.NewStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.SetProtocol(circuitproto.ProtoIDv2Hop)
		s.Write([]byte("\x13/multistream/1.0.0\n")) // the name of the protocol does not follow
	}
	eventually(t, "all its streams but a few are refused", func() bool {
		conns := patient.host.Network().ConnsToPeer(a.host.ID())
		return testutil.ToFloat64(patient.met.refused) >= streams-maxWaiting && len(conns) == 1 && len(conns[0].GetStreams()) <= maxWaiting
	})
}

// TestMove checks S41: a moving link closes when all that it accepted is acknowledged,
// accepts nothing more meanwhile, and loses no answer.
func TestMove(t *testing.T) {
	hold := make(chan struct{})
	b := start(t, 2, func(n *testNode, _ *Config) {
		n.recv.receive = func(ctx context.Context, _ proto.PeerID, _ []*proto.Message) (Answer, error) {
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return Answer{}, ctx.Err()
		}
	})
	a := start(t, 1, nil)
	l := link(t, a, b)
	if err := l.Send(t.Context(), []*proto.Message{data(1), data(2), data(3)}); err != nil {
		t.Fatal(err)
	}
	l.move()
	sent := make(chan error, 1)
	go func() { sent <- l.Send(t.Context(), []*proto.Message{data(4)}) }()
	select {
	case <-l.Done():
		t.Fatal("it closed before the answer")
	case err := <-sent:
		t.Fatalf("it accepted one more: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(hold)
	for acked := uint64(0); acked < 3; {
		ack, err := l.Answers(t.Context())
		if err != nil {
			t.Fatalf("after %d answers: %v", acked, err)
		}
		acked = ack.GetUpTo()
	}
	if err := <-sent; !errors.Is(err, ErrLinkDown) || !errors.Is(err, errMoved) {
		t.Errorf("the sender receives %v", err)
	}
	select {
	case <-a.recv.links: // at once, on the best connection
	case <-time.After(patience):
		t.Error("no new link")
	}
}

// TestAddressChange checks S42: peers learn the new addresses, live connections stay, and
// lost peers are dialed at once.
func TestAddressChange(t *testing.T) {
	b := start(t, 2, nil)
	a := start(t, 1, nil)
	link(t, a, b)
	a.peers.mu.Lock()
	gone := a.peers.get(newTestKeys(9).Peer())
	gone.dial = redialState{due: time.Hour * 24 * 365, tries: 40}
	a.peers.mu.Unlock()
	a.addressesChanged()
	eventually(t, "another hello", func() bool {
		b.gate.mu.Lock()
		defer b.gate.mu.Unlock()
		return len(b.gate.hellos) >= 2
	})
	a.peers.mu.Lock()
	defer a.peers.mu.Unlock()
	if wait := gone.dial.due - a.cfg.Clock.Mono(); wait > a.cfg.Timing.Redial {
		t.Errorf("a lost peer waits for %v", wait)
	}
}

func TestNetworkWatch(t *testing.T) {
	x, y := ma.StringCast("/ip4/10.0.0.1/tcp/1"), ma.StringCast("/ip4/10.0.0.2/tcp/1")
	w := networkWatch{addrs: []ma.Multiaddr{x}}
	if w.addrsChanged([]ma.Multiaddr{x}) || !w.addrsChanged([]ma.Multiaddr{x, y}) || w.addrsChanged([]ma.Multiaddr{x, y}) {
		t.Error("a change of addresses was detected wrongly")
	}
	if w.localChange(false, time.Second) || !w.localChange(true, time.Second) || !w.localChange(false, time.Minute) || w.localChange(false, time.Minute) {
		t.Error("a sleep or a change of interfaces was detected wrongly")
	}
}

func TestRanker(t *testing.T) {
	good, bad := newTestKeys(1).Peer(), newTestKeys(2).Peer()
	score := func(p proto.PeerID) float64 {
		if p == good {
			return 1
		}
		return 0
	}
	by := func(relay proto.PeerID, a string) string {
		if a == "" {
			return through(relay, nil).String()
		}
		return through(relay, ma.StringCast(a)).String()
	}
	const wan, lanTCP, lanQUIC = "/ip4/11.0.0.9/udp/4001/quic-v1", "/ip4/192.168.1.2/tcp/4001", "/ip4/192.168.1.2/udp/4001/quic-v1"
	const ms = time.Millisecond
	tests := []struct {
		name  string
		addrs []string
		want  map[string]time.Duration
	}{
		{"TCP first on the LAN", []string{lanQUIC, lanTCP}, map[string]time.Duration{lanTCP: 0, lanQUIC: 100 * ms}},
		{"QUIC first on the WAN", []string{"/ip4/11.0.0.9/tcp/4001", wan}, map[string]time.Duration{wan: 0, "/ip4/11.0.0.9/tcp/4001": 250 * ms}},
		{"relays alone are dialed at once, best first", []string{by(bad, ""), by(good, wan), by(good, "")},
			map[string]time.Duration{by(good, ""): 0, by(good, wan): 0, by(bad, ""): time.Second}},
		{"relays come last, also on the LAN", []string{by(good, lanTCP), lanTCP, by(bad, "")},
			map[string]time.Duration{lanTCP: 0, by(good, lanTCP): 500 * ms, by(bad, ""): 1500 * ms}},
		{"nothing", nil, map[string]time.Duration{}},
	}
	for _, tt := range tests {
		var addrs []ma.Multiaddr
		for _, a := range tt.addrs {
			addrs = append(addrs, ma.StringCast(a))
		}
		got := ranker(score)(addrs)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v", tt.name, got)
		}
		for _, d := range got {
			if want, ok := tt.want[d.Addr.String()]; !ok || d.Delay != want {
				t.Errorf("%s: %s after %v, want %v", tt.name, d.Addr, d.Delay, want)
			}
		}
	}
}

func TestGuessNAT(t *testing.T) {
	p, q, r := newTestKeys(1).Peer(), newTestKeys(2).Peer(), newTestKeys(3).Peer()
	own := []netip.Addr{netip.MustParseAddr("192.168.1.2"), netip.MustParseAddr("11.0.0.7"), netip.MustParseAddr("2600::7")}
	seen := func(by proto.PeerID, a string) Observation { return Observation{by, a} }
	tests := []struct {
		name string
		seen []Observation
		want NAT
	}{
		{"no observation", nil, NATUnknown},
		{"one is not enough", []Observation{seen(p, "/ip4/11.0.0.1/udp/4001/quic-v1")}, NATUnknown},
		{"two observe the same port", []Observation{seen(p, "/ip4/11.0.0.1/udp/9/quic-v1"), seen(q, "/ip4/11.0.0.1/udp/9/quic-v1")}, NATCone},
		{"two observe two ports", []Observation{seen(p, "/ip4/11.0.0.1/udp/9/quic-v1"), seen(q, "/ip4/11.0.0.1/udp/8/quic-v1")}, NATSymmetric},
		{"one of our own addresses", []Observation{seen(p, "/ip4/11.0.0.7/udp/4001/quic-v1")}, NATNone},
		{"a private one of our own", []Observation{seen(p, "/ip4/192.168.1.2/udp/4001/quic-v1")}, NATNone},
		{"a private one by a neighbor, a NAT's by others", []Observation{seen(r, "/ip4/192.168.1.2/udp/9/quic-v1"), seen(p, "/ip4/11.0.0.1/udp/9/quic-v1"), seen(q, "/ip4/11.0.0.1/udp/8/quic-v1")}, NATSymmetric},
		{"a private one by a neighbor, a NAT's by one", []Observation{seen(r, "/ip4/192.168.1.2/udp/9/quic-v1"), seen(p, "/ip4/11.0.0.1/udp/9/quic-v1")}, NATUnknown},
		{"a private one by a neighbor, a NAT's over TCP by others", []Observation{seen(r, "/ip4/192.168.1.2/udp/9/quic-v1"), seen(p, "/ip4/11.0.0.1/tcp/9"), seen(q, "/ip4/11.0.0.1/tcp/9")}, NATCone},
		{"one of IPv6, and a NAT's", []Observation{seen(r, "/ip6/2600::7/udp/9/quic-v1"), seen(p, "/ip4/11.0.0.1/udp/9/quic-v1"), seen(q, "/ip4/11.0.0.1/udp/9/quic-v1")}, NATCone},
		{"a public one, and that of a container's bridge", []Observation{seen(p, "/ip4/11.0.0.7/udp/9/quic-v1"), seen(q, "/ip4/172.17.0.1/udp/9/quic-v1"), seen(r, "/ip4/172.17.0.1/udp/8/quic-v1")}, NATNone},
		{"TCP when there is no UDP", []Observation{seen(p, "/ip4/11.0.0.1/tcp/9"), seen(q, "/ip4/11.0.0.1/tcp/9")}, NATCone},
		{"UDP counts before TCP", []Observation{seen(p, "/ip4/11.0.0.1/udp/9/quic-v1"), seen(q, "/ip4/11.0.0.1/udp/9/quic-v1"), seen(p, "/ip4/11.0.0.1/tcp/1"), seen(q, "/ip4/11.0.0.1/tcp/2")}, NATCone},
		{"an invalid address", []Observation{seen(p, "x"), seen(q, "/dns4/a.example/udp/9")}, NATUnknown},
	}
	for _, tt := range tests {
		if got := guessNAT(tt.seen, own); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A relay that has just started says at once that others can dial it: nobody has seen it yet.
func TestPublicAddressCountsUntilItIsSeen(t *testing.T) {
	private, public, v6 := netip.MustParseAddr("192.168.1.2"), netip.MustParseAddr("11.0.0.7"), netip.MustParseAddr("2600::7")
	some := []string{"/ip4/11.0.0.7/udp/4001/quic-v1"}
	seen := []Observation{{newTestKeys(2).Peer(), "/ip4/11.0.0.9/udp/4001/quic-v1"}}
	for _, tt := range []struct {
		name  string
		reach Reach
		own   []netip.Addr
		want  bool
	}{
		{"peers see an own address", Reach{NAT: NATNone, Observed: seen}, nil, true},
		{"AutoNAT reached it", Reach{NAT: NATCone, Observed: seen, Reachable: some}, nil, true},
		{"the router forwards a port", Reach{NAT: NATSymmetric, Observed: seen, Mapped: some}, nil, true},
		{"nobody has seen it, its address is public", Reach{NAT: NATUnknown}, []netip.Addr{private, public}, true},
		{"nobody has seen it, its address is private", Reach{NAT: NATUnknown}, []netip.Addr{private}, false},
		{"nobody has seen it, that of its router is public", Reach{NAT: NATUnknown, Addrs: some}, []netip.Addr{private}, false},
		{"nobody has seen it, it has IPv6, maybe behind a firewall", Reach{NAT: NATUnknown}, []netip.Addr{v6}, false},
		{"it is seen at an address of another machine", Reach{NAT: NATUnknown, Observed: seen}, []netip.Addr{public}, false},
		{"AutoNAT did not reach it", Reach{NAT: NATUnknown, Unreachable: some}, []netip.Addr{public}, false},
	} {
		if got := tt.reach.public(tt.own); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// observedConn is a connection from some address.
type observedConn struct {
	network.Conn
	direction network.Direction
	remote    string
	closed    bool
}

func (c *observedConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: c.direction}}
}
func (c *observedConn) RemoteMultiaddr() ma.Multiaddr { return ma.StringCast(c.remote) }
func (c *observedConn) IsClosed() bool                { return c.closed }

// TestObserved checks that observations are bounded, are dropped with their connection,
// and count only on connections that reveal a NAT's mapping.
func TestObserved(t *testing.T) {
	const there = "/ip4/11.0.0.1/udp/4001/quic-v1"
	out := func() *observedConn { return &observedConn{direction: network.DirOutbound, remote: there} }
	o := newObserved()
	for _, c := range []*observedConn{
		{direction: network.DirInbound, remote: there}, {direction: network.DirOutbound, remote: there, closed: true},
		{direction: network.DirOutbound, remote: there + "/p2p/" + newTestKeys(1).Peer().String() + "/p2p-circuit"},
	} {
		if o.add(c, ma.StringCast("/ip4/11.0.0.2/tcp/1")) {
			t.Errorf("%+v counts", c)
		}
	}
	for _, a := range []string{"/ip4/127.0.0.1/tcp/1", "/ip4/0.0.0.0/tcp/1"} {
		if o.add(out(), ma.StringCast(a)) {
			t.Errorf("%s counts", a)
		}
	}
	first := out()
	if !o.add(first, ma.StringCast("/ip4/11.0.0.2/tcp/1")) || o.add(out(), ma.StringCast("/ip4/11.0.0.2/tcp/1")) {
		t.Error("a changed address was detected wrongly")
	}
	for i := range 200 {
		o.add(out(), ma.StringCast(fmt.Sprintf("/ip4/11.0.0.3/tcp/%d", i+1)))
	}
	if n := len(o.byConn); n != maxObservers {
		t.Errorf("%d are stored", n)
	}
	if a := o.addrs(); len(a) != maxPunchAddrs || a[0].String() != "/ip4/11.0.0.2/tcp/1" {
		t.Errorf("%v", a)
	}
	o.drop(first)
	if n := len(o.byConn); n != maxObservers-1 {
		t.Errorf("%d are stored after one left", n)
	}
}

func TestRelayOf(t *testing.T) {
	p := newTestKeys(1).Peer()
	for _, a := range []ma.Multiaddr{through(p, nil), through(p, ma.StringCast("/ip4/11.0.0.1/tcp/1"))} {
		if got, ok := relayOf(a); !ok || got != p {
			t.Errorf("%s leads through %v, %v", a, got, ok)
		}
	}
	for _, s := range []string{"/ip4/11.0.0.1/tcp/1", "/p2p-circuit", "/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N/p2p-circuit"} {
		if p, ok := relayOf(ma.StringCast(s)); ok {
			t.Errorf("%s leads through %v", s, p)
		}
	}
}

// TestCircuitAddrs checks that a relay's addresses are bounded and usable, whatever it
// announces, including documentation ranges.
func TestCircuitAddrs(t *testing.T) {
	relay := newTestKeys(1).Peer()
	c := &conn{raw: &observedConn{direction: network.DirOutbound, remote: "/ip4/203.0.113.1/udp/4001/quic-v1"}, peer: relay}
	announced := [][]byte{
		[]byte("no address"), ma.StringCast("/ip4/203.0.113.1/udp/4001/quic-v1/p2p/" + relay.String()).Bytes(),
		ma.StringCast("/ip4/127.0.0.1/tcp/4001").Bytes(), ma.StringCast("/ip4/0.0.0.0/tcp/4001").Bytes(),
		through(newTestKeys(2).Peer(), ma.StringCast("/ip4/11.0.0.1/tcp/1")).Bytes(), ma.StringCast("/ip4/10.0.0.1/tcp/4001").Bytes(),
		ma.StringCast("/ip4/10.0.0.2/tcp/4001").Bytes(), ma.StringCast("/ip4/10.0.0.3/tcp/4001").Bytes(),
	}
	got := addrStrings(circuitAddrs(c, announced))
	tail := "/p2p/" + relay.String() + "/p2p-circuit"
	want := []string{"/ip4/203.0.113.1/udp/4001/quic-v1" + tail, "/ip4/10.0.0.1/tcp/4001" + tail, "/ip4/10.0.0.2/tcp/4001" + tail}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestPunchHistory checks that the last sixteen attempts with a peer are remembered,
// reported and counted.
func TestPunchHistory(t *testing.T) {
	events := make(chan Event, 64)
	r := prometheus.NewRegistry()
	a := start(t, 1, func(_ *testNode, cfg *Config) {
		cfg.Registerer = r
		cfg.Observe = func(e Event) { events <- e }
	})
	p := newTestKeys(2).Peer()
	trace := punchTracer{a.puncher}
	trace.Trace(&holepunch.Event{Remote: a.host.ID(), Evt: &holepunch.ProtocolErrorEvt{Error: "self"}})
	trace.Trace(&holepunch.Event{Remote: "x", Evt: &holepunch.ProtocolErrorEvt{Error: "nobody"}})
	for i := range 20 {
		trace.Trace(&holepunch.Event{Remote: toLibp2p(p), Evt: &holepunch.EndHolePunchEvt{Error: fmt.Sprint(i, strings.Repeat("x", 1000))}})
	}
	trace.Trace(&holepunch.Event{Remote: toLibp2p(p), Evt: &holepunch.ProtocolErrorEvt{Error: "failed to read CONNECT message"}})
	trace.Trace(&holepunch.Event{Remote: toLibp2p(p), Evt: &holepunch.StartHolePunchEvt{}})
	trace.Trace(&holepunch.Event{Remote: toLibp2p(p), Evt: &holepunch.EndHolePunchEvt{Success: true, EllapsedTime: time.Second}})
	h := a.Paths(p).Punches
	if len(h) != maxPunches || !h[15].OK || h[15].Took != time.Second || h[0].OK || len(h[0].Detail) > maxReason || !strings.HasPrefix(h[0].Detail, "6") || h[14].Detail != "the two sides did not agree on it" {
		t.Errorf("%d attempts, the first %.20q, the last %+v", len(h), h[0].Detail, h[15])
	}
	for i := range 22 {
		e := <-events
		if want := i == 21; e.Peer != p || (e.Kind == EventPunched) != want {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if got := gathered(t, r); got["balefire_transport_punches_total failed"] != 21 || got["balefire_transport_punches_total direct"] != 1 {
		t.Errorf("counted: %v", got)
	}
}

func TestEventKinds(t *testing.T) {
	for k, want := range map[EventKind]string{EventConnected: "connected", EventReservationLost: "reservation_lost", EventPunchFailed: "punch_failed", -1: "unknown", 99: "unknown"} {
		if k.String() != want {
			t.Errorf("%d is %q", k, k)
		}
	}
}

// TestSlowObserver checks that a blocked observer blocks nothing else.
func TestSlowObserver(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	a := start(t, 1, func(_ *testNode, cfg *Config) { cfg.Observe = func(Event) { <-stop } })
	for range 2 * maxEvents {
		a.events.emit(Event{})
	}
	link(t, a, start(t, 2, nil))
}

// TestSecondHello checks S54: a dialed peer that sends its hello first, as nodes do that
// dial each other through NATs, gains nothing from it.
func TestSecondHello(t *testing.T) {
	for _, order := range [][2]byte{{1, 2}, {2, 1}} { // the yielding side is the one with the higher id
		b := start(t, order[0], nil)
		a := start(t, order[1], nil)
		link(t, a, b)
		id := a.host.ID()
		raw, err := b.host.Network().ConnsToPeer(id)[0].NewStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := newConn(raw.Conn(), a.Peer(), b.cfg.Clock)
		s, err := openStream(t.Context(), c, streamCtl, proto.MaxControl, b.cfg.Timing)
		if err != nil {
			t.Fatal(err)
		}
		if h, err := b.greeter.exchangeHellos(s, true); err == nil {
			t.Errorf("a second hello was answered with %v", h)
		}
		raw.Reset()
		eventually(t, "both are connected", func() bool { return a.Connected(b.Peer()) && b.Connected(a.Peer()) })
	}
}

// TestRelayOnRealSockets checks that a node that listens nowhere is reached through a
// relay, including over TCP, by a node that did not know the relay.
func TestRelayOnRealSockets(t *testing.T) {
	for _, listen := range []string{"/ip4/127.0.0.1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"} {
		relay := start(t, 3, func(_ *testNode, cfg *Config) { cfg.Relay, cfg.Listen = true, []string{listen} })
		b := start(t, 2, func(_ *testNode, cfg *Config) {
			cfg.Listen = []string{}
			cfg.Relays = func() []proto.PeerID { return []proto.PeerID{relay.Peer()} }
		})
		link(t, b, relay)
		eventually(t, "a place", func() bool { return len(b.Reservations()) == 1 })
		a := start(t, 1, nil)
		l := link(t, a, b)
		if s := a.Peers()[slices.IndexFunc(a.Peers(), func(s PeerStatus) bool { return s.Peer == b.Peer() })]; s.Direct || s.Relay != relay.Peer() {
			t.Errorf("%+v", s)
		}
		if err := l.Send(t.Context(), []*proto.Message{data(1)}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Answers(t.Context()); err != nil {
			t.Error(err)
		}
		for _, n := range []*testNode{a, b, relay} {
			n.stop()
		}
	}
}
