package queue

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
)

// MemberChanged handles an event of gossip about a member.
func (qs *Queues) MemberChanged(e gossip.Event) {
	if e.Kind == gossip.Changed && (e.To == gossip.Dead || e.To == gossip.Left) {
		qs.Driver.Dead(e.Peer)
	}
	qs.alertHome(e)
	qs.wake()
}

func (qs *Queues) wake() {
	select {
	case qs.changed <- struct{}{}:
	default:
	}
}

const (
	memberEvery   = time.Second      // interval between updates of the members
	announceEvery = 30 * time.Second // interval between announcements of the queues of this node
	scanEvery     = 5 * time.Second  // interval between reconciliations
)

// watch tells the ownership subsystem which members could work, and announces the queues
// of this node to others.
func (qs *Queues) watch(ctx context.Context) {
	members, spread, scan := qs.cfg.Clock.Ticker(memberEvery), qs.cfg.Clock.Ticker(announceEvery), qs.cfg.Clock.Ticker(scanEvery)
	defer members.Stop()
	defer spread.Stop()
	defer scan.Stop()
	last, idle := map[proto.PeerID]ownership.Node{}, map[proto.TaskID]bool{}
	for {
		qs.updateMembers(last)
		qs.returnOverdue(ctx)
		qs.checkHomes(ctx)
		qs.parts.Tasks.FinishMoves(ctx)
		select {
		case <-ctx.Done():
			return
		case <-members.C:
		case <-qs.changed:
		case <-spread.C:
			qs.announce("")
		case <-scan.C:
			idle = qs.reconcile(ctx, idle)
		}
	}
}

// mayWork reports whether p may be granted tasks of queues and be the home of one: its
// results would be rejected without the role work. An expired certificate is accepted if
// it can be renewed.
func (qs *Queues) mayWork(p proto.PeerID) bool {
	if p == qs.self {
		return qs.parts.Book.Self().Member.HasRole(identity.RoleWork)
	}
	m, member := qs.parts.Book.Renewable(p)
	return member && m.HasRole(identity.RoleWork)
}

// mayBeHome reports whether p may become the home of a queue: its newest known certificate
// has the role work. Its end does not count here: it is no reason to reject a queue that
// has existed for long.
func (qs *Queues) mayBeHome(p proto.PeerID) bool {
	if p == qs.self {
		return qs.parts.Book.Self().Member.HasRole(identity.RoleWork)
	}
	x := qs.parts.Book.Recipient(p)
	return x != nil && x.Member.HasRole(identity.RoleWork)
}

// updateMembers tells the ownership subsystem what has changed about the members.
func (qs *Queues) updateMembers(last map[proto.PeerID]ownership.Node) {
	paused := qs.gossip.SelfPaused()
	if paused && !qs.paused {
		qs.metrics.pauses.Inc()
	}
	qs.paused = paused
	qs.Driver.SetActive(!paused)
	all := []ownership.Node{qs.selfNode()}
	for _, m := range qs.gossip.Members() {
		if r := m.Record; r != nil {
			_, sealable := qs.parts.Book.KeyRecord(m.Peer)
			_, member := qs.parts.Book.Member(m.Peer) // a member whose certificate can be renewed keeps its tasks and gets no new ones
			all = append(all, ownership.Node{Member: dispatch.Member{
				Peer: m.Peer, Alive: m.Eligible && sealable && qs.mayWork(m.Peer), Draining: !member || r.GetState() != proto.NodeRunning,
				Kinds: r.GetKinds(), Labels: r.GetLabels(), Slots: int(r.GetLoad().GetSlots()), Busy: int(r.GetLoad().GetBusy()),
				Load: r.GetLoad().GetCpuPermille(), Priority: r.GetPriority(),
			}})
		}
	}
	for _, x := range all {
		if old, ok := last[x.Peer]; !ok || !reflect.DeepEqual(old, x) {
			last[x.Peer] = x
			qs.Driver.SetNode(x)
		}
	}
	for p := range last {
		if !slices.ContainsFunc(all, func(x ownership.Node) bool { return x.Peer == p }) { // forgotten or revoked
			delete(last, p)
			qs.Driver.SetNode(ownership.Node{Member: dispatch.Member{Peer: p}})
		}
	}
	qs.dropRevoked()
}

// dropRevoked drops the queue states of homes that were revoked since.
func (qs *Queues) dropRevoked() {
	done := map[string]bool{}
	for _, s := range qs.allStates() {
		p, err := proto.PeerIDFrom(s.GetHome())
		if err != nil || len(s.GetRoot()) > 0 || done[string(p[:])] || qs.Here(s) || !qs.parts.Book.Revoked(p) {
			continue
		}
		done[string(p[:])] = true
		qs.Driver.Revoked(p)
	}
}

// selfNode returns this node as a member. It works on its own queues even when it is
// isolated.
func (qs *Queues) selfNode() ownership.Node {
	m := qs.parts.Self()
	m.Alive = m.Alive && qs.mayWork(qs.self)
	return ownership.Node{Member: m}
}

// announce announces a queue or another name whose home is this node, or all such names if
// name is empty, to all connected peers.
func (qs *Queues) announce(name string) {
	if states := qs.announced(name); len(states) > 0 {
		for _, s := range qs.net.Peers() {
			if s.Linked {
				qs.sendStates(s.Peer, states)
			}
		}
	}
}

// AnnounceTo announces the queues and other names of this node to a new peer.
func (qs *Queues) AnnounceTo(p proto.PeerID) { qs.sendStates(p, qs.announced("")) }

// OwnStates returns the states of the queues whose home is this node.
func (qs *Queues) OwnStates() []*proto.QueueState {
	return qs.ownOf(slices.Collect(maps.Values(qs.Driver.QueueStates())), "")
}

// announced returns what OwnStates does, and the states of other names whose home is this
// node; of one name if it is not empty.
func (qs *Queues) announced(name string) []*proto.QueueState {
	return qs.ownOf(qs.allStates(), name)
}

// allStates returns the states of all names with homes.
func (qs *Queues) allStates() []*proto.QueueState {
	return slices.AppendSeq(slices.Collect(maps.Values(qs.Driver.QueueStates())), maps.Values(qs.Driver.Titles()))
}

// ownOf returns those of all whose home is this node, or the one with a name, sorted.
func (qs *Queues) ownOf(all []*proto.QueueState, name string) (states []*proto.QueueState) {
	for _, s := range all {
		if qs.Here(s) && (name == "" || s.GetName() == name) {
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b *proto.QueueState) int { return strings.Compare(a.GetName(), b.GetName()) })
	return states
}

// Here reports whether this node is the home of a queue.
func (qs *Queues) Here(s *proto.QueueState) bool {
	return string(s.GetHome()) == string(qs.self[:])
}

// statesPerMessage is the number of queues in one message: with all their deeds they fit into
// a control frame.
const statesPerMessage = 2

// sendStates sends a peer the states of names. An older node, which does not know mail,
// would take a mailbox for a queue.
func (qs *Queues) sendStates(p proto.PeerID, states []*proto.QueueState) {
	if !qs.net.TakesMail(p) {
		states = slices.DeleteFunc(slices.Clone(states), func(s *proto.QueueState) bool { return !proto.NamesQueue(s.GetName()) })
	}
	for some := range slices.Chunk(states, statesPerMessage) {
		qs.Post(p, proto.TypeQueues, &proto.QueueStates{Queues: some})
	}
}
