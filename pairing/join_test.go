package pairing

import (
	"slices"
	"testing"
)

// The inviter is told where the node will listen, not the ports of the join.
func TestJoinReportsListenPorts(t *testing.T) {
	at := []string{"/ip4/192.0.2.1/tcp/40000", "/ip4/192.0.2.1/udp/50000/quic-v1"}
	for _, tt := range []struct{ listen, want []string }{
		{nil, []string{"/ip4/192.0.2.1/tcp/4001", "/ip4/192.0.2.1/udp/4001/quic-v1"}},
		{[]string{"/ip4/0.0.0.0/tcp/7000"}, []string{"/ip4/192.0.2.1/tcp/7000"}},
		{[]string{"/ip4/0.0.0.0/tcp/0", "/ip4/0.0.0.0/udp/0/quic-v1"}, nil},
	} {
		if got := atPorts(at, tt.listen); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.listen, got, tt.want)
		}
	}
}
