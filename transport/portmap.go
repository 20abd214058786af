package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	basichost "github.com/libp2p/go-libp2p/p2p/host/basic"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/clock"
)

// routerRetry is how often a router is looked for that did not answer.
const routerRetry = 5 * time.Minute

// A portMap asks the router for ports, by NAT-PMP and by UPnP, and keeps what it got.
// libp2p's part would ask by NAT-PMP too, but never finds the router: it asks its
// library for the way to 0.0.0.0, which that one refuses. And it looks for the router
// once, when it begins, and keeps to that one: in another network it is made anew.
type portMap struct {
	newManager func() basichost.NATManager
	listen     func() []ma.Multiaddr

	mu         sync.Mutex
	manager    basichost.NATManager
	lastSearch time.Duration // monotonic, since when part is there; 0: since the start
	closed     bool
}

// portMapper returns what makes this part of the host. What the router gives becomes
// an address of this node by itself.
func portMapper(keep *atomic.Pointer[portMap], c clock.Clock) func(network.Network) basichost.NATManager {
	return func(n network.Network) basichost.NATManager {
		m := newPortMap(func() basichost.NATManager {
			return routers{newPMP(n.ListenAddresses, gateway, pmpEvery, c), basichost.NewNATManager(n)}
		}, n.ListenAddresses)
		keep.Store(m)
		return m
	}
}

// An routers is a router that is asked in two ways; the first answer counts.
type routers [2]basichost.NATManager

// GetMapping returns the address that leads to a, nil if there is none.
func (e routers) GetMapping(a ma.Multiaddr) ma.Multiaddr {
	if b := e[0].GetMapping(a); b != nil {
		return b
	}
	return e[1].GetMapping(a)
}

// HasDiscoveredNAT reports whether a router answered.
func (e routers) HasDiscoveredNAT() bool {
	return e[0].HasDiscoveredNAT() || e[1].HasDiscoveredNAT()
}

// Close gives the ports back.
func (e routers) Close() error { return errors.Join(e[0].Close(), e[1].Close()) }

func newPortMap(part func() basichost.NATManager, listen func() []ma.Multiaddr) *portMap {
	return &portMap{newManager: part, listen: listen, manager: part()}
}

// GetMapping returns the address that leads to a, nil if there is none.
func (m *portMap) GetMapping(a ma.Multiaddr) ma.Multiaddr { return m.current().GetMapping(a) }

// HasDiscoveredNAT reports whether a router answered.
func (m *portMap) HasDiscoveredNAT() bool { return m.current().HasDiscoveredNAT() }

// Close gives the ports back.
func (m *portMap) Close() error {
	m.mu.Lock()
	m.closed = true
	part := m.manager
	m.mu.Unlock()
	return part.Close()
}

func (m *portMap) current() basichost.NATManager {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.manager
}

// due reports whether the router is to be looked for at now, and notes it: the
// network is another one, or none has answered for a while.
func (m *portMap) due(now time.Duration, moved bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lastSearch == 0 {
		m.lastSearch = now
	}
	if !moved && (m.manager.HasDiscoveredNAT() || now-m.lastSearch < routerRetry) {
		return false
	}
	m.lastSearch = now
	return true
}

// restart looks for the router anew. The end of what was there may take some seconds.
func (m *portMap) restart() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	old := m.manager
	m.manager = m.newManager()
	m.mu.Unlock()
	old.Close()
}

// mapped returns the addresses that the router gave.
func (r *reach) mapped() (out []ma.Multiaddr) {
	m := r.router.Load()
	if m == nil {
		return nil
	}
	for _, a := range m.listen() {
		if b := m.GetMapping(a); b != nil && !slices.ContainsFunc(out, b.Equal) {
			out = append(out, b)
		}
	}
	return out
}

// findRouter looks for the router anew when it is time to.
func (t *Transport) findRouter(moved bool) {
	if m := t.reach.router.Load(); m != nil && m.due(t.cfg.Clock.Mono(), moved) {
		t.group.start(func(context.Context) { m.restart() })
	}
}
