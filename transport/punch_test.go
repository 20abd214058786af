package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"
)

// A roleHost records in which role it would dial; no dial is answered.
type roleHost struct {
	host.Host
	mu    sync.Mutex
	roles []string
}

func (h *roleHost) Connect(ctx context.Context, pi peer.AddrInfo) error {
	role := "server"
	if _, client, _ := network.GetSimultaneousConnect(ctx); client {
		role = "client"
	}
	h.mu.Lock()
	h.roles = append(h.roles, role)
	h.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (*roleHost) Addrs() []ma.Multiaddr {
	return []ma.Multiaddr{ma.StringCast("/ip4/192.168.1.2/tcp/4001")}
}

func (*roleHost) Network() network.Network { return noNetwork{} }

// A noNetwork has no addresses.
type noNetwork struct{ network.Network }

func (noNetwork) InterfaceListenAddresses() ([]ma.Multiaddr, error) {
	return nil, errors.New("there are none")
}

func (noNetwork) ListenAddresses() []ma.Multiaddr { return nil }

// TestPunchKeepsRoleOverTCP checks that one side of a punch stays the server while TCP is
// dialed. Over TCP both sides dial in both roles, and as soon as both are clients the handshake
// of what they open fails; what is left of it stands in the way of the next attempts.
func TestPunchKeepsRoleOverTCP(t *testing.T) {
	tcp, quic := ma.StringCast("/ip4/11.0.0.102/tcp/4001"), ma.StringCast("/ip4/11.0.0.102/udp/4001/quic-v1")
	for _, tt := range []struct {
		name  string
		addrs []ma.Multiaddr
		quic  bool // this node has it
		dials bool
		want  []string
	}{
		{"TCP alone", []ma.Multiaddr{tcp}, false, false, []string{"server"}},
		{"QUIC on the other side alone", []ma.Multiaddr{quic, tcp}, false, false, []string{"server"}},
		{"QUIC, then TCP too", []ma.Multiaddr{quic, tcp}, true, false, []string{"server", "client", "server"}},
		{"the side that is asked", []ma.Multiaddr{tcp}, false, true, []string{"client"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &roleHost{}
				pu := &puncher{host: h, seen: newObserved(), peers: &peerTable{}, dialer: &dialer{}}
				if tt.quic {
					pu.cfg.Announce = []string{"/ip4/11.0.0.101/udp/4001/quic-v1"}
				}
				ctx, cancel := context.WithTimeout(network.WithSimultaneousConnect(t.Context(), tt.dials, "test"), punchDial)
				defer cancel()
				began := time.Now()
				err := (&punchHost{guardedHost{h, nil}, pu}).Connect(ctx, peer.AddrInfo{ID: toLibp2p(newTestKeys(2).Peer()), Addrs: tt.addrs})
				if err == nil || time.Since(began) != punchDial {
					t.Errorf("it ended after %v: %v", time.Since(began), err)
				}
				if !slices.Equal(h.roles, tt.want) {
					t.Errorf("dialed as %v, want %v", h.roles, tt.want)
				}
			})
		})
	}
}
