package transport

import (
	"sync/atomic"

	ma "github.com/multiformats/go-multiaddr"
)

// A reach is what makes this node reachable besides its own sockets: reservations, a port
// mapping and what AutoNAT has found.
type reach struct {
	reserver *reserver
	router   atomic.Pointer[portMap]       // nil: no port mapping
	autonat  atomic.Pointer[addrConfirmer] // nil: not available
	served   *relayCounters
}

// addrs returns the circuit addresses of this node, and addresses that AutoNAT would make
// libp2p hide: AutoNAT is only informative here. libp2p calls it at any time.
func (r *reach) addrs() (out []ma.Multiaddr) {
	if h := r.autonat.Load(); h != nil {
		_, out, _ = (*h).ConfirmedAddrs()
	}
	if p := r.reserver.circuits.Load(); p != nil {
		out = append(out, *p...)
	}
	return out
}

// An addrConfirmer is a host whose addresses are checked by others.
type addrConfirmer interface {
	ConfirmedAddrs() (reachable, unreachable, unknown []ma.Multiaddr)
}

// BroadcastHello sends the hello again to all peers: the certificate, the key record or
// the addresses have changed.
func (t *Transport) BroadcastHello() { t.greeter.sendHellos(func(*conn) bool { return true }) }

// tellRelays sends the hello again because the relays have changed. Gossip tells them to all:
// only who is connected through a relay must know at once. Hellos to all, because of what a
// narrow link loses, would be the next that it loses.
func (t *Transport) tellRelays() {
	gossip := t.disc.topic.Load() != nil
	t.greeter.sendHellos(func(c *conn) bool { return !gossip || !c.direct() })
}
