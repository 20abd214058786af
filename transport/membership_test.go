package transport

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	circuitproto "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A memberGate also knows members that are not connected, like the book.
type memberGate struct {
	*testGate
	members map[proto.PeerID]bool
}

func (g memberGate) Member(p proto.PeerID) (identity.Member, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return identity.Member{Peer: p}, g.members[p]
}

// set makes a node a member, or ends its membership as the end of its certificate does.
func (g memberGate) set(n byte, member bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.members[newTestKeys(n).Peer()] = member
}

// startWithMembers starts a node whose gate knows these members.
func startWithMembers(t *testing.T, n byte, prepare func(*Config), members ...byte) *Transport {
	t.Helper()
	g := memberGate{&testGate{boot: n}, make(map[proto.PeerID]bool)}
	for _, m := range members {
		g.members[newTestKeys(m).Peer()] = true
	}
	cfg := Config{Listen: []string{"/ip4/127.0.0.1/tcp/0"}}
	prepare(&cfg)
	tr, err := New(newTestKeys(n), g, newTestReceiver(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tr.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	<-tr.Opened()
	return tr
}

// TestStrangersCannotCrowdOutMembers checks that only strangers compete for the slots of
// connections without a hello: whoever occupies all of them keeps no member out.
func TestStrangersCannotCrowdOutMembers(t *testing.T) {
	b := startWithMembers(t, 2, func(cfg *Config) { cfg.Timing.Hello = patience }, 1)
	to := peer.AddrInfo{ID: b.host.ID(), Addrs: b.host.Addrs()}
	for range 2 * maxSlotsPerOrigin {
		h, err := libp2p.New(libp2p.NoListenAddrs, libp2p.DisableMetrics())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { h.Close() })
		h.Peerstore().AddAddrs(to.ID, to.Addrs, time.Minute)
		if _, err := h.Network().DialPeer(t.Context(), to.ID); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "strangers occupy every slot of their address", func() bool {
		b.peers.mu.Lock()
		defer b.peers.mu.Unlock()
		return len(b.peers.conns) == maxSlotsPerOrigin
	})
	a := start(t, 1, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.Dial(ctx, b.Peer(), b.Addrs()); err != nil {
		t.Errorf("a member was not admitted: %v", err)
	}
}

// TestJoinWithoutTicketIsLocalOnly checks that nodes elsewhere cannot fill the list of
// join requests from the LAN, nor appear in it.
func TestJoinWithoutTicketIsLocalOnly(t *testing.T) {
	_, office, err := net.ParseCIDR("2001:db8:1:2::/64")
	if err != nil {
		t.Fatal(err)
	}
	relay := "/p2p/" + toLibp2p(newTestKeys(9).Peer()).String() + "/p2p-circuit"
	for addr, want := range map[string]bool{
		"/ip4/192.168.1.7/tcp/4001":              true,
		"/ip4/127.0.0.1/tcp/4001":                true,
		"/ip6/fe80::1/udp/4001/quic-v1":          true,
		"/ip6/2001:db8:1:2::7/udp/4001/quic-v1":  true,
		"/ip6/2001:db8:1:3::7/udp/4001/quic-v1":  false,
		"/ip4/198.51.100.7/tcp/4001":             false,
		"/ip4/192.168.1.7/tcp/4001" + relay:      false,
		"/dns/node.example.org/udp/4001/quic-v1": false,
	} {
		if got := onLocalNetwork(ma.StringCast(addr), []*net.IPNet{office}); got != want {
			t.Errorf("%s is local: %v", addr, got)
		}
	}
	ticket := &proto.JoinRequest{TicketId: make([]byte, 16)}
	if mayRequestJoin(&proto.JoinRequest{}, false, false) || !mayRequestJoin(ticket, false, false) || !mayRequestJoin(&proto.JoinRequest{}, true, false) || !mayRequestJoin(&proto.JoinRequest{}, false, true) {
		t.Error("from elsewhere only tickets and members' renewals must be handled")
	}
	if len(ownNetworks()) == 0 {
		t.Error("this machine is in no network, not even its own")
	}
}

// TestExpiredCertificateAllowsOnlyHello checks that a node with a recently expired
// certificate gets no relay reservation, and is in no routing table and no topic: it is
// admitted only to have it renewed.
func TestExpiredCertificateAllowsOnlyHello(t *testing.T) {
	t.Parallel()
	heard := new(countRumors)
	b := startWithMembers(t, 2, func(cfg *Config) { cfg.Relay, cfg.DHT, cfg.Topic = true, true, heard }, 3)
	late, _ := inMesh(t, 1, 2, 3)
	member, _ := inMesh(t, 3, 2, 1)
	for _, n := range []*testNode{late, member} {
		if err := n.Dial(t.Context(), b.Peer(), b.Addrs()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the member is in the topic and in the table", func() bool {
		d := b.Discovery()
		return d.TopicPeers > 0 && d.TablePeers > 0
	})
	for _, n := range []struct {
		*testNode
		want bool
	}{{late, false}, {member, true}} {
		eventually(t, "both hellos are over", func() bool { return b.Connected(n.Peer()) && n.Connected(b.Peer()) })
		if got := (relayACL{b.members}).AllowReserve(n.host.ID(), nil); got != n.want {
			t.Errorf("node %d: the relay granted a reservation: %v", n.gate.boot, got)
		}
		if _, err := n.reach.reserver.ask(t.Context(), n.peers.best(b.Peer())); (err == nil) != n.want || err != nil && strings.Contains(err.Error(), b.Peer().Short()) {
			t.Errorf("node %d: it asked for a reservation: %v", n.gate.boot, err)
		}
	}
	if d := b.Discovery(); d.TopicPeers != 1 || d.TablePeers != 1 {
		t.Errorf("%d in the topic, %d in the table, want the member alone", d.TopicPeers, d.TablePeers)
	}
}

// TestConnectionEndsWithTheCertificate checks that what a member has open in the hash table and
// at the relay ends when its certificate does, also without gossip. It may connect again to have
// it renewed.
func TestConnectionEndsWithTheCertificate(t *testing.T) {
	t.Parallel()
	b := startWithMembers(t, 2, func(cfg *Config) { cfg.Relay, cfg.DHT = true, true }, 1)
	a := start(t, 1, nil)
	connect := func() {
		t.Helper()
		if err := a.Dial(t.Context(), b.Peer(), b.Addrs()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both hellos are over", func() bool { return b.Connected(a.Peer()) && a.Connected(b.Peer()) })
	}
	connect()
	var open []network.Stream
	for _, p := range []protocol.ID{dhtProtocol(), circuitproto.ProtoIDv2Hop} {
		s, err := a.host.NewStream(t.Context(), b.host.ID(), p)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	b.members.gate.(memberGate).set(1, false)
	eventually(t, "its streams end with their connection", func() bool {
		return open[0].Conn().IsClosed() && open[1].Conn().IsClosed()
	})
	eventually(t, "the other side closed it", func() bool { return !a.Connected(b.Peer()) && !b.Connected(a.Peer()) })
	connect()
	stays := b.peers.best(a.Peer())
	b.closeFormerMembers()
	if b.peers.best(a.Peer()) != stays || stays.raw.IsClosed() {
		t.Error("it cannot connect to have its certificate renewed")
	}
	b.members.gate.(memberGate).set(1, true) // renewed, and known on the same connection
	b.closeFormerMembers()
	b.members.gate.(memberGate).set(1, false)
	eventually(t, "the renewed certificate ended", stays.raw.IsClosed)
}
