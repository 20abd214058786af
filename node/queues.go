package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// queues connects the ownership subsystem with the others: the inbox stores the tasks
// of queues whose home is this node, and also runs the tasks granted to this node;
// gossip reports which members could work.
//
//	Accept ─▶ Taken ─▶ driver ── GRANT ─▶ owner's driver ─▶ Wait ─▶ slot ─▶ Ready ─▶ handler
//	origin ◀─ PutResult ◀─ End ◀─ driver ◀── ENDED ── Finish ◀──────────────────────────┘
type queues struct {
	node    *Node
	driver  *ownership.Driver
	log     *ownershipLog
	metrics *queueMetrics

	timelines timelineRequests // open questions to other nodes
	admins    adminRequests    // questions to admins
	drained   atomic.Bool      // an operator wants this node to get nothing new
	moving    sync.Mutex       // held during handoffs
	paused    bool             // this node has paused itself; used by watch only
	changed   chan struct{}    // receives a token when the members may have changed
}

func newQueues(n *Node) *queues {
	q := &queues{node: n, log: newOwnershipLog(n), changed: make(chan struct{}, 1)}
	q.metrics = newQueueMetrics(q)
	return q
}

// open opens the ownership subsystem. It starts nothing.
func (q *queues) open() (err error) {
	n := q.node
	q.driver, err = ownership.Open(n.storage.Store, ownership.Parts{Network: ownershipSender{n}, Custody: ownershipCustody{n}, Runner: ownershipRunner{n}, Prober: ownershipRunner{n}, Sealer: ownershipSealer{n}, Mover: ownershipMover{n}, Bodies: n.bodyTransfer}, ownership.Settings{
		Config: ownership.Config{Random: fillRandom, Deeds: ownershipDeeds{n}, StallAfter: n.cfg.Limits.StallAfter},
		Self:   n.keys.Peer(), Boot: n.outbox.Boot(), BootID: n.outbox.BootID(),
		Events: q.log.events, Orphan: q.log.orphans, Queue: q.announce, OnMisbehavior: n.net.Offend, Fail: n.cfg.Fail, Clock: n.cfg.Clock, Logger: n.log,
	})
	if err == nil {
		n.bodyTransfer.open()
	}
	return err
}

// stop returns the tasks that wait here and were not started, because the node stops.
func (q *queues) stop() { q.driver.Stop() }

const (
	reportTimeout = time.Second           // how long a stop waits until the homes know all results
	reportPoll    = 20 * time.Millisecond // interval between checks of that
)

