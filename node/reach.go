package node

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/route"
	"github.com/balefire/balefire/wire"
)

// netConfig returns the configuration of the transport: the settings and the hooks of
// the other subsystems.
func (n *Node) netConfig() (transport.Config, error) {
	seeds, err := parseSeeds(n.cfg.Net.Seeds)
	if err != nil {
		return transport.Config{}, err
	}
	net := n.cfg.Net
	r := gossipHandler{n}
	c := transport.Config{
		Listen: net.Listen, Announce: net.Announce, Software: "balefire-node " + n.cfg.Version, Clock: n.cfg.Clock, Logger: n.cfg.Logger, Registerer: n.registry, OwnMetrics: !net.Metrics,
		Directory: contactList{n.book, seeds}, Joiner: n.Pairing, Bodies: transfer.Receiver{Transfers: n.transfers}, Mail: n.Mail.Receive,
		Relay: n.mayRelay(), Reserve: net.Relays, Relays: n.relays, PortMap: net.PortMap, Weights: route.Weights(net.Score), Observe: n.netChanged,
		DHT: net.DHT, MDNS: net.MDNS, MeshTag: n.mesh.ID.String(), Seen: n.Pairing.StrangerSeen,
		Ready: n.notices.Ready, Lookup: n.notices.Lookup, PeerClock: n.guard.ObservePeer, Control: r.Control, Sync: r.Sync, Topic: r, Nonces: nonces{n.storage.Store},
		Hops: func(p proto.PeerID) []transport.Hop { return hopsFromProto(n.announced(p).GetHops()) }, Open: func(p proto.PeerID) bool { return n.announced(p).GetOpen() },
	}
	if n.cfg.Simulated.Transport != nil {
		n.cfg.Simulated.Transport(&c)
	}
	return c, nil
}

// A contactList lists the peers to stay connected with: those in the address book and
// the configured seeds.
type contactList struct {
	book  *addressbook.Book
	seeds []proto.Contact
}

// Contacts returns the contacts of the book, with the configured addresses added, and
// the seeds that are not in the book yet.
func (l contactList) Contacts() []proto.Contact {
	all := l.book.Contacts()
	for _, s := range l.seeds {
		if l.book.Blocked(s.Peer) {
			continue
		}
		at := -1
		for i := range all {
			if all[i].Peer == s.Peer {
				at = i
			}
		}
		if at < 0 {
			all = append(all, s)
			continue
		}
		all[at].Addrs = append(all[at].Addrs[:len(all[at].Addrs):len(all[at].Addrs)], s.Addrs...)
	}
	return all
}

// parseSeeds parses multiaddrs that end in /p2p/ and a peer id.
func parseSeeds(seeds []string) (all []proto.Contact, err error) {
	for _, s := range seeds {
		addr, id, _ := strings.Cut(s, "/p2p/")
		p, err := proto.ParsePeerID(id)
		if err != nil {
			return nil, fmt.Errorf("%w: net.seeds: %.150q: %w: write ADDRESS/p2p/ID", wire.ErrInvalid, s, err)
		}
		all = append(all, proto.Contact{Peer: p, Addrs: []string{addr}})
	}
	return all, nil
}

// mayRelay reports whether this node may relay for other members.
func (n *Node) mayRelay() bool { return n.cfg.Net.Relay && n.self.HasRole(identity.RoleRelay) }

// relays returns the members that this node may ask for a reservation.
func (n *Node) relays() []proto.PeerID {
	var all []relayCandidate
	for _, p := range n.book.List() {
		m, ok := n.book.Member(p.Peer)
		if !ok || !m.HasRole(identity.RoleRelay) {
			continue
		}
		g, _ := n.gossip.Member(p.Peer)
		gone := g.Status == gossip.Dead || g.Status == gossip.Left
		all = append(all, relayCandidate{p.Peer, gone, g.Record.GetOpen(), n.net.Direct(p.Peer), n.net.RefusesReservations(p.Peer)})
	}
	return eligibleRelays(all)
}

