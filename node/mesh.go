package node

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// openGossip opens the room that knows who is alive, and tells it who could be.
func (n *Node) openGossip() (err error) {
	m := n.cfg.Mesh
	cfg := gossip.Config{
		Tuning: gossip.Tuning{
			ProbeInterval: m.ProbeInterval, ProbeTimeout: m.ProbeTimeout, SyncInterval: m.SyncInterval,
			SuspectRecover: m.SuspectRecover, DeadRecover: m.DeadRecover,
			PruneAge: m.PruneAge, PruneInterval: m.PruneInterval, PruneLimit: m.PruneLimit,
		},
		Boot: n.outbox.Boot(), Self: n.own, Changed: n.memberChanged,
		Clock: n.cfg.Clock, Logger: n.log, Registerer: n.registry,
	}
	if n.cfg.Simulated.Gossip != nil {
		n.cfg.Simulated.Gossip(&cfg)
	}
	n.gossip, err = gossip.Open(n.keys, n.mesh, n.net, roll{n.book, n.net, newRevocationLog(n.cfg.Dir)}, cfg)
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

// A roll is who is a member. Whoever is struck off it is put out.
type roll struct {
	*transport.Book
	net  *transport.Transport
	kept *revocationLog
}

// Revoke keeps a revocation and ends the connections with whom it names.
func (r roll) Revoke(ctx context.Context, s *proto.Signed) error {
	if err := r.Book.Revoke(ctx, s); err != nil {
		return err
	}
	if err := r.kept.add(s); err != nil {
		return err
	}
	for _, p := range r.List() { // also one whose hello is under way: it is not connected yet
		if r.Revoked(p.Peer) {
			r.net.Disconnect(p.Peer)
		}
	}
	return nil
}

// Member returns who p is in the mesh. That a person blocked it here is no matter of
// the others: what is known of its life is compared with them, or they would never
// agree.
func (r roll) Member(p proto.PeerID) (identity.Member, bool) { return r.Enrolled(p) }

// rumors hands what the transport hears to the room, which is opened after it.
type rumors struct{ node *Node }

// Valid decides whether a message is passed on, and returns its number.
func (r rumors) Valid(author proto.PeerID, data []byte) (number uint64, ok bool) {
	return r.node.gossip.Valid(author, data)
}

// Heard takes a valid message.
func (r rumors) Heard(author proto.PeerID, data []byte) { r.node.gossip.Topic(author, data) }

// Control takes probes and their answers.
func (r rumors) Control(from proto.PeerID, m *proto.Message) { r.node.gossip.Control(from, m) }

// Sync answers a comparison of what two nodes know.
func (r rumors) Sync(ctx context.Context, from proto.PeerID, m *proto.Message) (*proto.Message, error) {
	return r.node.gossip.Sync(ctx, from, m)
}

// own is what this node tells the others of itself.
func (n *Node) own() gossip.Self {
	o := gossip.Self{
		State: n.phase(), Started: n.started, Priority: uint32(n.cfg.Mesh.Priority), Kinds: n.kinds(), Load: n.load(),
		Labels: n.cfg.Mesh.Labels, Relays: n.net.Reservations(), Open: n.open(), Version: n.cfg.Version,
	}
	if o.State == proto.NodeRunning {
		o.Hops = hopsOut(n.net.Hops())
	}
	for _, a := range n.reachable() { // loopback comes last
		if !strings.Contains(a, "/p2p-circuit") && (loopback(a) == 0 || len(o.Addrs) == 0 || loopback(o.Addrs[0]) == 1) {
			o.Addrs = append(o.Addrs, a)
		}
	}
	return o
}

// phase is how far this node is in its life.
func (n *Node) phase() proto.NodeState {
	switch {
	case n.draining.Load():
		return proto.NodeStopping
	case n.queues.drained.Load():
		return proto.NodeDraining
	case n.running.Load():
		return proto.NodeRunning
	}
	return proto.NodeStarting
}

// kinds are those of the tasks that this node works on.
func (n *Node) kinds() (all []string) {
	for _, s := range n.inbox.Specs() {
		if n.inbox.Suspended(s.Kind) == "" {
			all = append(all, s.Kind)
		}
	}
	return all
}

// load is how much this node has to do.
func (n *Node) load() *proto.Load {
	st := n.inbox.Status()
	l := &proto.Load{Slots: uint32(st.Slots), Busy: uint32(st.Used), Waiting: uint32(st.Backlog.ByState[proto.Accepted])}
	look := n.machine.load
	if n.cfg.Simulated.Load != nil {
		look = n.cfg.Simulated.Load
	}
	l.CpuPermille, l.MemoryPermille = look()
	return l
}

// memberChanged hears what happens to members.
func (n *Node) memberChanged(e gossip.Event) {
	text, fields := e.Cause, map[string]string{}
	if e.Kind == gossip.Changed {
		fields["from"], fields["to"] = e.From.String(), e.To.String()
		if text == "" {
			text = e.From.String() + " → " + e.To.String()
		}
	}
	if !e.By.IsZero() {
		fields["by"] = n.nameOf(e.By)
	}
	n.tell("member."+e.Kind.String(), e.Peer, orWord(text, e.Kind.String()), fields)
	n.queues.heard(e)
	switch {
	case e.Kind == gossip.Described, e.Kind == gossip.Changed && e.To == gossip.Alive:
		n.heed(e.Peer)
		n.net.Want(e.Peer) // it is reached elsewhere now, perhaps
	}
}

// leave tells the others that this node stops, so that nobody has to find out.
func (n *Node) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := n.gossip.Leave(ctx); err != nil {
		n.log.Debug("the others were not told of the stop", "err", err)
	}
}

