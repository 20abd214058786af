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
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// queuePrefix begins a target that is a shared queue.
const queuePrefix = "queue:"

// queues joins the room of leases with the others: the tasks whose queues have
// their home here are in the custody of the inbox, which runs what is granted to this
// node too; gossip says who could work.
//
//	Accept ─▶ Taken ─▶ room ── GRANT ─▶ owner's room ─▶ Wait ─▶ slot ─▶ Ready ─▶ handler
//	origin ◀─ PutResult ◀─ End ◀─ room ◀──── ENDED ──── Finish ◀──────────────────┘
type queues struct {
	node   *Node
	driver *ownership.Driver
	log    *ownershipLog
	meter  *queueMeter

	questions questions     // to other nodes
	admins    adminAsks     // questions to admins
	drained   atomic.Bool   // a person wants that this node is given nothing new
	moving    sync.Mutex    // held while homes are handed over
	paused    bool          // this node takes nothing by itself; the watcher's own
	changed   chan struct{} // holds a token when the members may have changed
}

func newQueues(n *Node) *queues {
	q := &queues{node: n, log: newOwnershipLog(n), changed: make(chan struct{}, 1)}
	q.meter = newQueueMeter(q)
	return q
}

// open opens the room. It starts nothing.
func (q *queues) open() (err error) {
	n := q.node
	q.driver, err = ownership.Open(n.ground.store, ownership.Parts{Network: post{n}, Custody: custody{n}, Runner: runner{n}, Prober: runner{n}, Sealer: leaseSeals{n}, Mover: mover{n}, Bodies: n.porter}, ownership.Settings{
		Config: ownership.Config{Random: fillRandom, Deeds: deeds{n}, StallAfter: n.cfg.Limits.StallAfter},
		Self:   n.keys.Peer(), Boot: n.outbox.Boot(), BootID: n.outbox.BootID(),
		Events: q.log.events, Orphan: q.log.orphans, Queue: q.spread, OnMisbehavior: n.net.Offend, Fail: n.cfg.Fail, Clock: n.cfg.Clock, Logger: n.log,
	})
	if err == nil {
		n.porter.open()
	}
	return err
}

// stop gives back what waits here and was not started: the node stops.
func (q *queues) stop() { q.driver.Stop() }

const (
	lastWords     = time.Second           // for what homes are still to be told at a stop
	lastWordsStep = 20 * time.Millisecond // between two looks whether they were
)

// settled waits a little at a stop until the homes know how the runs here ended: else
// they would find out by themselves, and have them run again.
func (q *queues) settled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	tick := time.NewTicker(lastWordsStep)
	defer tick.Stop()
	for {
		if _, unsaid, err := q.driver.Unfinished(ctx); err != nil || unsaid == 0 {
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
		return home, fmt.Errorf("%w: no queue %.128q is known here: on the node that shall be its home: balefire-node queue set NAME --home here; others learn of it when they are connected with that node", ErrNotFound, name)
	}
	return proto.PeerIDFrom(s.GetHome())
}

// stands reports whether from is the home of the queue that a target names.
func (q *queues) stands(target string, from proto.PeerID) bool {
	name, ok := strings.CutPrefix(target, queuePrefix)
	return ok && string(q.driver.QueueStates()[name].GetHome()) == string(from[:])
}

// wasHome reports whether from is, or was, the home of the queue that a task was sent to:
// what a home has ended stays so when the queue moves on before the origin hears of it.
func (q *queues) wasHome(target string, from proto.PeerID) bool {
	name, ok := strings.CutPrefix(target, queuePrefix)
	return ok && q.driver.WasHome(name, from)
}

// Admit says whether a task of origin may enter a queue here. One whose home is
// elsewhere by now takes it too, through this node: the task is signed for this one,
// and its origin could not send it to the other.
func (q *queues) Admit(name string, origin proto.PeerID) inbox.Verdict {
	s := q.driver.QueueStates()[name]
	switch {
	case s == nil:
		return inbox.Verdict{Code: proto.CodeNoHandler, Detail: "this node knows no such queue"}
	case s.GetDraining():
		return inbox.Verdict{Code: proto.CodeDraining, Detail: "the queue takes no new tasks"}
	case len(s.GetAllow()) > 0 && !inbox.Allowed(s.GetAllow(), origin, members{q.node.book}):
		return inbox.Verdict{Code: proto.CodeDenied, Detail: "the queue's allow list does not name the origin"}
	}
	return inbox.Verdict{}
}

