package transport

import (
	"cmp"
	"net"
	"net/netip"
	"time"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// A node that is not a known member occupies a slot until its hello, and slots are few.
// They are shared by address, since a new key costs nothing: one address cannot take all
// slots, only those that were its own.

// maxSlotsPerOrigin bounds the slots of one address; maxUnverified bounds all slots.
const maxSlotsPerOrigin = 4

// slotTime is how long a stranger that has sent a message keeps its slot when it is needed:
// enough for a hello or a refusal.
const slotTime = 2 * time.Second

// originOf identifies the origin of a connection: an IPv4 address, an IPv6 /56, or the
// relay of a circuit.
func originOf(remote ma.Multiaddr) string {
	if isCircuit(remote) {
		if r, ok := relayOf(remote); ok {
			return "relay " + r.String()
		}
		return "relay"
	}
	ip, err := manet.ToIP(remote)
	if err != nil {
		return "unknown"
	}
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return "unknown"
	}
	if a = a.Unmap(); a.Is4() {
		return a.String()
	}
	p, err := a.WithZone("").Prefix(56)
	if err != nil {
		return "unknown"
	}
	return p.String()
}

// A strangerSlot is a slot occupied by a connection.
type strangerSlot struct {
	conn   *conn
	origin string
}

// admitStranger finds a slot for c, the connection of a stranger. If none is free, the
// oldest silent connection of c's own address is evicted, or of the address with the most
// slots, or the oldest one that has had its time: the caller, which holds mu, closes that
// victim. ok is false if none may be closed.
func (pt *peerTable) admitStranger(c *conn) (victim *conn, ok bool) {
	own := originOf(c.raw.RemoteMultiaddr())
	var all []strangerSlot
	count := map[string]int{}
	for _, x := range pt.conns {
		if n := pt.byID[x.peer]; x.inbound && !x.verified() && !x.guarded.evicted && (n == nil || len(n.conns) == 0) {
			o := originOf(x.raw.RemoteMultiaddr())
			all = append(all, strangerSlot{x, o})
			count[o]++
		}
	}
	now := pt.clock.Mono()
	switch {
	case count[own] >= maxSlotsPerOrigin:
		victim = oldestStranger(all, now, func(o string) bool { return o == own })
	case len(all) < maxUnverified:
		return nil, true
	default:
		most := 0
		for _, k := range count {
			most = max(most, k)
		}
		if most > count[own] {
			victim = oldestStranger(all, now, func(o string) bool { return count[o] == most })
		}
	}
	if victim == nil {
		return nil, false
	}
	victim.guarded.evicted = true
	return victim, true
}

// oldestStranger returns the oldest connection of these addresses on which no message was
// received, or else the oldest one that has had its time and shown no valid ticket.
func oldestStranger(all []strangerSlot, now time.Duration, of func(origin string) bool) *conn {
	var silent, late *conn
	for _, x := range all {
		c := x.conn
		switch {
		case !of(x.origin) || c.greeting.hasTicket.Load():
		case !c.greeting.gotMessage.Load():
			silent = older(silent, c)
		case now-c.since >= slotTime:
			late = older(late, c)
		}
	}
	return cmp.Or(silent, late)
}

func older(a, b *conn) *conn {
	if a == nil || b.since < a.since {
		return b
	}
	return a
}

// Origin returns the origin and the address of a connection with p, which need not have
// completed the hello; empty: there is none. On a network of this machine each address is
// an origin of its own: there a whole network has the same IPv6 prefix.
func (t *Transport) Origin(p proto.PeerID) (origin, addr string) {
	c := t.peers.nextConn(p, nil)
	if c == nil {
		return "", ""
	}
	return neighborOf(c.raw.RemoteMultiaddr(), ownNetworks()), c.raw.RemoteMultiaddr().String()
}

// neighborOf is originOf with networks of this machine told apart by address.
func neighborOf(remote ma.Multiaddr, own []*net.IPNet) string {
	if ip, err := manet.ToIP(remote); err == nil && onLocalNetwork(remote, own) {
		return ip.String()
	}
	return originOf(remote)
}
