package transport

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// errStranger is returned for a peer without a completed hello.
var errStranger = errors.New("transport: no hello has been exchanged with the peer")

// errRedialed is returned for a contact that a query would dial: the redial loop does, at
// the pace that suits it. A dial of another one that goes on would do harm: libp2p lets all
// dials of an address share one handshake, whose packets come ever more rarely.
var errRedialed = errors.New("transport: the contact is not connected")

// A memberHost is the host as gossip and the DHT see it: a network of verified members.
// To them a peer is connected only after its hello; streams of others wait for it like
// those of the transport's own protocols.
//
//	libp2p ── identified, protocols, connected ──▶ hello? ── yes ▶ memberHost's bus ─▶ gossipsub, DHT
//	                                                 └─ not yet ▶ emitted later by announceMember
type memberHost struct {
	host.Host
	self     proto.PeerID
	log      *slog.Logger
	met      *metrics
	peers    *peerTable
	members  *members
	guard    func(network.StreamHandler) network.StreamHandler // serves members only
	dialer   *dialer
	found    *foundPeers
	bus      event.Bus
	emitters emitters
}

// emitters forward events about members.
type emitters struct{ identified, protocols, connected, addresses event.Emitter }

// init makes what forwards events.
func (c *memberHost) init() error {
	c.bus = eventbus.NewBus()
	for _, e := range []struct {
		to  *event.Emitter
		typ any
	}{
		{&c.emitters.identified, new(event.EvtPeerIdentificationCompleted)},
		{&c.emitters.protocols, new(event.EvtPeerProtocolsUpdated)},
		{&c.emitters.connected, new(event.EvtPeerConnectednessChanged)},
		{&c.emitters.addresses, new(event.EvtLocalAddressesUpdated)},
	} {
		var err error
		if *e.to, err = c.bus.Emitter(e.typ); err != nil {
			return err
		}
	}
	return nil
}

// run forwards libp2p's events until ctx is done.
func (c *memberHost) run(ctx context.Context) {
	sub, err := c.Host.EventBus().Subscribe([]any{
		new(event.EvtPeerIdentificationCompleted), new(event.EvtPeerProtocolsUpdated),
		new(event.EvtPeerConnectednessChanged), new(event.EvtLocalAddressesUpdated),
	}, eventbus.BufSize(1024), eventbus.Name("members"))
	if err != nil {
		c.log.Warn("gossip and the DHT will not learn of new members", "why", err)
		return
	}
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case ev, ok := <-sub.Out():
			if !ok {
				return
			}
			c.forward(ev)
		}
	}
}

// forward forwards an event unless it is about a stranger.
func (c *memberHost) forward(ev any) {
	switch ev := ev.(type) {
	case event.EvtPeerIdentificationCompleted:
		if c.members.verified(ev.Peer) {
			c.emitters.identified.Emit(ev)
		}
	case event.EvtPeerProtocolsUpdated:
		if c.members.verified(ev.Peer) {
			c.emitters.protocols.Emit(ev)
		}
	case event.EvtPeerConnectednessChanged:
		if ev.Connectedness != network.Connected || c.members.verified(ev.Peer) {
			c.emitters.connected.Emit(ev)
		}
	case event.EvtLocalAddressesUpdated:
		c.emitters.addresses.Emit(ev)
	}
}

// announceMember reports a member that is verified now. libp2p's earlier events about it
// were not forwarded.
func (c *memberHost) announceMember(p peer.ID) {
	protocols, err := c.Peerstore().GetProtocols(p)
	if err != nil || len(protocols) == 0 {
		return // not identified yet: an event will follow
	}
	c.emitters.identified.Emit(event.EvtPeerIdentificationCompleted{Peer: p, Protocols: protocols})
}

// EventBus returns the bus of events about members.
func (c *memberHost) EventBus() event.Bus { return c.bus }

// Network returns the members' part of the network.
func (c *memberHost) Network() network.Network { return memberNetwork{c.Host.Network(), c.members} }

// Peerstore returns the addresses of members only, so that the DHT returns no others.
func (c *memberHost) Peerstore() peerstore.Peerstore {
	return memberPeerstore{c.Host.Peerstore(), c.self, c.members}
}

// SetStreamHandler serves a protocol to members.
func (c *memberHost) SetStreamHandler(id protocol.ID, h network.StreamHandler) {
	c.Host.SetStreamHandler(id, c.guard(h))
}

