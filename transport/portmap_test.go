package transport

import (
	"testing"
	"time"

	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	ma "github.com/multiformats/go-multiaddr"
)

// A fakeRouter is a NAT manager for tests.
type fakeRouter struct {
	basichost.NATManager
	addr   ma.Multiaddr // nil: no router answers
	closed bool
}

func (r *fakeRouter) GetMapping(ma.Multiaddr) ma.Multiaddr { return r.addr }
func (r *fakeRouter) HasDiscoveredNAT() bool               { return r.addr != nil }
func (r *fakeRouter) Close() error                         { r.closed = true; return nil }

// TestRouterSearchRestarts checks that the router is searched again after a network
// change, or after a while without an answer, and otherwise not.
func TestRouterSearchRestarts(t *testing.T) {
	var made []*fakeRouter
	var next ma.Multiaddr
	m := newPortMap(func() basichost.NATManager {
		made = append(made, &fakeRouter{addr: next})
		return made[len(made)-1]
	}, func() []ma.Multiaddr { return []ma.Multiaddr{ma.StringCast("/ip4/0.0.0.0/tcp/4001")} })
	r := new(reach)
	r.router.Store(m)
	step := func(name string, at int64, moved, want bool) {
		t.Helper()
		if due := m.due(time.Duration(at)*routerRetry/10, moved); due != want {
			t.Errorf("%s: the router is searched: %v", name, due)
		} else if due {
			m.restart()
		}
	}
	step("at the start", 1, false, false)
	step("soon", 5, false, false)
	next = ma.StringCast("/ip4/192.0.2.1/tcp/40000")
	step("nobody answered for long", 11, false, true)
	if got := r.mapped(); len(got) != 1 || !got[0].Equal(next) {
		t.Errorf("mapped: %v", got)
	}
	step("it has answered", 40, false, false)
	next = ma.StringCast("/ip4/192.0.2.2/tcp/40000")
	step("another network", 41, true, true)
	if got := r.mapped(); len(got) != 1 || !got[0].Equal(next) {
		t.Errorf("mapped in another network: %v", got)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	m.restart()
	if len(made) != 3 {
		t.Fatalf("searched %d times", len(made))
	}
	for i, p := range made {
		if !p.closed {
			t.Errorf("refresh %d has not returned", i+1)
		}
	}
}
