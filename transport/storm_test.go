package transport

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// There is a storm if packets pass in both directions while no round trip is measured, before
// and after a PING. It ends with a measured round trip, or after some time.
func TestStorm(t *testing.T) {
	for _, tt := range []struct {
		name           string
		sent, received uint64 // packets a second
		measured       []int  // seconds in which a round trip is measured; nil: in each
		want           []stormPhase
	}{
		{"repeats", 10, 5, []int{0}, []stormPhase{noStorm, suspected, stormy, stormy, stormy}},
		{"measured after the PING", 10, 5, []int{0, 2}, []stormPhase{noStorm, suspected, noStorm, suspected, stormy}},
		{"it ends", 10, 5, []int{0, 4}, []stormPhase{noStorm, suspected, stormy, stormy, noStorm, suspected}},
		{"bulk", 500, 200, nil, make([]stormPhase, 9)},
		{"at rest", 1, 1, []int{0}, make([]stormPhase, 9)},
		{"nothing arrives", 10, 0, []int{0}, make([]stormPhase, 9)},
		{"only acknowledgments of what arrives", 1, 100, []int{0}, make([]stormPhase, 9)},
		{"it ends itself", 10, 5, []int{0}, slices.Concat([]stormPhase{noStorm, suspected}, slices.Repeat([]stormPhase{stormy}, int(stormEnds/time.Second)), []stormPhase{noStorm, suspected, stormy})},
	} {
		var w storm
		g := quicStats{known: true}
		var got []stormPhase
		for i := range tt.want {
			g.progress = tt.measured == nil || slices.Contains(tt.measured, i)
			got = append(got, w.step(time.Minute+time.Duration(i)*time.Second, g))
			g.sent, g.received = g.sent+tt.sent, g.received+tt.received
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if new(storm).step(time.Minute, quicStats{}) != noStorm {
		t.Error("a storm over TCP")
	}
}

// Of what is sent to a thinned address one packet passes in each interval, to others all does.
func TestThinner(t *testing.T) {
	var x thinner
	to, other := &net.UDPAddr{IP: net.IPv4(11, 0, 0, 1), Port: 4001}, &net.UDPAddr{IP: net.IPv4(11, 0, 0, 2), Port: 4001}
	now := time.Now()
	passed := func(to net.Addr) (n int) {
		for i := range 100 {
			if !x.drops(nil, to, now.Add(time.Duration(i)*stormSpacing/20)) {
				n++
			}
		}
		return n
	}
	if n := passed(to); n != 100 {
		t.Errorf("%d of 100 pass before", n)
	}
	x.thin(netip.MustParseAddrPort("11.0.0.1:4001"), true)
	if n := passed(to); n != 5 {
		t.Errorf("%d of 100 packets in five intervals pass", n)
	}
	if n := passed(other) + passed(&net.TCPAddr{}); n != 200 {
		t.Errorf("%d of 200 to others pass", n)
	}
	x.thin(netip.MustParseAddrPort("11.0.0.1:4001"), false)
	if n := passed(to); n != 100 || x.some.Load() {
		t.Errorf("%d of 100 pass afterwards", n)
	}
}

// Handshakes to an address that was slow are sent in bursts, a second apart, for ten minutes;
// other packets to it, and those to other addresses, are not held back.
func TestHandshakesToSlowAddresses(t *testing.T) {
	var x thinner
	start := time.Now()
	to, other := &net.UDPAddr{IP: net.IPv4(11, 0, 0, 1), Port: 4001}, &net.UDPAddr{IP: net.IPv4(11, 0, 0, 2), Port: 4001}
	handshake, data := make([]byte, initialPacketSize), make([]byte, initialPacketSize)
	handshake[0], data[0] = 0xc0, 0x40
	passed := func(b []byte, to net.Addr, from time.Time) (at []time.Duration) {
		for _, ms := range []int{0, 1, 200, 600, 601, 1400, 1401, 3000, 6200} { // as QUIC repeats
			if now := from.Add(time.Duration(ms) * time.Millisecond); !x.drops(b, to, now) {
				at = append(at, now.Sub(from)/time.Millisecond)
			}
		}
		return at
	}
	all := []time.Duration{0, 1, 200, 600, 601, 1400, 1401, 3000, 6200}
	if got := passed(handshake, to, start); !slices.Equal(got, all) {
		t.Errorf("before: %v", got)
	}
	x.slowDown(netip.MustParseAddrPort("11.0.0.1:4001"), start)
	if got := passed(handshake, to, start); !slices.Equal(got, []time.Duration{0, 1, 1400, 1401, 3000, 6200}) {
		t.Errorf("to a slow address: %v", got)
	}
	for _, got := range [][]time.Duration{passed(data, to, start), passed(nil, to, start), passed(handshake[:64], to, start), passed(handshake, other, start), passed(handshake, to, start.Add(slowFor+time.Second))} {
		if !slices.Equal(got, all) {
			t.Errorf("others, and when it is over: %v", got)
		}
	}
	if x.some.Load() {
		t.Error("what is over is kept")
	}
	x.slowDown(netip.MustParseAddrPort("11.0.0.1:4001"), start)
	if x.slowDown(netip.MustParseAddrPort("11.0.0.2:4001"), start.Add(slowFor+time.Second)); len(x.slow) != 1 {
		t.Errorf("%d slow addresses are kept, one of them is over", len(x.slow))
	}
	for i := range 2 * maxSlow {
		x.slowDown(netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, 1, byte(i >> 8), byte(i)}), 4001), start)
	}
	if len(x.slow) > maxSlow {
		t.Errorf("%d slow addresses are kept", len(x.slow))
	}
}

// A thinned connection stays usable.
func TestThinnedConnection(t *testing.T) {
	b := start(t, 2, func(_ *testNode, c *Config) { c.Listen = c.Listen[:1] })
	a := start(t, 1, nil)
	link(t, a, b)
	at, ok := udpAddr(a.peers.best(b.Peer()))
	if !ok {
		t.Fatal("it has no UDP address")
	}
	a.thinner.thin(at, true)
	if _, err := a.Ping(t.Context(), b.Peer()); err != nil {
		t.Error(err)
	}
	a.thinner.mu.Lock()
	defer a.thinner.mu.Unlock()
	if a.thinner.next[at].IsZero() {
		t.Error("no packet went through the thinned socket")
	}
}