// SetStreamHandlerMatch serves protocols to members.
func (c *memberHost) SetStreamHandlerMatch(id protocol.ID, match func(protocol.ID) bool, h network.StreamHandler) {
	c.Host.SetStreamHandlerMatch(id, match, c.guard(h))
}

// NewStream opens a stream to a member that is connected. That of gossipsub withholds rumors on
// a slow link.
func (c *memberHost) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	if !c.members.verified(p) {
		return nil, errStranger
	}
	s, err := c.Host.NewStream(network.WithNoDial(ctx, "members are connected"), p, ids...)
	if err != nil || !slices.Contains(pubsub.GossipSubDefaultProtocols, ids[0]) {
		return s, err
	}
	if k := c.peers.connOf(s); k != nil {
		s = &rumorStream{Stream: s, pace: &k.rumors, met: c.met}
	}
	return s, nil
}

// Connect dials and returns after both hellos. A peer that others named proves with its
// certificate that it is a member.
func (c *memberHost) Connect(ctx context.Context, info peer.AddrInfo) error {
	p, err := fromLibp2p(info.ID)
	if err != nil {
		return err
	}
	if c.members.verified(info.ID) {
		return nil
	}
	if c.members.known()[p] {
		return errRedialed
	}
	addrs := info.Addrs
	if len(addrs) == 0 {
		addrs = c.Host.Peerstore().Addrs(info.ID)
	}
	told := addrStrings(addrs[:min(len(addrs), proto.MaxAddrs)])
	if c.members.isMember(p) {
		return c.dialer.connect(ctx, proto.Contact{Peer: p, Addrs: told}, false)
	}
	return c.found.tryHello(ctx, p, told)
}

// Close does nothing: the host is the transport's.
func (c *memberHost) Close() error { return nil }

// memberNetwork is the network restricted to peers that completed the hello.
type memberNetwork struct {
	network.Network
	members *members
}

// Connectedness returns Connected only for verified members.
func (m memberNetwork) Connectedness(p peer.ID) network.Connectedness {
	if !m.members.verified(p) {
		return network.NotConnected
	}
	return m.Network.Connectedness(p)
}

// Peers returns the connected members.
func (m memberNetwork) Peers() []peer.ID {
	return slices.DeleteFunc(m.Network.Peers(), func(p peer.ID) bool { return !m.members.verified(p) })
}

// Conns returns the connections to members.
func (m memberNetwork) Conns() []network.Conn {
	return slices.DeleteFunc(m.Network.Conns(), func(c network.Conn) bool { return !m.members.verified(c.RemotePeer()) })
}

// ConnsToPeer returns the connections to p if it is a member.
func (m memberNetwork) ConnsToPeer(p peer.ID) []network.Conn {
	if !m.members.verified(p) {
		return nil
	}
	return m.Network.ConnsToPeer(p)
}

// memberPeerstore returns only addresses of members. Addresses of others are stored below
// it, for dials by this node.
type memberPeerstore struct {
	peerstore.Peerstore
	self    proto.PeerID
	members *members
}

// Addresses of a member that the DHT tells at most: they are hints.
const (
	maxToldPlain    = 3
	maxToldCircuits = 2
)

// PeerInfo returns some addresses of a member, and none for others.
func (m memberPeerstore) PeerInfo(id peer.ID) peer.AddrInfo {
	p, err := fromLibp2p(id)
	if err != nil || p != m.self && !m.members.isMember(p) {
		return peer.AddrInfo{ID: id}
	}
	addrs := m.members.addrs(p)
	if len(addrs) == 0 {
		addrs = m.Peerstore.Addrs(id)
	}
	return peer.AddrInfo{ID: id, Addrs: toldAddrs(addrs)}
}

// toldAddrs returns the first plain addresses, those on loopback last, and circuits.
func toldAddrs(all []ma.Multiaddr) []ma.Multiaddr {
	plain := slices.DeleteFunc(slices.Clone(all), isCircuit)
	slices.SortStableFunc(plain, func(a, b ma.Multiaddr) int {
		switch local := manet.IsIPLoopback(a); {
		case local == manet.IsIPLoopback(b):
			return 0
		case local:
			return 1
		}
		return -1
	})
	circuits := slices.DeleteFunc(slices.Clone(all), func(a ma.Multiaddr) bool { return !isCircuit(a) })
	return append(plain[:min(len(plain), maxToldPlain)], circuits[:min(len(circuits), maxToldCircuits)]...)
}
