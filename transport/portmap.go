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

// routerRetry is how often a router that did not answer is searched again.
const routerRetry = 5 * time.Minute

// A portMap requests port mappings from the router, by NAT-PMP and UPnP. libp2p's own NAT
// manager also supports NAT-PMP but never finds the router: it asks its library for the
// route to 0.0.0.0, which the library rejects. And it searches for the router only once,
// so in another network it is recreated.
type portMap struct {
	newManager func() basichost.NATManager
	listen     func() []ma.Multiaddr

	mu         sync.Mutex
	manager    basichost.NATManager
	lastSearch time.Duration // monotonic, when manager was created; 0: at the start
	closed     bool
}

// portMapper returns the host's NAT manager constructor. Mapped ports become addresses of
// this node.
func portMapper(keep *atomic.Pointer[portMap], c clock.Clock) func(network.Network) basichost.NATManager {
	return func(n network.Network) basichost.NATManager {
		m := newPortMap(func() basichost.NATManager {
			return routers{newPMP(n.ListenAddresses, gateway, pmpEvery, c), basichost.NewNATManager(n)}
		}, n.ListenAddresses)
		keep.Store(m)
		return m
	}
}

// routers combines two ways to map ports; the first answer is used.
type routers [2]basichost.NATManager

// GetMapping returns the external address mapped to a, nil if there is none.
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

// Close releases the ports.
func (e routers) Close() error { return errors.Join(e[0].Close(), e[1].Close()) }

func newPortMap(part func() basichost.NATManager, listen func() []ma.Multiaddr) *portMap {
	return &portMap{newManager: part, listen: listen, manager: part()}
}

// GetMapping returns the external address mapped to a, nil if there is none.
func (m *portMap) GetMapping(a ma.Multiaddr) ma.Multiaddr { return m.current().GetMapping(a) }

// HasDiscoveredNAT reports whether a router answered.
func (m *portMap) HasDiscoveredNAT() bool { return m.current().HasDiscoveredNAT() }

// Close releases the ports.
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

// due reports whether to search for the router at now, and records it: the network
// changed, or no router has answered for a while.
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

// restart searches for the router again. Closing the old manager may take some seconds.
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

// mapped returns the addresses mapped by the router.
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

// findRouter searches for the router again when due.
func (t *Transport) findRouter(moved bool) {
	if m := t.reach.router.Load(); m != nil && m.due(t.cfg.Clock.Mono(), moved) {
		t.group.start(func(context.Context) { m.restart() })
	}
}
