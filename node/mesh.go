package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// openGossip opens the gossip subsystem and introduces the known members to it.
func (n *Node) openGossip() (err error) {
	m := n.cfg.Mesh
	cfg := gossip.Config{
		Tuning: gossip.Tuning{
			ProbeInterval: m.ProbeInterval, ProbeTimeout: m.ProbeTimeout, SyncInterval: m.SyncInterval,
			SuspectRecover: m.SuspectRecover, DeadRecover: m.DeadRecover,
			PruneAge: m.PruneAge, PruneInterval: m.PruneInterval, PruneLimit: m.PruneLimit,
		},
		Boot: n.outbox.Boot(), Self: n.ownRecord, Changed: n.memberChanged, Received: n.net.Received,
		Clock: n.cfg.Clock, Logger: n.log, Registerer: n.registry,
	}
	if n.cfg.Simulated.Gossip != nil {
		n.cfg.Simulated.Gossip(&cfg)
	}
	n.gossip, err = gossip.Open(n.keys, n.mesh, n.net, n.Pairing.Directory(), cfg)
	if err != nil {
		return err
	}
	for _, p := range n.book.List() {
		if _, ok := n.book.Member(p.Peer); ok {
			n.gossip.Introduced(p.Peer)
		}
	}
	return nil
}

// gossipHandler passes what the transport receives to gossip, which is opened later.
type gossipHandler struct{ node *Node }

// Valid reports whether a message may be forwarded, and returns its number.
func (g gossipHandler) Valid(author proto.PeerID, data []byte) (number uint64, ok bool) {
	return g.node.gossip.Valid(author, data)
}

// Receive processes a valid message of the topic.
func (g gossipHandler) Receive(author proto.PeerID, data []byte) {
	g.node.gossip.TopicMessage(author, data)
}

// Control processes probes and their answers.
func (g gossipHandler) Control(from proto.PeerID, m *proto.Message) { g.node.gossip.Control(from, m) }

// Sync answers a state comparison of another member.
func (g gossipHandler) Sync(ctx context.Context, from proto.PeerID, m *proto.Message) (*proto.Message, error) {
	return g.node.gossip.Sync(ctx, from, m)
}

// ownRecord returns what this node announces about itself.
func (n *Node) ownRecord() gossip.Self {
	o := gossip.Self{
		State: n.phase(), Started: n.started, Priority: uint32(n.cfg.Mesh.Priority), Kinds: n.kinds(), Load: n.load(),
		Labels: n.cfg.Mesh.Labels, Relays: n.net.Reservations(), Open: n.publiclyReachable(), Version: n.cfg.Version,
	}
	if o.State == proto.NodeRunning {
		o.Hops = hopsToProto(n.net.Hops())
	}
	near := transport.Multiaddrs{}.Loopback
	for _, a := range n.net.Addrs() { // loopback addresses come last
		if !strings.Contains(a, "/p2p-circuit") && (!near(a) || len(o.Addrs) == 0 || near(o.Addrs[0])) {
			o.Addrs = append(o.Addrs, a)
		}
	}
	return o
}

// phase returns the phase of this node's life cycle.
func (n *Node) phase() proto.NodeState {
	switch {
	case n.draining.Load():
		return proto.NodeStopping
	case n.Queues.Drained():
		return proto.NodeDraining
	case n.running.Load():
		return proto.NodeRunning
	}
	return proto.NodeStarting
}

// kinds returns the kinds of tasks that this node can run now.
func (n *Node) kinds() (all []string) {
	for _, s := range n.inbox.Specs() {
		if n.inbox.Suspended(s.Kind) == "" {
			all = append(all, s.Kind)
		}
	}
	return all
}

// load returns the current load of this node.
func (n *Node) load() *proto.Load {
	st := n.inbox.Status()
	l := &proto.Load{Slots: uint32(st.Slots), Busy: uint32(st.Lasting), Waiting: uint32(st.Backlog.ByState[proto.Accepted])}
	l.CpuPermille, l.MemoryPermille = n.cfg.Simulated.Load()
	return l
}

// memberChanged handles an event of gossip about a member.
func (n *Node) memberChanged(e gossip.Event) {
	fields := map[string]string{"detail": e.Cause}
	switch e.Kind {
	case gossip.Changed:
		fields["from"], fields["to"] = e.From.String(), e.To.String()
	case gossip.Isolation:
		fields["to"] = map[bool]string{false: "connected", true: "isolated"}[e.On]
	}
	if !e.By.IsZero() {
		fields["by"] = n.book.NameOf(e.By)
	}
	n.Events.Add("member."+e.Kind.String(), e.Peer, fields)
	n.Queues.MemberChanged(e)
	switch {
	case e.Kind == gossip.Described, e.Kind == gossip.Changed && e.To == gossip.Alive:
		n.updateAddrs(e.Peer)
		n.net.MayReturn(e.Peer)
	}
}