// A relayCandidate is a member with the role relay.
type relayCandidate struct {
	peer    proto.PeerID
	gone    bool // dead or stopped
	open    bool // publicly reachable, as announced by the member
	direct  bool // connected, not through a relay
	refuses bool // reservations of this node
}

// eligibleRelays leaves out members that are gone and, if this node is connected directly with some
// that are publicly reachable and do not refuse it, all that are not: a reservation at a
// relay behind the same NAT would be useless. What a member announces of itself may be
// wrong, or be true elsewhere only.
func eligibleRelays(all []relayCandidate) (peers []proto.PeerID) {
	open := slices.ContainsFunc(all, func(r relayCandidate) bool { return r.open && r.direct && !r.gone && !r.refuses })
	for _, r := range all {
		if !r.gone && (r.open || !open) {
			peers = append(peers, r.peer)
		}
	}
	return peers
}

// announced returns what p announces about itself, nil if that is not known.
func (n *Node) announced(p proto.PeerID) *proto.NodeRecord {
	m, _ := n.gossip.Member(p)
	return m.Record
}

// hopsToProto converts measured relay paths for a member record. A known round-trip time
// is at least one millisecond there.
func hopsToProto(hops []transport.Hop) (out []*proto.Hop) {
	for _, h := range hops {
		w := &proto.Hop{
			Relay: bytes.Clone(h.Relay[:]), LossPermille: uint32(1000 * min(max(h.Path.Loss, 0), 1)),
			RateKibps: uint32(min(max(h.Path.Rate, 0)/1024, math.MaxInt32)),
		}
		if h.Path.RTT > 0 {
			w.RttMs = uint32(min(max(h.Path.RTT.Milliseconds(), 1), math.MaxInt32))
		}
		out = append(out, w)
	}
	return out
}

// hopsFromProto converts the relay paths of a member record.
func hopsFromProto(encoded []*proto.Hop) (hops []transport.Hop) {
	for _, w := range encoded {
		if r, err := proto.PeerIDFrom(w.GetRelay()); err == nil {
			hops = append(hops, transport.Hop{Relay: r, Path: route.Path{
				RTT: time.Duration(w.GetRttMs()) * time.Millisecond, Loss: float64(min(w.GetLossPermille(), 1000)) / 1000,
				Rate: float64(w.GetRateKibps()) * 1024,
			}})
		}
	}
	return hops
}

// publiclyReachable reports whether, as far as this node knows, it is publicly reachable and relays.
// If some members are open, the others request reservations only from them.
func (n *Node) publiclyReachable() bool {
	if !n.mayRelay() {
		return false
	}
	return len(n.cfg.Net.Announce) > 0 || n.net.Reach().Public
}

// netChanged handles transport events: changes in how peers are reached.
func (n *Node) netChanged(e transport.Event) {
	kind := map[transport.EventKind]string{
		transport.EventConnected: wire.EventPeerConnected, transport.EventDisconnected: wire.EventPeerDisconnected, transport.EventPath: wire.EventPathChanged,
		transport.EventReserved: wire.EventRelayReserved, transport.EventReservationLost: wire.EventRelayLost,
		transport.EventPunched: wire.EventPunched, transport.EventPunchFailed: wire.EventNotPunched,
		transport.EventBodyBegan: wire.EventBodyBegan, transport.EventBodyMoves: wire.EventBodyMoves, transport.EventBodyEnded: wire.EventBodyEnded,
	}[e.Kind]
	if e.Flow != nil {
		x := n.Views.Transfer(*e.Flow)
		n.Events.Add(kind, e.Peer, map[string]string{"task": e.Flow.Task.String(), "what": x.What, "direction": x.Direction, "bytes": fmt.Sprint(x.Bytes), "size": fmt.Sprint(x.Size)})
		return
	}
	n.Events.Add(kind, e.Peer, map[string]string{"path": e.Path, "detail": e.Detail})
	switch e.Kind {
	case transport.EventConnected:
		n.gossip.Connected(e.Peer, true)
		n.Pairing.PeerConnected(e.Peer)
	case transport.EventDisconnected:
		n.gossip.Connected(e.Peer, false)
	}
}
