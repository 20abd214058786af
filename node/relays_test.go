package node

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/route"
	"github.com/balefire/balefire/transport/transporttest"
)

// A reservation at a relay behind the same NAT is useless.
func TestPublicRelaysComeFirst(t *testing.T) {
	a, b, c := proto.PeerID{1}, proto.PeerID{2}, proto.PeerID{3}
	for _, tt := range []struct {
		name string
		all  []relayCandidate
		want []proto.PeerID
	}{
		{"no member is public", []relayCandidate{{peer: a}, {peer: b}}, []proto.PeerID{a, b}},
		{"one member is public", []relayCandidate{{peer: a}, {peer: b, open: true, direct: true}, {peer: c}}, []proto.PeerID{b}},
		{"the public one is not connected, or through a relay", []relayCandidate{{peer: a}, {peer: b, open: true}, {peer: c}}, []proto.PeerID{a, b, c}},
		{"the public one is gone", []relayCandidate{{peer: a}, {peer: b, open: true, direct: true, gone: true}}, []proto.PeerID{a}},
		{"the public one refuses", []relayCandidate{{peer: a}, {peer: b, open: true, direct: true, refuses: true}}, []proto.PeerID{a, b}},
		{"one of two public ones refuses", []relayCandidate{{peer: a}, {peer: b, open: true, direct: true, refuses: true}, {peer: c, open: true, direct: true}}, []proto.PeerID{b, c}},
		{"nobody", nil, nil},
	} {
		if got := eligibleRelays(tt.all); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAnnouncedAddressMakesANodePublic(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) {
		if name == "b" {
			c.Net.Announce = []string{"/ip4/192.0.2.7/tcp/4001"}
		}
	})
	if !b.ownRecord().Open {
		t.Error("a node with an announced address is not open")
	}
	if a.ownRecord().Open != a.publiclyReachable() {
		t.Error("a node announces something else than it believes")
	}
}

// A relay announces from its start on that it can be dialed: others wait for that after its restart.
func TestRelayIsOpenFromItsStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 1, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1})
		defer w.close()
		if n := w.nodes[0].node; !n.ownRecord().Open {
			t.Errorf("not open: %+v", n.net.Reach())
		}
	})
}

// If one member is open, nobody asks the others for a reservation, so a node that does
// not relay must not announce itself as open.
func TestNodeThatDoesNotRelayIsNotPublic(t *testing.T) {
	_, b := pair(t, func(_ string, c *Config) {
		c.Net.Announce, c.Net.Relay = []string{"/ip4/192.0.2.7/tcp/4001"}, false
	})
	if b.ownRecord().Open {
		t.Error("a node that does not relay attracts members that look for a relay")
	}
}

// A node announces its measured relay paths, in rounded numbers.
func TestHopsSurviveEncoding(t *testing.T) {
	r := proto.PeerID{7}
	for _, tt := range []struct {
		name        string
		is, decoded route.Path
	}{
		{"everything known", route.Path{RTT: 20 * time.Millisecond, Loss: 0.015, Rate: 1 << 20}, route.Path{RTT: 20 * time.Millisecond, Loss: 0.015, Rate: 1 << 20}},
		{"nothing known", route.Path{}, route.Path{}},
		{"a peer on the LAN", route.Path{RTT: 300 * time.Microsecond}, route.Path{RTT: time.Millisecond}},
		{"impossible values", route.Path{RTT: 1 << 62, Loss: 7, Rate: 1e300}, route.Path{RTT: math.MaxInt32 * time.Millisecond, Loss: 1, Rate: math.MaxInt32 * 1024}},
	} {
		if got := hopsFromProto(hopsToProto([]transport.Hop{{Relay: r, Path: tt.is}})); len(got) != 1 || got[0] != (transport.Hop{Relay: r, Path: tt.decoded}) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.decoded)
		}
	}
	if got := hopsFromProto([]*proto.Hop{{Relay: []byte{1}}}); len(got) != 0 {
		t.Errorf("a truncated id: %+v", got)
	}
}

// The report about the network lists no address of the loopback interface as announced:
// peers are not told of it.
func TestNetCheckOmitsLoopback(t *testing.T) {
	a := startAlone(t)
	if c := a.Views.NetCheck(); len(c.Listen) == 0 || len(c.Announced) > 0 {
		t.Errorf("it listens on %v and announces %v", c.Listen, c.Announced)
	}
}