// leaveTimeout bounds the last word of a node.
const leaveTimeout = time.Second

// heed keeps where a member says that it is reached.
func (n *Node) heed(p proto.PeerID) {
	m, ok := n.gossip.Member(p)
	if !ok || m.Record == nil {
		return
	}
	if known, _ := n.book.Get(p); m.Record.GetBoot() < known.Boot {
		return // of an earlier start of it: somebody says it again
	}
	var relays []proto.PeerID
	for _, b := range m.Record.GetRelays() {
		if r, err := proto.PeerIDFrom(b); err == nil {
			relays = append(relays, r)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), heedTimeout)
	defer cancel()
	err := n.book.Told(ctx, p, m.Record.GetAddrs(), relays)
	if err != nil && !errors.Is(err, transport.ErrUnknownPeer) && !errors.Is(err, store.ErrClosed) {
		n.log.Warn("where a member is reached could not be kept", "peer", p, "err", err)
	}
}

// heedTimeout bounds a write that news wait behind.
const heedTimeout = 5 * time.Second

// watchWork tells the room for whom there is work: they are probed more often. It also
// tells who is connected: an event that says so may have been dropped.
func (n *Node) watchWork(ctx context.Context) error {
	t := time.NewTicker(workEvery)
	defer t.Stop()
	full := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			n.gossip.Reachable(n.net.ConnectedPeers())
			full = n.crowded(full)
			for _, p := range n.book.List() {
				n.gossip.Busy(p.Peer, n.outbox.Waiting(p.Peer) > 0)
			}
		}
	}
}

const workEvery = 2 * time.Second

// crowded tells, once until there is room again, that no more members are let in. It
// reports whether that is so.
func (n *Node) crowded(told bool) bool {
	full := n.book.Count() >= transport.MaxPeers
	if full && !told {
		n.log.Warn(crowdedText)
		n.tell("member."+gossip.Alarm.String(), n.keys.Peer(), crowdedText, nil)
	}
	return full
}

// crowdedText is for people.
var crowdedText = fmt.Sprintf("%d peers are known, the most that are: new ones are refused until some are forgotten (balefire-node peers forget); if you did not let so many in, revoke the admin who did", transport.MaxPeers)

// PruneMembers forgets what is known of the life of members that are dead for longer
// than age (0: mesh.prune_age), at most limit of them (0: mesh.prune_limit). Their
// addresses, certificates and tasks stay.
func (n *Node) PruneMembers(ctx context.Context, age time.Duration, limit int, dryRun bool) (Pruned, error) {
	if age < 0 || limit < 0 {
		return Pruned{}, fmt.Errorf("%w: an age and a limit are not negative", ErrInvalid)
	}
	out := Pruned{Members: []string{}, DryRun: dryRun}
	age, limit = cmp.Or(age, n.cfg.Mesh.PruneAge), cmp.Or(limit, n.cfg.Mesh.PruneLimit)
	for _, p := range n.gossip.Prune(age, limit, dryRun) {
		out.Members = append(out.Members, n.nameOf(p))
	}
	if dryRun || len(out.Members) == 0 {
		return out, nil
	}
	return out, n.note(ctx, "mesh.prune", fmt.Sprint(out.Members))
}

// Converge compares what is known of the members with everybody who is connected,
// now, and returns who agrees afterwards.
func (n *Node) Converge(ctx context.Context) (Convergence, error) {
	began := n.cfg.Clock.Mono()
	c := Convergence{Agree: []string{}}
	for _, a := range n.gossip.Converge(ctx) {
		c.Asked++
		name := n.nameOf(a.Peer)
		switch {
		case a.Err != nil:
			c.Failed = append(c.Failed, fmt.Sprintf("%s: %v", name, a.Err))
		case a.Same:
			c.Agree = append(c.Agree, name)
		default:
			c.Failed = append(c.Failed, name+": it still knows something else: the mesh is changing")
		}
	}
	c.Took = seconds(n.cfg.Clock.Mono() - began)
	slices.Sort(c.Agree)
	slices.Sort(c.Failed)
	return c, nil
}

// Revoke ends the membership of a peer in the whole mesh, for good. This node must
// be able to admit others.
func (n *Node) Revoke(ctx context.Context, ref, reason string) error {
	p, err := n.otherOf(ref)
	if err != nil {
		return err
	}
	what, now := identity.Revocation{Peer: p.Peer}, n.cfg.Clock.Now()
	var s *proto.Signed
	if root, rerr := identity.LoadRoot(filepath.Join(n.cfg.Dir, identityDir)); rerr == nil && root.Mesh().ID == n.mesh.ID {
		s, err = root.Revoke(what, now)
	} else if p.Member.HasRole(identity.RoleAdmin) {
		return fmt.Errorf("%w: %s is an admin, and only the mesh's root key ends an admin: run it on the node that began the mesh", ErrDenied, ref)
	} else if s, err = n.keys.Revoke(n.mesh, n.book.Self().Member.Cert, what, now); err != nil {
		return fmt.Errorf("%w: this node may not revoke: run it on the node that began the mesh, or on one with the admin role: %w", ErrDenied, err)
	}
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	if err := n.gossip.Revoke(ctx, s); err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	return n.note(ctx, "peer.revoke", p.Peer.String()+" "+reason)
}

func shortRoot(root [32]byte) string { return hex.EncodeToString(root[:6]) }