// Taken gives the room a task that is on disk.
func (q *queues) Taken(id proto.TaskID, r *proto.Record) {
	q.node.porter.hold(id, r)
	t := leaseTask(id, r)
	t.MayHaveRun = q.node.mayHaveRun(r)
	q.driver.Add(t, r.GetCancel())
}

// Cancel asks for the end of a task of a queue. Until one that moved has ended its
// origin says the wish again, and each time it goes after the task.
func (q *queues) Cancel(ctx context.Context, id proto.TaskID) (v inbox.Verdict, known bool, err error) {
	where, err := q.driver.Cancel(ctx, id)
	if where == ownership.LocationMoved {
		v = inbox.Verdict{Code: proto.CodeBusy, Detail: "it moved with its queue, and the wish goes after it"}
	}
	return v, where != ownership.LocationUnknown, err
}

// Ready says that a slot is free for what was granted to this node.
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
		q.node.porter.ran(id)
	}
	return inbox.LeaseStart{Epoch: s.Epoch, Attempt: s.Attempt}, ok
}

// Ended takes the end of it.
func (q *queues) Ended(ctx context.Context, id proto.TaskID, e inbox.LeaseEnd) {
	var err error
	if e.File != "" {
		e = q.node.porter.pack(ctx, id, e)
	}
	defer q.node.porter.ran(id)
	if e.Outcome != nil {
		err = q.driver.Finish(ctx, id, e.Outcome)
	} else {
		err = q.driver.Fail(ctx, id, &proto.Released{Cause: e.Cause, Reason: e.Reason, RetryAfterMs: uint64(e.RetryAfter.Milliseconds()), MaxAttempts: e.MaxAttempts})
	}
	if err != nil && !errors.Is(err, ownership.ErrStopped) {
		q.node.log.Error("the end of a granted task could not be written", "task", id.String(), "err", err)
	}
}

// Probed takes what the handler says of a task that ran when the node died.
func (q *queues) Probed(ctx context.Context, id proto.TaskID, found inbox.Probe, o *proto.Outcome) {
	defer q.node.porter.ran(id)
	err := q.driver.Probed(ctx, id, found == inbox.Done, found == inbox.Unknown, o)
	if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
		q.node.log.Error("what a handler says of a granted task could not be written", "task", id.String(), "err", err)
	}
}

// leaseTask is a task as its home's machine knows it.
func leaseTask(id proto.TaskID, r *proto.Record) ownership.Task {
	return ownership.Task{
		ID: id, Origin: originOf(r), Queue: r.GetQueue(), Kind: r.GetKind(), Class: r.GetClass(), Mode: r.GetMode(), Key: r.GetOrderingKey(), Block: r.GetOnDead() == "block",
		Labels: r.GetRequire(), Prefer: r.GetPrefer(), NotBefore: r.GetDueMs(), NotAfter: r.GetNotAfterMs(), MaxAttempts: r.GetMaxAttempts(), MaxResult: r.GetMaxResult(),
	}
}

// originOf is the origin of a task in custody here, zero if its record names none.
func originOf(r *proto.Record) (p proto.PeerID) {
	copy(p[:], r.GetPeer())
	return p
}

// heard takes news of a member.
func (q *queues) heard(e gossip.Event) {
	if e.Kind == gossip.Changed && (e.To == gossip.Dead || e.To == gossip.Left) {
		q.driver.Dead(e.Peer)
	}
	q.warnHome(e)
	q.look()
}

func (q *queues) look() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

const (
	memberEvery = time.Second      // between two looks at who could work
	spreadEvery = 30 * time.Second // between two tellings of what queues have their home here
	scanEvery   = 5 * time.Second  // between two looks for what has come apart
)

// watch tells the room who could work, and others of the queues that are here.
func (q *queues) watch(ctx context.Context) error {
	members, spread, scan := time.NewTicker(memberEvery), time.NewTicker(spreadEvery), time.NewTicker(scanEvery)
	defer members.Stop()
	defer spread.Stop()
	defer scan.Stop()
	told, idle := map[proto.PeerID]ownership.Node{}, map[proto.TaskID]bool{}
	for {
		q.tellMembers(told)
		q.settleHomes(ctx)
		q.node.finishMoves(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-members.C:
		case <-q.changed:
		case <-spread.C:
			q.spread("")
			q.confirmHomes(ctx)
		case <-scan.C:
			idle = q.reconcile(ctx, idle)
		}
	}
}