// leave announces to the other members that this node stops, so that they need not
// detect it.
func (n *Node) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := n.gossip.Leave(ctx); err != nil {
		n.log.Debug("could not announce the stop to the other members", "err", err)
	}
}

// leaveTimeout bounds the announcement of a stop.
const leaveTimeout = time.Second

// updateAddrs stores the addresses that a member announces.
func (n *Node) updateAddrs(p proto.PeerID) {
	m, ok := n.gossip.Member(p)
	if !ok || m.Record == nil {
		return
	}
	if known, _ := n.book.Get(p); m.Record.GetBoot() < known.Boot {
		return // from an earlier start of the member, repeated by another one
	}
	var relays []proto.PeerID
	for _, b := range m.Record.GetRelays() {
		if r, err := proto.PeerIDFrom(b); err == nil {
			relays = append(relays, r)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), updateAddrsTimeout)
	defer cancel()
	err := n.book.UpdateAddrs(ctx, p, m.Record.GetAddrs(), relays)
	if err != nil && !errors.Is(err, addressbook.ErrUnknownPeer) && !errors.Is(err, store.ErrClosed) {
		n.log.Warn("could not store the addresses of a member", "peer", p, "err", err)
	}
}

// updateAddrsTimeout bounds a write that delays the processing of further events.
const updateAddrsTimeout = 5 * time.Second

// watchWork tells gossip which members have work waiting, so that they are probed more
// often, and which are connected, because a connection event may have been dropped.
func (n *Node) watchWork(ctx context.Context) {
	t := n.cfg.Clock.Ticker(workEvery)
	defer t.Stop()
	full := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			n.gossip.Reachable(n.net.ConnectedPeers())
			full = n.checkFullBook(full)
			for _, p := range n.book.List() {
				n.gossip.Busy(p.Peer, n.outbox.Waiting(p.Peer) > 0)
			}
		}
	}
}

const workEvery = 2 * time.Second

// checkFullBook reports whether the directory is full, so that no more members are admitted.
// It warns once each time the directory becomes full.
func (n *Node) checkFullBook(reported bool) bool {
	full := n.book.Count() >= addressbook.MaxPeers
	if full && !reported {
		n.log.Warn("the address book is full: new peers are refused until some are forgotten", "peers", addressbook.MaxPeers)
		n.Events.Add(wire.EventBookFull, proto.PeerID{}, map[string]string{"count": fmt.Sprint(addressbook.MaxPeers)})
	}
	return full
}

// PruneMembers removes the liveness state of at most limit members (0: mesh.prune_limit)
// that have been dead for longer than age (0: mesh.prune_age). Their addresses,
// certificates and tasks stay.
func (n *Node) PruneMembers(ctx context.Context, age time.Duration, limit int, dryRun bool) (wire.Pruned, error) {
	if age < 0 || limit < 0 {
		return wire.Pruned{}, fmt.Errorf("%w: age and limit must not be negative", wire.ErrInvalid)
	}
	out := wire.Pruned{Members: []string{}, DryRun: dryRun}
	age, limit = cmp.Or(age, n.cfg.Mesh.PruneAge), cmp.Or(limit, n.cfg.Mesh.PruneLimit)
	for _, p := range n.gossip.Prune(age, limit, dryRun) {
		out.Members = append(out.Members, n.book.NameOf(p))
	}
	if dryRun || len(out.Members) == 0 {
		return out, nil
	}
	return out, n.Audit.Record(ctx, "mesh.prune", fmt.Sprint(out.Members))
}

// Converge compares the member state with every connected member now, and returns which
// of them agree afterwards.
func (n *Node) Converge(ctx context.Context) (wire.Convergence, error) {
	began := n.cfg.Clock.Mono()
	c := wire.Convergence{Agree: []string{}}
	for _, a := range n.gossip.Converge(ctx) {
		c.Asked++
		name := n.book.NameOf(a.Peer)
		switch {
		case a.Err != nil:
			c.Failed = append(c.Failed, fmt.Sprintf("%s: %v", name, a.Err))
		case a.Same:
			c.Agree = append(c.Agree, name)
		default:
			c.Failed = append(c.Failed, name+": its state still differs: the mesh is changing")
		}
	}
	c.Took = (n.cfg.Clock.Mono() - began).Seconds()
	slices.Sort(c.Agree)
	slices.Sort(c.Failed)
	return c, nil
}
