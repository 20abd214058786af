package transport

import (
	"errors"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	madns "github.com/multiformats/go-multiaddr-dns"

	"github.com/balefire/balefire/proto"
)

// build makes the parts, each with what it uses of the others. They get the host from attach:
// it uses some of them itself.
func (t *Transport) build(gate Gate) {
	t.rates = newRates(t.cfg, t.met, t.Disconnect)
	t.members = &members{self: t.self, gate: gate, dir: t.cfg.Directory, peers: t.peers}
	t.greeter = &greeter{self: t.self, gate: gate, cfg: t.cfg, log: t.log, met: t.met, peers: t.peers, members: t.members, addrs: t.Addrs, joined: t.join}
	t.guards = &streamGuard{timing: t.cfg.Timing, met: t.met, group: t.group, peers: t.peers, rates: t.rates, members: t.members, greeter: t.greeter}
	t.relays = &relays{self: t.self, cfg: t.cfg, gate: gate, peers: t.peers, members: t.members}
	t.dialer = &dialer{self: t.self, gate: gate, timing: t.cfg.Timing, peers: t.peers, relays: t.relays, names: newNameResolver(swarm.ResolverFromMaDNS{Resolver: madns.DefaultResolver}), opened: make(chan struct{})}
	t.redialer = &redialer{
		self: t.self, cfg: t.cfg, log: t.log, peers: t.peers, members: t.members, dialer: t.dialer, find: t.FindAddrs, wake: make(chan struct{}, 1),
	}
	t.puncher = &puncher{
		self: t.self, cfg: t.cfg, log: t.log, met: t.met, group: t.group, peers: t.peers, members: t.members,
		greeter: t.greeter, dialer: t.dialer, redialer: t.redialer, emit: t.events.emit, guard: t.guards.onlyMembers,
		seen: newObserved(), slots: make(chan struct{}, maxPunching), history: make(map[proto.PeerID][]Punch),
	}
	t.chooser = &relayChooser{
		self: t.self, cfg: t.cfg, log: t.log, group: t.group, peers: t.peers, relays: t.relays, greeter: t.greeter, dialer: t.dialer, update: t.updatePath,
	}
	t.joins = &joins{cfg: t.cfg, met: t.met, group: t.group, peers: t.peers, rates: t.rates, dialer: t.dialer}
	found := &foundPeers{clock: t.cfg.Clock, members: t.members, rates: t.rates, dialer: t.dialer, strangers: make(strangers)}
	t.disc = discovery{cfg: t.cfg, log: t.log, met: t.met, group: t.group, peers: t.peers, members: t.members, rates: t.rates, found: found}
	t.links = &links{
		cfg: t.cfg, log: t.log, met: t.met, group: t.group, peers: t.peers, rates: t.rates, recv: t.recv, chooser: t.chooser, update: t.updatePath,
	}
	reserver := &reserver{
		self: t.self, gate: gate, cfg: t.cfg, log: t.log, met: t.met, peers: t.peers, relays: t.relays, emit: t.events.emit,
		changed: t.tellRelays, granted: t.redialer.meetRelay,
		wake: make(chan struct{}, 1), held: make(map[proto.PeerID]*reservation), refusing: make(map[proto.PeerID]bool),
	}
	t.reach = &reach{reserver: reserver, served: &relayCounters{total: t.met.relayed}}
	t.bodies = &bodyTransfers{cfg: t.cfg, group: t.group, peers: t.peers, flows: flows{mono: t.cfg.Clock.Mono, met: t.met, emit: t.events.emit}}
	t.local = newLocalAddrs(t.cfg)
}

// attach gives the parts the host.
func (t *Transport) attach() error {
	t.relays.book, t.dialer.host, t.reach.reserver.host, t.puncher.host = t.host.Peerstore(), t.host, t.host, t.host
	t.local.bound(t.host.Network().ListenAddresses())
	if h, ok := t.host.(addrConfirmer); ok {
		t.reach.autonat.Store(&h)
	}
	t.disc.host = &memberHost{
		Host: t.host, self: t.self, log: t.log, met: t.met, peers: t.peers, members: t.members, guard: t.guards.onlyMembers, dialer: t.dialer, found: t.disc.found,
	}
	if t.cfg.MDNS {
		t.disc.lan = newLAN(&t.disc, t.host, t.local)
	}
	return errors.Join(t.disc.host.init(), registerRelays(t.cfg.Registerer, relayCollector{t.reach.served, t.relays, &t.running}))
}

// serve sets who handles the connections and streams of others.
func (t *Transport) serve() {
	t.host.Network().Notify(&network.NotifyBundle{ConnectedF: t.connected, DisconnectedF: t.disconnected})
	t.host.SetStreamHandler(streamCtl, t.handleCtl)
	t.host.SetStreamHandler(streamTask, t.guards.handler("task", proto.MaxFrame, t.links.serveTasks))
	t.host.SetStreamHandler(streamLease, t.guards.handler("lease", proto.MaxFrame, t.links.serveLeases))
	if t.cfg.Mail != nil {
		t.host.SetStreamHandler(streamMail, t.guards.handler("mail", proto.MaxFrame, t.links.serveMail))
	}
	t.host.SetStreamHandler(streamEcho, t.guards.handler("echo", proto.MaxControl, t.serveEcho))
	if t.cfg.Bodies != nil {
		t.host.SetStreamHandler(streamChunk, t.guards.handler("chunk", proto.MaxFrame, t.bodies.serve))
	}
	if t.cfg.Joiner != nil {
		t.host.SetStreamHandler(streamJoin, t.joins.handle)
	}
	if t.cfg.Sync != nil {
		t.host.SetStreamHandler(streamSync, t.guards.handler("sync", proto.MaxControl, t.serveSync))
	}
}