// works reports whether p may be given tasks of queues, and be the home of one: what it
// says of results would be refused without the role work. Its certificate may have ended,
// if it can be renewed.
func (n *Node) works(p proto.PeerID) bool {
	if p == n.keys.Peer() {
		return n.book.Self().Member.HasRole(identity.RoleWork)
	}
	m, member := n.book.Renewable(p)
	return member && m.HasRole(identity.RoleWork)
}

// tellMembers tells the room what has changed of the members.
func (q *queues) tellMembers(told map[proto.PeerID]ownership.Node) {
	n := q.node
	paused := n.gossip.SelfPaused()
	if paused && !q.paused {
		q.meter.pauses.Inc()
	}
	q.paused = paused
	q.driver.SetActive(!paused)
	all := []ownership.Node{q.selfNode()}
	for _, m := range n.gossip.Members() {
		if r := m.Record; r != nil {
			_, sealable := n.book.KeyRecord(m.Peer)
			_, member := n.book.Member(m.Peer) // one whose certificate may be renewed keeps what it has, and gets nothing new
			all = append(all, ownership.Node{Member: dispatch.Member{
				Peer: m.Peer, Alive: m.Eligible && sealable && n.works(m.Peer), Draining: !member || r.GetState() != proto.NodeRunning,
				Kinds: r.GetKinds(), Labels: r.GetLabels(), Slots: int(r.GetLoad().GetSlots()), Busy: int(r.GetLoad().GetBusy()),
				Load: r.GetLoad().GetCpuPermille(), Priority: r.GetPriority(),
			}})
		}
	}
	for _, x := range all {
		if old, ok := told[x.Peer]; !ok || !reflect.DeepEqual(old, x) {
			told[x.Peer] = x
			q.driver.SetNode(x)
		}
	}
	for p := range told {
		if !slices.ContainsFunc(all, func(x ownership.Node) bool { return x.Peer == p }) { // forgotten, or revoked
			delete(told, p)
			q.driver.SetNode(ownership.Node{Member: dispatch.Member{Peer: p}})
		}
	}
	q.dropRevoked()
}

// dropRevoked has the room drop what nodes said of queues that were revoked since.
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

// selfNode is this node as a member. Its own queues it works on, cut off or not.
func (q *queues) selfNode() ownership.Node {
	n := q.node
	load := n.load()
	return ownership.Node{Member: dispatch.Member{
		Peer: n.keys.Peer(), Alive: n.running.Load() && n.works(n.keys.Peer()), Draining: n.phase() != proto.NodeRunning,
		Kinds: n.kinds(), Labels: n.cfg.Mesh.Labels, Slots: int(load.Slots), Busy: int(load.Busy),
		Load: load.CpuPermille, Priority: uint32(n.cfg.Mesh.Priority),
	}}
}

// spread tells everybody who is connected of a queue whose home is here, of all with
// an empty name.
func (q *queues) spread(name string) {
	if states := q.hereStates(name); len(states) > 0 {
		for _, s := range q.node.net.Peers() {
			if s.Linked {
				q.tell(s.Peer, states)
			}
		}
	}
}

// greet tells a new neighbour of the queues that are here.
func (q *queues) greet(p proto.PeerID) { q.tell(p, q.hereStates("")) }

func (q *queues) hereStates(name string) (states []*proto.QueueState) {
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

// toldAtOnce is how many queues one message tells of: with all their deeds they fit
// into a frame of control.
const toldAtOnce = 2

func (q *queues) tell(p proto.PeerID, states []*proto.QueueState) {
	for some := range slices.Chunk(states, toldAtOnce) {
		post{q.node}.Post(p, proto.TypeQueues, &proto.QueueStates{Queues: some})
	}
}

// post is the network of the room.
type post struct{ node *Node }

// Post sends a message over the present link, or has one made for the next.
func (p post) Post(to proto.PeerID, t proto.MessageType, body proto.Body) {
	n := p.node
	payload, err := proto.Encode(nil, body)
	if err == nil {
		err = n.net.Post(to, &proto.Message{Type: t, Payload: payload, Timestamp: n.cfg.Clock.Now().UnixNano()})
	}
	switch {
	case errors.Is(err, transport.ErrNotConnected):
		n.net.Want(to)
	case err != nil:
		n.log.Debug("a message of ownership was not sent", "type", t.String(), "to", to, "err", err)
	default:
		n.queues.log.said.WithLabelValues(strings.ToLower(t.String())).Inc()
	}
}
