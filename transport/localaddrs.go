package transport

import (
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/clock"
)

// staleFor is how long libp2p may report an address that this machine has no more: it reads
// the addresses of the interfaces once a minute.
const staleFor = 2 * time.Minute

// localAddrs knows the addresses of this machine's interfaces as of the last second, and
// corrects those that libp2p reports.
type localAddrs struct {
	read  func() ([]ma.Multiaddr, error) // addresses of the interfaces; nil: a simulated network
	clock clock.Clock

	mu     sync.Mutex
	listen []ma.Multiaddr // bound; an unspecified one stands for every interface
	now    []ma.Multiaddr // without link-local IPv6; nil: not known
	gone   map[string]time.Duration
}

func newLocalAddrs(cfg Config) *localAddrs {
	l := &localAddrs{clock: cfg.Clock, gone: make(map[string]time.Duration)}
	if cfg.Sockets == nil {
		l.read = manet.InterfaceMultiaddrs
	}
	return l
}

// refresh reads the addresses of the interfaces and reports whether they have changed.
func (l *localAddrs) refresh() bool {
	if l.read == nil {
		return false
	}
	now, err := l.read()
	if err != nil {
		return false // it is tried again within a second
	}
	now = slices.DeleteFunc(now, manet.IsIP6LinkLocal)
	slices.SortFunc(now, ma.Multiaddr.Compare)
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.now
	l.now = now
	if before == nil || slices.EqualFunc(before, now, ma.Multiaddr.Equal) {
		return false
	}
	for _, a := range before {
		l.gone[ipOf(a)] = l.clock.Mono()
	}
	for _, a := range now {
		delete(l.gone, ipOf(a))
	}
	return true
}

// correct returns addrs without addresses that this machine has lost, and with those that
// it listens at since.
func (l *localAddrs) correct(addrs []ma.Multiaddr) []ma.Multiaddr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Concat(addrs, l.resolved()), l.lost)
}

// listening returns the addresses at which this machine listens now.
func (l *localAddrs) listening() []ma.Multiaddr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(l.resolved(), l.lost)
}

// resolved returns the bound addresses with one for each interface instead of an
// unspecified one. The caller holds mu.
func (l *localAddrs) resolved() []ma.Multiaddr {
	if l.now == nil {
		return nil
	}
	out, err := manet.ResolveUnspecifiedAddresses(l.listen, l.now)
	if err != nil {
		return nil // no interface has an address of the family
	}
	return out
}

// lost reports whether this machine had the address and has it no more. The caller holds
// mu.
func (l *localAddrs) lost(a ma.Multiaddr) bool {
	since, gone := l.gone[ipOf(a)]
	if gone && l.clock.Mono()-since > staleFor {
		delete(l.gone, ipOf(a))
		return false
	}
	return gone && !isCircuit(a)
}

// bound notes the addresses that the host is bound to.
func (l *localAddrs) bound(addrs []ma.Multiaddr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listen = slices.DeleteFunc(addrs, isCircuit)
}

// ipOf returns the IP address that a begins with, or "".
func ipOf(a ma.Multiaddr) string {
	ip, err := manet.ToIP(a)
	if err != nil {
		return ""
	}
	return ip.String()
}

// A lanHost is a host that tells mDNS the current addresses of the interfaces; libp2p's
// would be up to a minute old.
type lanHost struct {
	host.Host
	local *localAddrs
}

func (h lanHost) Network() network.Network { return lanNetwork{h.Host.Network(), h.local} }

type lanNetwork struct {
	network.Network
	local *localAddrs
}

func (n lanNetwork) InterfaceListenAddresses() ([]ma.Multiaddr, error) {
	if addrs := n.local.listening(); addrs != nil {
		return addrs, nil
	}
	return n.Network.InterfaceListenAddresses()
}
