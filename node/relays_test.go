package node

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/route"
)

// A place at a relay behind the same NAT leads nobody in.
func TestPublicRelaysComeFirst(t *testing.T) {
	a, b, c := proto.PeerID{1}, proto.PeerID{2}, proto.PeerID{3}
	for _, tt := range []struct {
		name string
		all  []relayCandidate
		want []proto.PeerID
	}{
		{"nobody says that it can be dialled", []relayCandidate{{peer: a}, {peer: b}}, []proto.PeerID{a, b}},
		{"one does", []relayCandidate{{peer: a}, {peer: b, open: true}, {peer: c}}, []proto.PeerID{b}},
		{"it is gone", []relayCandidate{{peer: a}, {peer: b, open: true, gone: true}}, []proto.PeerID{a}},
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
		t.Error("a node with an announced address does not say that it can be dialled")
	}
	if a.ownRecord().Open != a.publiclyReachable() {
		t.Error("what a node says of itself is not what it believes")
	}
}

// Where one is open, nobody asks the others for a place: who relays for nobody does not
// say so.
func TestNodeThatDoesNotRelayIsNotPublic(t *testing.T) {
	_, b := pair(t, func(_ string, c *Config) {
		c.Net.Announce, c.Net.NoRelay = []string{"/ip4/192.0.2.7/tcp/4001"}, true
	})
	if b.ownRecord().Open {
		t.Error("a node that relays for nobody draws those who look for a relay")
	}
}

// What a node tells of its ways to relays is what it measured, in round numbers.
func TestHopsSurviveEncoding(t *testing.T) {
	r := proto.PeerID{7}
	for _, tt := range []struct {
		name      string
		is, heard route.Path
	}{
		{"all is known", route.Path{RTT: 20 * time.Millisecond, Loss: 0.015, Rate: 1 << 20}, route.Path{RTT: 20 * time.Millisecond, Loss: 0.015, Rate: 1 << 20}},
		{"nothing is", route.Path{}, route.Path{}},
		{"a neighbour on the LAN", route.Path{RTT: 300 * time.Microsecond}, route.Path{RTT: time.Millisecond}},
		{"what cannot be", route.Path{RTT: 1 << 62, Loss: 7, Rate: 1e300}, route.Path{RTT: math.MaxInt32 * time.Millisecond, Loss: 1, Rate: math.MaxInt32 * 1024}},
	} {
		if got := hopsFromProto(hopsToProto([]transport.Hop{{Relay: r, Path: tt.is}})); len(got) != 1 || got[0] != (transport.Hop{Relay: r, Path: tt.heard}) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.heard)
		}
	}
	if got := hopsFromProto([]*proto.Hop{{Relay: []byte{1}}}); len(got) != 0 {
		t.Errorf("half an id: %+v", got)
	}
}
