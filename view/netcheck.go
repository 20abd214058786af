package view

import (
	"slices"
	"strings"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// NetCheck reports what this node knows about its own network.
func (v *Views) NetCheck() wire.NetCheck {
	r, d := v.Net.Reach(), v.Net.Discovery()
	c := wire.NetCheck{
		Listen: r.Listen, Announced: slices.DeleteFunc(slices.Clone(r.Addrs), transport.Multiaddrs{}.Loopback), Observed: []wire.Observed{},
		NAT: string(r.NAT), UDP: r.UDP, TCP: r.TCP, IPv6: r.IPv6,
		Reservations: []wire.Reservation{}, DHT: d.TablePeers, MDNS: d.LAN, Gossip: d.TopicPeers, Strangers: len(d.Strangers), Findings: []wire.Note{},
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
		c.Reservations = append(c.Reservations, wire.Reservation{Relay: v.Book.NameOf(x.Relay), Until: proto.Time(x.Expires.UnixMilli()), Score: x.Score.Total})
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

// findings draws conclusions from the facts.
func (v *Views) findings(c *wire.NetCheck, r transport.Reach) []wire.Note {
	found := []wire.Note{}
	add := func(code wire.NoteCode, count int) { found = append(found, note(code, wire.NoteArgs{Count: count})) }
	connected := len(v.Net.ConnectedPeers())
	switch {
	case len(v.Book.List()) == 0:
		add(wire.NoteNoPeer, 0)
	case connected == 0:
		add(wire.NoteNoneConnected, 0)
	case !c.UDP:
		add(wire.NoteNoQUIC, 0)
	}
	relays := v.Local.Relays()
	if r.NAT == transport.NATSymmetric {
		add(wire.NoteSymmetricNAT, 0)
	}
	switch {
	case v.Reserve == 0:
		add(wire.NoteReservesNone, 0)
	case len(relays) == 0 && len(v.Book.List()) > 0:
		add(wire.NoteNoRelay, 0)
	case len(c.Reservations) == 0 && connected > 0:
		add(wire.NoteNoReservation, len(relays))
	}
	if c.DHT == 0 && connected > 0 {
		add(wire.NoteHashTableEmpty, 0)
	}
	if s := v.Gossip.Summary(); s.Isolated {
		found = append(found, v.IsolatedNote())
	} else if s.SelfPaused {
		found = append(found, v.probesNote())
	}
	return found
}
