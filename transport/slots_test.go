package transport

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A fakeConn is an inbound connection from some address.
type fakeConn struct {
	network.Conn
	from ma.Multiaddr
}

func (c fakeConn) RemoteMultiaddr() ma.Multiaddr { return c.from }
func (fakeConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: network.DirInbound}}
}

// A slotCase is a transport without a network, to which strangers connect.
type slotCase struct {
	*Transport
	clk  *clock.Manual
	next byte
}

func newSlotCase(j Joiner) *slotCase {
	g := &slotCase{clk: clock.NewManual(time.Unix(1_800_000_000, 0))}
	g.Transport = &Transport{
		cfg: Config{Joiner: j, Clock: g.clk.Clock()}, group: newTaskGroup(), peers: newPeerTable(g.clk.Clock()),
	}
	g.rates = newRates(g.cfg, nil, nil)
	g.joins = &joins{cfg: g.cfg, rates: g.rates}
	g.members = &members{peers: g.peers}
	g.greeter = &greeter{cfg: g.cfg, peers: g.peers, members: g.members}
	return g
}

// arrive adds a connection of a new key from an address; nil: it got no slot.
func (g *slotCase) arrive(from string) *conn {
	g.clk.Advance(10 * time.Millisecond)
	g.next++
	raw := &fakeConn{from: ma.StringCast(from)}
	c := newConn(raw, proto.PeerID{g.next, byte(len(g.peers.conns))}, g.cfg.Clock)
	if _, ok := g.peers.admitStranger(c); !ok {
		return nil
	}
	g.peers.conns[raw] = c
	for raw, old := range g.peers.conns { // what the task group does
		if old.guarded.evicted {
			delete(g.peers.conns, raw)
		}
	}
	return c
}

func (g *slotCase) leave(c *conn) { delete(g.peers.conns, c.raw) }

// ticketed admits nodes with the ticket "good".
type ticketed struct{ Joiner }

func (ticketed) HoldsTicket(_ proto.PeerID, r *proto.JoinRequest) bool {
	return string(r.GetTicketId()) == "good"
}

// ask is what arrives when a node asks to join.
func (g *slotCase) ask(c *conn, ticket string) bool {
	c.greeting.gotMessage.Store(true)
	return g.joins.mayJoin(c, &proto.JoinRequest{TicketId: []byte(ticket)})
}

// One address keeps 90 connections open without a hello, or with incomplete ones, and
// sends 707 join requests with wrong tickets, whose connections it leaves open: it keeps no
// one else out, nor a ticket holder at its own address.
func TestOneAddressCannotBlockJoins(t *testing.T) {
	g := newSlotCase(ticketed{})
	const bad, good = "/ip4/198.51.100.7/tcp/4001", "/ip4/203.0.113.%d/tcp/4001"
	wrong := 0
	for i := range 15 {
		for range 6 {
			g.arrive(bad)
		}
		for range 47 {
			if c := g.arrive(bad); c != nil && g.ask(c, "bad") {
				wrong++
			}
		}
		c := g.arrive(fmt.Sprintf(good, i))
		if c == nil {
			t.Fatalf("joiner %d got no slot", i)
		}
		if !g.ask(c, "bad") {
			t.Errorf("joiner %d of another address is refused on its first request", i)
		}
		g.leave(c)
		g.clk.Advance(slotTime)
		if c := g.arrive(bad); c == nil || !g.ask(c, "good") {
			t.Errorf("a ticket holder at the same address is kept out")
		} else {
			g.leave(c)
		}
	}
	if len(g.peers.conns) > maxSlotsPerOrigin {
		t.Errorf("one address has %d slots", len(g.peers.conns))
	}
	if wrong > 6+int(g.clk.Clock().Mono().Seconds()) { // the burst, and one per second
		t.Errorf("%d wrong tickets of one address were checked", wrong)
	}
}

// All slots are taken by many addresses: a newcomer gets that of the oldest silent
// connection of the address with the most, and never that of one that has just sent a message
// or has a valid ticket.
func TestStrangerSlotsAreSharedByAddress(t *testing.T) {
	g := newSlotCase(nil)
	var first *conn
	for i := range maxUnverified / maxSlotsPerOrigin {
		for k := range maxSlotsPerOrigin {
			c := g.arrive(fmt.Sprintf("/ip6/2001:db8:%d:%d::1/udp/4001/quic-v1", i+1, k))
			if i == 0 && k == 0 {
				c.greeting.gotMessage.Store(true)
				first = c
			}
		}
	}
	if len(g.peers.conns) != maxUnverified {
		t.Fatalf("%d slots are taken", len(g.peers.conns))
	}
	if g.arrive("/ip4/192.0.2.1/tcp/4001") == nil || len(g.peers.conns) != maxUnverified || first.guarded.evicted {
		t.Errorf("%d slots; one that sent a message was evicted: %v", len(g.peers.conns), first.guarded.evicted)
	}
	for _, c := range g.peers.conns {
		c.greeting.gotMessage.Store(true)
	}
	if g.arrive("/ip4/192.0.2.2/tcp/4001") != nil {
		t.Error("one that sent a message was evicted")
	}
	g.clk.Advance(slotTime)
	first.greeting.hasTicket.Store(true)
	for i := range maxUnverified {
		if g.arrive(fmt.Sprintf("/ip4/192.0.2.%d/tcp/4001", i+2)) == nil {
			t.Errorf("connections that sent a message long ago keep out newcomer %d", i)
		}
	}
	if first.guarded.evicted {
		t.Error("one with a valid ticket was evicted")
	}
	for a, want := range map[string]string{
		"/ip4/192.0.2.1/tcp/1": "192.0.2.1", "/ip6/::ffff:192.0.2.1/tcp/1": "192.0.2.1", "/ip6/2001:db8:1:2ff::9/tcp/1": "2001:db8:1:200::/56",
		"/dns/example.org/tcp/1": "unknown",
	} {
		if got := originOf(ma.StringCast(a)); got != want {
			t.Errorf("%s is of %s, want %s", a, got, want)
		}
	}
	_, own, _ := net.ParseCIDR("2001:db8:5::/64")
	for a, want := range map[string]string{
		"/ip6/2001:db8:5::9/tcp/1": "2001:db8:5::9", "/ip6/fd00::9/tcp/1": "fd00::9", "/ip4/10.0.0.9/tcp/1": "10.0.0.9", "/ip6/2001:db8:6::9/tcp/1": "2001:db8:6::/56",
	} {
		if got := neighborOf(ma.StringCast(a), []*net.IPNet{own}); got != want {
			t.Errorf("on its own network %s is of %s, want %s", a, got, want)
		}
	}
}
