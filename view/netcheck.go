package view

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// NetCheck reports what this node knows about its own network.
func (v *Views) NetCheck(ctx context.Context) wire.NetCheck {
	r, d := v.Net.Reach(), v.Net.Discovery()
	c := wire.NetCheck{
		Listen: r.Listen, Announced: slices.DeleteFunc(slices.Clone(r.Addrs), transport.Multiaddrs{}.Loopback), Observed: []wire.Observed{}, NAT: string(r.NAT), UDP: r.UDP, TCP: r.TCP, IPv6: r.IPv6,
		Reservations: []wire.Reservation{}, DHT: d.TablePeers, MDNS: d.LAN, Gossip: d.TopicPeers, Strangers: len(d.Strangers), Findings: []string{},
	}
	if !v.DHT {
		c.DHT = -1
	}
	at := map[string]int{}
	for _, o := range r.Observed {
		i, ok := at[o.Addr]
		if !ok {
			i, at[o.Addr] = len(c.Observed), len(c.Observed)
			c.Observed = append(c.Observed, wire.Observed{Addr: o.Addr})
		}
		c.Observed[i].By = append(c.Observed[i].By, v.Book.NameOf(o.By))
	}
	for _, x := range r.Reservations {
		c.Reservations = append(c.Reservations, wire.Reservation{Relay: v.Book.NameOf(x.Relay), Until: x.Expires.UTC(), Score: x.Score.Total})
	}
	if r.Service.On {
		c.Relaying = &wire.Relaying{Reservations: r.Service.Reservations, Circuits: r.Service.Circuits, Bytes: int64(r.Service.Bytes)}
	}
	switch {
	case len(r.Mapped) > 0:
		c.PortMap = strings.Join(r.Mapped, ", ")
	case v.PortMap:
		c.PortMap = "requested, but no router answered"
	}
	switch {
	case len(r.Reachable) > 0:
		c.Public = "publicly reachable at " + strings.Join(r.Reachable, ", ")
	case len(r.Unreachable) > 0:
		c.Public = "not publicly reachable at " + strings.Join(r.Unreachable, ", ")
	}
	c.Findings = v.findings(&c, r)
	return c
}

// findings draws conclusions from the facts and suggests what to do.
func (v *Views) findings(c *wire.NetCheck, r transport.Reach) []string {
	found := []string{}
	add := func(format string, a ...any) { found = append(found, fmt.Sprintf(format, a...)) }
	peers, connected := v.Net.Peers(), 0
	for _, p := range peers {
		if p.Connected {
			connected++
		}
	}
	switch {
	case len(v.Book.List()) == 0:
		add("no peer is known yet: create a ticket for one with balefire-node invite")
	case connected == 0:
		add("no peer is connected: check this machine's network; balefire-node peers shows why each dial failed")
	case !c.UDP:
		add("there is no direct QUIC connection: UDP may be blocked, or all peers are on the LAN, where TCP is preferred")
	}
	relays := v.Local.Relays()
	if r.NAT == transport.NATSymmetric {
		add("this node is behind a symmetric NAT: hole punching fails, so peers reach it through relays; a forwarded port (net.announce) or net.port_map would allow direct connections")
	}
	switch {
	case v.Reserve < 0:
		add("net.relays is 0: behind a NAT, no peer can open a connection to this node")
	case len(relays) == 0 && len(v.Book.List()) > 0:
		add("no other member is a relay: give a reachable one the role relay, so that nodes behind NATs can be reached")
	case len(c.Reservations) == 0 && connected > 0:
		add("%d members are relays, but this node has no reservation at any: peers behind a NAT cannot open a connection to it", len(relays))
	}
	if c.DHT == 0 && connected > 0 {
		add("the hash table is empty: no connected member takes part in it (net.dht)")
	}
	if s := v.Gossip.Summary(); s.Isolated {
		add("this node is isolated: it %s, and claims nothing new", v.isolationReason())
	} else if s.SelfPaused {
		add("this node's own probes fail (local health %d of 8): it claims nothing new until they succeed", s.Health)
	}
	return found
}
