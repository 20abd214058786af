package transport

import (
	"slices"
	"testing"

	ma "github.com/multiformats/go-multiaddr"
)

// TestLikelyTCP checks which TCP address a node gives for punching although nobody has seen it.
func TestLikelyTCP(t *testing.T) {
	both := []string{"/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/0.0.0.0/tcp/4001", "/ip6/::/udp/4001/quic-v1", "/ip6/::/tcp/4002"}
	tests := []struct {
		name               string
		seen, listen, want []string
	}{
		{"the NAT keeps the port", []string{"/ip4/11.0.0.1/udp/4001/quic-v1"}, both, []string{"/ip4/11.0.0.1/tcp/4001"}},
		{"seen twice", []string{"/ip4/11.0.0.1/udp/4001/quic-v1", "/ip4/11.0.0.1/udp/4001/quic-v1"}, both, []string{"/ip4/11.0.0.1/tcp/4001"}},
		{"another port", []string{"/ip4/11.0.0.1/udp/20000/quic-v1"}, both, nil},
		{"IPv6 with another TCP port", []string{"/ip6/2001:db8::1/udp/4001/quic-v1"}, both, []string{"/ip6/2001:db8::1/tcp/4002"}},
		{"its TCP port was seen", []string{"/ip4/11.0.0.1/udp/4001/quic-v1", "/ip4/11.0.0.1/tcp/20000"}, both, nil},
		{"one on the LAN was seen", []string{"/ip4/11.0.0.1/udp/4001/quic-v1", "/ip4/10.0.0.1/tcp/4001"}, both, []string{"/ip4/11.0.0.1/tcp/4001"}},
		{"no TCP", []string{"/ip4/11.0.0.1/udp/4001/quic-v1"}, both[:1], nil},
		{"no UDP", []string{"/ip4/11.0.0.1/tcp/4001"}, both, nil},
		{"another family", []string{"/ip6/2001:db8::1/udp/4001/quic-v1"}, both[:2], nil},
		{"nothing was seen", nil, both, nil},
	}
	parse := func(all []string) (out []ma.Multiaddr) {
		for _, s := range all {
			out = append(out, ma.StringCast(s))
		}
		return out
	}
	for _, tt := range tests {
		if got := addrStrings(likelyTCP(parse(tt.seen), parse(tt.listen))); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
