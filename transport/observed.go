package transport

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

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
	mu      sync.Mutex
	byConn  map[network.Conn]ma.Multiaddr
	changed time.Time // when the network of this machine changed last; zero: never
	renewed time.Time // when a connection was last closed for a new observation
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
	if !o.isOld(c) {
		maps.DeleteFunc(o.byConn, func(d network.Conn, b ma.Multiaddr) bool {
			return o.isOld(d) && manet.IsPublicAddr(b) == manet.IsPublicAddr(a)
		})
	}
	fresh := true
	for _, b := range o.byConn {
		fresh = fresh && !a.Equal(b)
	}
	o.byConn[c] = a
	return fresh
}

// isOld reports whether c was opened before the last change of the network. The caller holds mu.
func (o *observed) isOld(c network.Conn) bool { return c.Stat().Opened.Before(o.changed) }

// networkChanged records that the network of this machine has changed.
func (o *observed) networkChanged() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed = time.Now()
}

// renewEvery is the time between two connections that are closed for a new observation.
const renewEvery = 10 * time.Second

// outdated returns the connections with an observation from before the last change of the
// network, if one of them may be closed now for a new one.
func (o *observed) outdated() (old []network.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.renewed) < renewEvery {
		return nil
	}
	for c := range o.byConn {
		if o.isOld(c) {
			old = append(old, c)
		}
	}
	if len(old) > 0 {
		o.renewed = time.Now()
	}
	return old
}

// observeAgain closes a connection to a relay that is older than the last change of the network,
// if there is no newer one: QUIC carries a connection along to another address, but only a new
// one shows how others see this node now. If there is another relay than the one that p is
// reached through, it is a connection to that.
func (pu *puncher) observeAgain(p proto.PeerID) {
	old := pu.seen.outdated()
	pu.peers.mu.Lock()
	var via proto.PeerID
	if c := pu.peers.get(p).best(); c != nil {
		via, _ = relayOf(c.raw.RemoteMultiaddr())
	}
	var again *conn
	for _, raw := range old {
		if c := pu.peers.conns[raw]; c != nil && c.reservedAt.Load() > 0 && (again == nil || again.peer == via) {
			again = c
		}
	}
	pu.peers.mu.Unlock()
	if again != nil {
		pu.log.Info("connecting to a relay again, to learn this node's new address", "relay", again.peer)
		again.raw.Close()
	}
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
// TCP addresses if there are none. own are the addresses of this machine. That neighbors see one of
// these which is private, or of IPv6, tells nothing about a NAT that others see.
func guessNAT(seen []Observation, own []netip.Addr) NAT {
	var near, far bool // what peers see: an address of this machine, another one
	for _, network := range []int{ma.P_UDP, ma.P_TCP} {
		ports := make(map[string]bool)
		observers := make(map[proto.PeerID]bool)
		for _, s := range seen {
			ip, port, ok := socketOf(s.Addr, network)
			if !ok {
				continue
			}
			switch here := slices.Contains(own, ip); {
			case here && isPublicIPv4(ip):
				return NATNone
			case here:
				near = true
			default:
				far = true
				ports[port] = true
				observers[s.By] = true
			}
		}
		switch {
		case len(observers) < 2:
		case len(ports) == 1:
			return NATCone
		default:
			return NATSymmetric
		}
	}
	if near && !far {
		return NATNone
	}
	return NATUnknown
}

// isPublicIPv4 reports whether a can be reached from everywhere: no NAT has it inside.
func isPublicIPv4(a netip.Addr) bool {
	std, err := manet.FromIP(a.AsSlice())
	return err == nil && a.Is4() && manet.IsPublicAddr(std)
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
func (pu *puncher) nat() NAT { return guessNAT(pu.seen.list(), pu.own()) }

// own returns the addresses of this machine at which this node listens.
func (pu *puncher) own() (own []netip.Addr) {
	addrs, err := pu.host.Network().InterfaceListenAddresses()
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if std, err := manet.ToIP(a); err == nil {
			ip, _ := netip.AddrFromSlice(std)
			own = append(own, ip.Unmap())
		}
	}
	return own
}