// waitReported waits a bounded time at a stop until the homes know how the runs here ended.
// Otherwise they would find out later and run the tasks again.
func (q *queues) waitReported(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	tick := time.NewTicker(reportPoll)
	defer tick.Stop()
	for {
		if _, unsent, err := q.driver.Unfinished(ctx); err != nil || unsent == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// homeOf returns the home of a queue.
func (q *queues) homeOf(name string) (home proto.PeerID, err error) {
	s := q.driver.QueueStates()[name]
	if s == nil {
		return home, fmt.Errorf("%w: queue %.128q is not known here: create it on the node that should be its home with balefire-node queue set NAME --home here; other nodes learn of it when they connect to that node", wire.ErrNotFound, name)
	}
	return proto.PeerIDFrom(s.GetHome())
}

// isHome reports whether from is the home of the queue that a target names.
func (q *queues) isHome(target string, from proto.PeerID) bool {
	name, ok := strings.CutPrefix(target, proto.QueuePrefix)
	return ok && string(q.driver.QueueStates()[name].GetHome()) == string(from[:])
}

// wasHome reports whether from is, or was, the home of the queue that a task was sent
// to: the end of a task stays valid if the queue moves before the origin learns of it.
func (q *queues) wasHome(target string, from proto.PeerID) bool {
	name, ok := strings.CutPrefix(target, proto.QueuePrefix)
	return ok && q.driver.WasHome(name, from)
}

// Admit decides whether a task of origin may enter a queue here. A node that is no
// longer the home accepts the task too and passes it on: the task is signed for this
// node, and its origin cannot send it to another one.
func (q *queues) Admit(name string, origin proto.PeerID) inbox.Verdict {
	s := q.driver.QueueStates()[name]
	switch {
	case s == nil:
		return inbox.Verdict{Code: proto.CodeNoHandler, Detail: "this node does not know the queue"}
	case s.GetDraining():
		return inbox.Verdict{Code: proto.CodeDraining, Detail: "the queue accepts no new tasks"}
	case len(s.GetAllow()) > 0 && !inbox.Allowed(s.GetAllow(), origin, inboxMembers{q.node.book}):
		return inbox.Verdict{Code: proto.CodeDenied, Detail: "the queue's allow list does not name the origin"}
	}
	return inbox.Verdict{}
}

// Taken passes a task that is on disk to the ownership subsystem.
func (q *queues) Taken(id proto.TaskID, r *proto.Record) {
	q.node.bodyTransfer.track(id, r)
	t := leaseTask(id, r)
	t.MayHaveRun = q.node.mayHaveRun(r)
	q.driver.Add(t, r.GetCancel())
}

// Cancel requests the end of a task of a queue. Until a task that moved has ended, its
// origin repeats the request, and each time it is forwarded to the new home.
func (q *queues) Cancel(ctx context.Context, id proto.TaskID) (v inbox.Verdict, known bool, err error) {
	where, err := q.driver.Cancel(ctx, id)
	if where == ownership.LocationMoved {
		v = inbox.Verdict{Code: proto.CodeBusy, Detail: "it moved with its queue; the request is forwarded"}
	}
	return v, where != ownership.LocationUnknown, err
}

// Ready reports that a slot is free for a task granted to this node.
func (q *queues) Ready(ctx context.Context, id proto.TaskID, onCrash inbox.OnCrash) (inbox.LeaseStart, bool) {
	p := ownership.PolicyPark
	switch onCrash {
	case inbox.OnCrashRetry:
		p = ownership.PolicyRetry
	case inbox.OnCrashProbe:
		p = ownership.PolicyProbe
	}
	s, ok := q.driver.Ready(ctx, id, p)
	if !ok {
		q.node.bodyTransfer.release(id)
	}
	return inbox.LeaseStart{Epoch: s.Epoch, Attempt: s.Attempt}, ok
}

// Ended handles the end of a run.
func (q *queues) Ended(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) {
	var err error
	if e.File != "" {
		e = q.node.bodyTransfer.sealResult(ctx, id, e)
	}
	defer q.node.bodyTransfer.release(id)
	if e.Outcome != nil {
		err = q.driver.Finish(ctx, id, e.Outcome)
	} else {
		err = q.driver.Fail(ctx, id, &proto.Released{Cause: e.Cause, Reason: e.Reason, RetryAfterMs: uint64(e.RetryAfter.Milliseconds()), MaxAttempts: e.MaxAttempts})
	}
	if err != nil && !errors.Is(err, ownership.ErrStopped) {
		q.node.log.Error("could not store the end of a granted task", "task", id.String(), "err", err)
	}
}

// Probed handles the result of probing a task that was running when the node died.
func (q *queues) Probed(ctx context.Context, id proto.TaskID, found handler.ProbeResult, o *proto.Outcome) {
	defer q.node.bodyTransfer.release(id)
	err := q.driver.Probed(ctx, id, found == handler.Done, found == handler.Unknown, o)
	if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
		q.node.log.Error("could not store the probe result of a granted task", "task", id.String(), "err", err)
	}
}

// leaseTask converts the record of a task for the ownership subsystem.
func leaseTask(id proto.TaskID, r *proto.Record) ownership.Task {
	return ownership.Task{
		ID: id, Origin: originOf(r), Queue: r.GetQueue(), Kind: r.GetKind(), Class: r.GetClass(), Mode: r.GetMode(), Key: r.GetOrderingKey(), Block: r.GetOnDead() == "block",
		Labels: r.GetRequire(), Prefer: r.GetPrefer(), NotBefore: r.GetDueMs(), NotAfter: r.GetNotAfterMs(), MaxAttempts: r.GetMaxAttempts(), MaxResult: r.GetMaxResult(),
	}
}

// originOf returns the origin of a task stored here, or zero if its record names none.
func originOf(r *proto.Record) (p proto.PeerID) {
	copy(p[:], r.GetPeer())
	return p
}

// memberChanged handles an event of gossip about a member.
func (q *queues) memberChanged(e gossip.Event) {
	if e.Kind == gossip.Changed && (e.To == gossip.Dead || e.To == gossip.Left) {
		q.driver.Dead(e.Peer)
	}
	q.alertHome(e)
	q.wake()
}

func (q *queues) wake() {
	select {
	case q.changed <- struct{}{}:
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
func (q *queues) watch(ctx context.Context) error {
	members, spread, scan := time.NewTicker(memberEvery), time.NewTicker(announceEvery), time.NewTicker(scanEvery)
	defer members.Stop()
	defer spread.Stop()
	defer scan.Stop()
	last, idle := map[proto.PeerID]ownership.Node{}, map[proto.TaskID]bool{}
	for {
		q.updateMembers(last)
		q.checkHomes(ctx)
		q.node.finishMoves(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-members.C:
		case <-q.changed:
		case <-spread.C:
			q.announce("")
			q.confirmHomes(ctx)
		case <-scan.C:
			idle = q.reconcile(ctx, idle)
		}
	}
}

// mayWork reports whether p may be granted tasks of queues and be the home of one: its
// results would be rejected without the role work. An expired certificate is accepted if
// it can be renewed.
func (n *Node) mayWork(p proto.PeerID) bool {
	if p == n.keys.Peer() {
		return n.book.Self().Member.HasRole(identity.RoleWork)
	}
	m, member := n.book.Renewable(p)
	return member && m.HasRole(identity.RoleWork)
}

// updateMembers tells the ownership subsystem what has changed about the members.
func (q *queues) updateMembers(last map[proto.PeerID]ownership.Node) {
	n := q.node
	paused := n.gossip.SelfPaused()
	if paused && !q.paused {
		q.metrics.pauses.Inc()
	}
	q.paused = paused
	q.driver.SetActive(!paused)
	all := []ownership.Node{q.selfNode()}
	for _, m := range n.gossip.Members() {
		if r := m.Record; r != nil {
			_, sealable := n.book.KeyRecord(m.Peer)
			_, member := n.book.Member(m.Peer) // a member whose certificate can be renewed keeps its tasks and gets no new ones
			all = append(all, ownership.Node{Member: dispatch.Member{
				Peer: m.Peer, Alive: m.Eligible && sealable && n.mayWork(m.Peer), Draining: !member || r.GetState() != proto.NodeRunning,
				Kinds: r.GetKinds(), Labels: r.GetLabels(), Slots: int(r.GetLoad().GetSlots()), Busy: int(r.GetLoad().GetBusy()),
				Load: r.GetLoad().GetCpuPermille(), Priority: r.GetPriority(),
			}})
		}
	}
	for _, x := range all {
		if old, ok := last[x.Peer]; !ok || !reflect.DeepEqual(old, x) {
			last[x.Peer] = x
			q.driver.SetNode(x)
		}
	}
	for p := range last {
		if !slices.ContainsFunc(all, func(x ownership.Node) bool { return x.Peer == p }) { // forgotten or revoked
			delete(last, p)
			q.driver.SetNode(ownership.Node{Member: dispatch.Member{Peer: p}})
		}
	}
	q.dropRevoked()
}

// dropRevoked drops the queue states of homes that were revoked since.
func (q *queues) dropRevoked() {
	done := map[string]bool{}
	for _, s := range q.driver.QueueStates() {
		p, err := proto.PeerIDFrom(s.GetHome())
		if err != nil || len(s.GetRoot()) > 0 || done[string(p[:])] || q.here(s) || !q.node.book.Revoked(p) {
			continue
		}
		done[string(p[:])] = true
		q.driver.Revoked(p)
	}
}

// selfNode returns this node as a member. It works on its own queues even when it is
// isolated.
func (q *queues) selfNode() ownership.Node {
	n := q.node
	load := n.load()
	return ownership.Node{Member: dispatch.Member{
		Peer: n.keys.Peer(), Alive: n.running.Load() && n.mayWork(n.keys.Peer()), Draining: n.phase() != proto.NodeRunning,
		Kinds: n.kinds(), Labels: n.cfg.Mesh.Labels, Slots: int(load.Slots), Busy: int(load.Busy),
		Load: load.CpuPermille, Priority: uint32(n.cfg.Mesh.Priority),
	}}
}

// announce announces a queue whose home is this node, or all such queues if name is empty,
// to all connected peers.
func (q *queues) announce(name string) {
	if states := q.ownStates(name); len(states) > 0 {
		for _, s := range q.node.net.Peers() {
			if s.Linked {
				q.sendStates(s.Peer, states)
			}
		}
	}
}

// announceTo announces the queues of this node to a new peer.
func (q *queues) announceTo(p proto.PeerID) { q.sendStates(p, q.ownStates("")) }

func (q *queues) ownStates(name string) (states []*proto.QueueState) {
	for _, s := range q.driver.QueueStates() {
		if q.here(s) && (name == "" || s.GetName() == name) {
			states = append(states, s)
		}
	}
	slices.SortFunc(states, func(a, b *proto.QueueState) int { return strings.Compare(a.GetName(), b.GetName()) })
	return states
}

// here reports whether this node is the home of a queue.
func (q *queues) here(s *proto.QueueState) bool {
	self := q.node.keys.Peer()
	return string(s.GetHome()) == string(self[:])
}

// statesPerMessage is the number of queues in one message: with all their deeds they fit into
// a control frame.
const statesPerMessage = 2

func (q *queues) sendStates(p proto.PeerID, states []*proto.QueueState) {
	for some := range slices.Chunk(states, statesPerMessage) {
		ownershipSender{q.node}.Post(p, proto.TypeQueues, &proto.QueueStates{Queues: some})
	}
}

// ownershipSender sends the messages of the ownership subsystem.
type ownershipSender struct{ node *Node }

// Post sends a message over the current link, or requests a connection for the next
// attempt.
func (s ownershipSender) Post(to proto.PeerID, t proto.MessageType, body proto.Body) {
	n := s.node
	payload, err := proto.Encode(nil, body)
	if err == nil {
		err = n.net.Post(to, &proto.Message{Type: t, Payload: payload, Timestamp: n.cfg.Clock.Now().UnixNano()})
	}
	switch {
	case errors.Is(err, transport.ErrNotConnected):
		n.net.Want(to)
	case err != nil:
		n.log.Debug("could not send an ownership message", "type", t.String(), "to", to, "err", err)
	default:
		n.queues.log.sent.WithLabelValues(strings.ToLower(t.String())).Inc()
	}
}
