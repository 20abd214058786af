package transport

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// Bounds of observed addresses.
const (
	maxObservers  = 64
	maxPunchAddrs = 8
)

// An Observation is this node's address as seen by a peer.
type Observation struct {
	By   proto.PeerID
	Addr string // multiaddr
}

// observed holds this node's addresses as seen by others. An observation is valid while
// the connection on which it was made is open, since NAT mappings expire too.
type observed struct {
	mu     sync.Mutex
	byConn map[network.Conn]ma.Multiaddr
}

func newObserved() *observed { return &observed{byConn: make(map[network.Conn]ma.Multiaddr)} }

// add records the observation of the other end of c and reports whether it is new. Only
// an outbound connection shows how a NAT maps this node's address.
func (o *observed) add(c network.Conn, a ma.Multiaddr) bool {
	if c == nil || a == nil || c.Stat().Direction != network.DirOutbound || c.IsClosed() ||
		isCircuit(a) || isCircuit(c.RemoteMultiaddr()) || manet.IsIPLoopback(a) || manet.IsIPUnspecified(a) {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.byConn[c]; !known && len(o.byConn) >= maxObservers {
		return false
	}
	fresh := true
	for _, b := range o.byConn {
		fresh = fresh && !a.Equal(b)
	}
	o.byConn[c] = a
	return fresh
}

// drop removes the observation made on c.
func (o *observed) drop(c network.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byConn, c)
}

// addrs returns the observed addresses, most frequent first.
func (o *observed) addrs() []ma.Multiaddr {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := make(map[string]int)
	byName := make(map[string]ma.Multiaddr)
	for _, a := range o.byConn {
		count[a.String()]++
		byName[a.String()] = a
	}
	var names []string
	for s := range count {
		names = append(names, s)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	var out []ma.Multiaddr
	for _, s := range names[:min(len(names), maxPunchAddrs)] {
		out = append(out, byName[s])
	}
	return out
}

// list returns the observations.
func (o *observed) list() []Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []Observation
	for c, a := range o.byConn {
		if p, err := fromLibp2p(c.RemotePeer()); err == nil {
			out = append(out, Observation{p, a.String()})
		}
	}
	slices.SortFunc(out, func(a, b Observation) int { return cmp.Or(comparePeers(a.By, b.By), cmp.Compare(a.Addr, b.Addr)) })
	return out
}

// A NAT is the apparent kind of NAT in front of this node.
type NAT string

// The kinds of NAT that matter for hole punching.
const (
	NATUnknown   NAT = "unknown"   // too few observations
	NATNone      NAT = "none"      // peers see an address of this machine
	NATCone      NAT = "cone"      // all peers see the same port: hole punching works
	NATSymmetric NAT = "symmetric" // each peer sees another port: relays are needed
)

// guessNAT infers the NAT from the UDP addresses that different peers see, or from the
// TCP addresses if there are none. own are the addresses of this machine.
func guessNAT(seen []Observation, own []netip.Addr) NAT {
	for _, network := range []int{ma.P_UDP, ma.P_TCP} {
		ports := make(map[string]bool)
		observers := make(map[proto.PeerID]bool)
		for _, s := range seen {
			ip, port, ok := socketOf(s.Addr, network)
			if !ok {
				continue
			}
			if slices.Contains(own, ip) {
				return NATNone
			}
			ports[port] = true
			observers[s.By] = true
		}
		switch {
		case len(observers) < 2:
		case len(ports) == 1:
			return NATCone
		default:
			return NATSymmetric
		}
	}
	return NATUnknown
}

// socketOf returns the address and port of s, if it uses this protocol.
func socketOf(s string, network int) (ip netip.Addr, port string, ok bool) {
	a, err := ma.NewMultiaddr(s)
	if err != nil {
		return ip, "", false
	}
	if port, err = a.ValueForProtocol(network); err != nil {
		return ip, "", false
	}
	std, err := manet.ToIP(a)
	if err != nil {
		return ip, "", false
	}
	ip, ok = netip.AddrFromSlice(std)
	return ip.Unmap(), port, ok
}

// nat returns the apparent kind of NAT in front of this node.
func (pu *puncher) nat() NAT {
	var own []netip.Addr
	if addrs, err := pu.host.Network().InterfaceListenAddresses(); err == nil {
		for _, a := range addrs {
			if std, err := manet.ToIP(a); err == nil {
				ip, _ := netip.AddrFromSlice(std)
				own = append(own, ip.Unmap())
			}
		}
	}
	return guessNAT(pu.seen.list(), own)
}
