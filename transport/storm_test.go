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
			if !x.drops(to, now.Add(time.Duration(i)*stormSpacing/20)) {
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

// A thinned connection stays usable.
func TestThinnedConnection(t *testing.T) {
	b := start(t, 2, func(_ *testNode, c *Config) { c.Listen = c.Listen[:1] })
	a := start(t, 1, nil)
	link(t, a, b)
	at, ok := udpAddr(a.best(b.Peer()))
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
