package transport

import (
	"context"
	"net/netip"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// A node that is not a known member occupies a slot until its hello, and slots are few.
// They are shared by address, since a new key costs nothing: one address cannot take all
// slots, only those that were its own.

// maxSlotsPerOrigin bounds the slots of one address; maxUnverified bounds all slots.
const maxSlotsPerOrigin = 4

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
// oldest silent connection of c's own address is closed, or of the address with the most
// slots. It returns false if all of them have sent a message. The caller holds mu.
func (t *Transport) admitStranger(c *conn) bool {
	own := originOf(c.raw.RemoteMultiaddr())
	var all []strangerSlot
	count := map[string]int{}
	for _, x := range t.conns {
		if n := t.peers[x.peer]; x.inbound && !x.verified() && !x.evicted && (n == nil || len(n.conns) == 0) {
			o := originOf(x.raw.RemoteMultiaddr())
			all = append(all, strangerSlot{x, o})
			count[o]++
		}
	}
	var victim *conn
	switch {
	case count[own] >= maxSlotsPerOrigin:
		victim = oldestSilent(all, func(o string) bool { return o == own })
	case len(all) < maxUnverified:
		return true
	default:
		most := 0
		for _, k := range count {
			most = max(most, k)
		}
		if most > count[own] {
			victim = oldestSilent(all, func(o string) bool { return count[o] == most })
		}
	}
	if victim == nil {
		return false
	}
	victim.evicted = true
	t.group.start(func(context.Context) { victim.raw.CloseWithError(network.ConnRateLimited) })
	return true
}

// oldestSilent returns the oldest connection of these addresses on which no message was
// received.
func oldestSilent(all []strangerSlot, of func(origin string) bool) (oldest *conn) {
	for _, x := range all {
		if of(x.origin) && !x.conn.gotMessage.Load() && (oldest == nil || x.conn.since < oldest.since) {
			oldest = x.conn
		}
	}
	return oldest
}

// allowAddress spends a join token of the address of c.
func (t *Transport) allowAddress(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byOrigin.Allow(originOf(c.raw.RemoteMultiaddr()), admit.Join, t.cfg.Clock.Mono())
}

// Origin returns the origin and the address of a connection with p, which need not have
// completed the hello; empty: there is none.
func (t *Transport) Origin(p proto.PeerID) (origin, addr string) {
	if c := t.nextConn(p, nil); c != nil {
		return originOf(c.raw.RemoteMultiaddr()), c.raw.RemoteMultiaddr().String()
	}
	return "", ""
}
