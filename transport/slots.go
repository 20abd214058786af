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

// Whoever is not known as a member has a place until its hello, and there are few. They
// go by address, since a new key costs nothing: one address cannot take the places of
// all others, only those that were its own.

// maxSlotsPerOrigin bounds the places of one address; maxUnverified those of all.
const maxSlotsPerOrigin = 4

// originOf names where a connection comes from: an IPv4 address, a /56 of IPv6, the
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

// A strangerSlot is a place that a connection holds.
type strangerSlot struct {
	conn   *conn
	origin string
}

// admitStranger finds a place for c, the connection of a stranger. Where there is none the
// oldest silent connection of c's own address gives its place, or that of the address
// that has the most. False: all of them are talking. The caller holds mu.
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

// oldestSilent returns the oldest connection of these addresses that has said nothing.
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

// Origin returns where the connection with p, of whom a hello may not have been heard,
// comes from, and its address; empty: there is none.
func (t *Transport) Origin(p proto.PeerID) (origin, addr string) {
	if c := t.nextConn(p, nil); c != nil {
		return originOf(c.raw.RemoteMultiaddr()), c.raw.RemoteMultiaddr().String()
	}
	return "", ""
}
