package node

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Queues lists the known shared queues by name.
func (n *Node) Queues(ctx context.Context) []wire.Queue {
	out := []wire.Queue{}
	states := n.queues.driver.QueueStates()
	for _, name := range slices.Sorted(maps.Keys(states)) {
		out = append(out, n.queueView(ctx, states[name]))
	}
	return out
}

// Queue returns one queue.
func (n *Node) Queue(ctx context.Context, name string) (wire.Queue, error) {
	s := n.queues.driver.QueueStates()[name]
	if s == nil {
		_, err := n.queues.homeOf(name)
		return wire.Queue{}, err
	}
	return n.queueView(ctx, s), nil
}

func (n *Node) queueView(ctx context.Context, s *proto.QueueState) wire.Queue {
	q := wire.Queue{Name: s.GetName(), Generation: s.GetGeneration(), Members: []wire.QueueMember{}, Changed: msOrNil(s.GetChangedMs())}
	q.Home, q.HomeID = n.peerNameID(s.GetHome())
	q.Here = q.HomeID == n.keys.Peer().String()
	q.SeizedFrom, _ = n.peerNameID(s.GetSeizedFrom())
	q.QueueRules = wire.QueueRules{
		Strategy: cmp.Or(s.GetStrategy(), dispatch.Names()[0]), Paused: s.GetPaused(), Draining: s.GetDraining(), Concurrency: int(s.GetConcurrency()),
		NodeConcurrency: int(s.GetNodeConcurrency()), Labels: s.GetLabels(), Allow: s.GetAllow(), LeaseMs: int(s.GetLeaseMs()), OnLostLease: s.GetOnLostLease(),
	}
	if q.Lanes = LanesOrigin; s.GetSharedLanes() {
		q.Lanes = LanesShared
	}
	for _, k := range s.GetKinds() {
		q.Kinds = append(q.Kinds, wire.KindLimit{Kind: k.GetKind(), Concurrency: int(k.GetConcurrency()), NodeConcurrency: int(k.GetNodeConcurrency())})
	}
	q.Homes, q.MemberRules = n.nodeRules(s)
	v, err := n.queues.driver.Queue(ctx, s.GetName())
	if err != nil {
		return q
	}
	q.QueueCounts = wire.QueueCounts{Waiting: v.Waiting, Owned: v.Owned, Going: v.Going}
	if !q.Here {
		q.Alarm = n.homeAlarm(ctx, s)
		return q // the tasks that are still here are moving to the home
	}
	for _, l := range v.Blocked {
		x := wire.BlockedLane{Key: l.Key, Waiting: l.Waiting}
		if !l.DeadHead.IsZero() {
			x.Died = l.DeadHead.String()
		}
		if !l.Origin.IsZero() {
			x.Origin = n.peerName(l.Origin)
		}
		q.Blocked = append(q.Blocked, x)
	}
	for _, m := range v.Members {
		x := wire.QueueMember{
			Alive: m.Alive, Draining: m.Draining, Kinds: append([]string{}, m.Kinds...), Labels: m.Labels, Slots: m.Slots, Busy: m.Busy,
			Priority: int(m.Priority), Owned: m.Owned,
		}
		x.Name, x.ID = n.peerNameID(m.Peer[:])
		q.Members = append(q.Members, x)
	}
	return q
}

// Values of QueueRules.Lanes: which tasks with the same ordering key run one after the
// other.
const (
	LanesOrigin = "origin" // tasks of the same origin
	LanesShared = "shared" // tasks of all origins
)

// queueRE matches valid queue names.
var queueRE = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// SetQueue changes the settings of a queue whose home is this node, or creates the
// queue.
func (n *Node) SetQueue(ctx context.Context, name string, s wire.QueueSettings) (wire.Queue, error) {
	if err := n.checkQueue(name, s); err != nil {
		return wire.Queue{}, err
	}
	change, err := n.change(s)
	if err != nil {
		return wire.Queue{}, err
	}
	var deed *proto.Signed
	if n.queues.driver.QueueStates()[name] == nil {
		if deed, err = n.queueDeed(ctx, name); err != nil {
			return wire.Queue{}, fmt.Errorf("queue set: %w", err)
		}
	}
	switch err := n.queues.driver.CreateQueue(ctx, name, deed, change); {
	case errors.Is(err, ownership.ErrNameTaken):
		return wire.Queue{}, fmt.Errorf("queue set: %w: %w", wire.ErrRefused, err)
	case err != nil:
		return wire.Queue{}, fmt.Errorf("queue set: %w", err)
	}
	if err := n.audit(ctx, "queue.set", name); err != nil {
		return wire.Queue{}, err
	}
	return n.Queue(ctx, name)
}

func (n *Node) checkQueue(name string, s wire.QueueSettings) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: %s", wire.ErrInvalid, fmt.Sprintf(format, a...))
	}
	state := n.queues.driver.QueueStates()[name]
	self := n.keys.Peer()
	switch {
	case !queueRE.MatchString(name):
		return bad("queue %.80q: use 1-63 of a-z 0-9 . _ -", name)
	case !oneOf(s.Home, "", "here"):
		return bad("home %.60q: must be here; use queue handoff to move it to another node", s.Home)
	case state == nil && s.Home == "":
		_, err := n.queues.homeOf(name)
		return err
	case state != nil && string(state.GetHome()) != string(self[:]):
		home, _ := n.peerNameID(state.GetHome())
		return fmt.Errorf("%w: the home of queue %s is %s: set it there", wire.ErrRefused, name, home)
	case s.OnLostLease != nil && !oneOf(*s.OnLostLease, "", "continue", "stop"):
		return bad("on_lost_lease %.20q: must be continue or stop", *s.OnLostLease)
	case s.Lanes != nil && !oneOf(*s.Lanes, LanesOrigin, LanesShared):
		return bad("lanes %.20q: must be origin or shared", *s.Lanes)
	case negative(s.Concurrency) || negative(s.NodeConcurrency):
		return bad("limits must not be negative")
	case s.LeaseMs != nil && *s.LeaseMs != 0 && (*s.LeaseMs < 5000 || *s.LeaseMs > 3_600_000):
		return bad("a lease must last from 5 seconds to an hour")
	}
	if s.Strategy != nil {
		if _, err := dispatch.New(*s.Strategy); err != nil {
			return bad("strategy %.40q: must be one of %s", *s.Strategy, strings.Join(dispatch.Names(), ", "))
		}
	}
	for _, list := range []*[]string{s.Labels, s.Allow} {
		if list != nil && !proto.ValidLabels(*list) {
			return bad("labels and allow may have at most 32 entries of 1 to 128 bytes")
		}
	}
	if s.Allow != nil {
		if err := inbox.CheckAllow(*s.Allow); err != nil {
			return bad("%v", err)
		}
	}
	if s.Kinds != nil {
		for _, k := range *s.Kinds {
			if len(*s.Kinds) > 64 || !proto.ValidKind(k.Kind) || k.Concurrency < 0 || k.NodeConcurrency < 0 {
				return bad("at most 64 limits of kinds are allowed, each with a valid kind and no negative number")
			}
		}
	}
	return nil
}

func negative(n *int) bool { return n != nil && (*n < 0 || *n > 1<<20) }

// applySettings applies s to the state of a queue.
func applySettings(s wire.QueueSettings, q *proto.QueueState) {
	number := func(to *uint32, v *int) {
		if v != nil {
			*to = uint32(*v)
		}
	}
	number(&q.Concurrency, s.Concurrency)
	number(&q.NodeConcurrency, s.NodeConcurrency)
	number(&q.LeaseMs, s.LeaseMs)
	if s.Strategy != nil {
		q.Strategy = *s.Strategy
	}
	if s.Paused != nil {
		q.Paused = *s.Paused
	}
	if s.Draining != nil {
		q.Draining = *s.Draining
	}
	if s.Labels != nil {
		q.Labels = *s.Labels
	}
	if s.Allow != nil {
		q.Allow = *s.Allow
	}
	if s.OnLostLease != nil {
		q.OnLostLease = *s.OnLostLease
	}
	if s.Lanes != nil {
		q.SharedLanes = *s.Lanes == LanesShared
	}
	if s.Kinds != nil {
		q.Kinds = nil
		for _, k := range *s.Kinds {
			q.Kinds = append(q.Kinds, &proto.KindLimit{Kind: k.Kind, Concurrency: uint32(k.Concurrency), NodeConcurrency: uint32(k.NodeConcurrency)})
		}
	}
}

// Leases lists the leases that this node granted, then those that it owns.
func (n *Node) Leases(ctx context.Context, f wire.LeaseFilter) ([]wire.Lease, error) {
	limit, err := wire.PageSize(f.Limit)
	if err != nil {
		return nil, err
	}
	if !oneOf(f.Role, "", wire.RoleHome, wire.RoleOwner) {
		return nil, fmt.Errorf("%w: role %.20q: must be home or owner", wire.ErrInvalid, f.Role)
	}
	var owner proto.PeerID
	if f.Owner != "" {
		p, err := n.findPeer(f.Owner)
		if err != nil {
			return nil, err
		}
		owner = p.Peer
	}
	match := func(v ownership.LeaseView) bool {
		holder := v.Peer
		if !v.Home {
			holder = n.keys.Peer()
		}
		return (f.Queue == "" || f.Queue == v.Queue) && (f.Role == "" || v.Home == (f.Role == wire.RoleHome)) && (f.Owner == "" || holder == owner)
	}
	found, err := n.queues.driver.Leases(ctx, match, limit)
	out := make([]wire.Lease, len(found))
	for i, v := range found {
		out[i] = n.leaseView(v)
	}
	return out, err
}

func (n *Node) leaseView(v ownership.LeaseView) wire.Lease {
	l := wire.Lease{
		Task: v.Task.String(), Queue: v.Queue, Kind: v.Kind, Role: wire.RoleOwner, State: v.State, Epoch: epochText(v.Epoch),
		Attempts: v.Attempts, Abandons: v.Abandons, Cancel: v.Cancel, Lapsed: v.Lapsed, Granted: msOrNil(v.GrantedMs),
	}
	if v.Home {
		l.Role = wire.RoleHome
	}
	l.Peer, l.PeerID = n.peerNameID(v.Peer[:])
	if !v.Lapsed {
		l.Until = new(n.cfg.Clock.Now().Add(v.Left).UTC())
	}
	return l
}

func epochText(s proto.Seq) string { return s.String() }

// ReleaseLease revokes the lease of one task on behalf of an operator.
func (n *Node) ReleaseLease(ctx context.Context, task string) (wire.Lease, error) {
	id, err := proto.ParseTaskID(task)
	if err != nil {
		if id, err = n.FindByPrefix(task); err != nil {
			return wire.Lease{}, err
		}
	}
	before, known, err := n.queues.driver.Task(ctx, id)
	if err != nil {
		return wire.Lease{}, err
	}
	if !known {
		return wire.Lease{}, fmt.Errorf("%w: task %s is not in a queue whose home is this node: release the lease on its home", wire.ErrNotFound, id)
	}
	done, err := n.queues.driver.Recover(ctx, id)
	if err != nil {
		return wire.Lease{}, err
	}
	if !done {
		return n.leaseView(before.LeaseView), fmt.Errorf("%w: task %s has no lease that can be revoked: no node owns it, or it may have been started and must not start twice", wire.ErrRefused, id)
	}
	if err := n.audit(ctx, "lease.release", id.String()); err != nil {
		return wire.Lease{}, err
	}
	after, known, err := n.queues.driver.Task(ctx, id)
	if !known {
		after = before
	}
	return n.leaseView(after.LeaseView), err
}

// RecoverLeases revokes at once the leases of owners that are dead or have left, or
// those of the named owner, which must not be alive; with dryRun it only lists them. The
// lease of a task that may have been started and must not start twice is kept: its home
// waits for the owner.
func (n *Node) RecoverLeases(ctx context.Context, owner string, dryRun bool) (wire.Recovered, error) {
	r := wire.Recovered{DryRun: dryRun, Taken: []wire.Lease{}, Kept: []wire.Lease{}}
	lost := n.lostOwners()
	if owner != "" {
		p, err := n.findOtherPeer(owner)
		if err != nil {
			return r, err
		}
		if m, ok := n.gossip.Member(p.Peer); ok && m.Status == gossip.Alive {
			return r, fmt.Errorf("%w: %s is alive: use balefire-node lease release to revoke the lease of one task", wire.ErrRefused, p.Label())
		}
		lost = map[proto.PeerID]bool{p.Peer: true}
	}
	found, err := n.queues.driver.Leases(ctx, func(v ownership.LeaseView) bool { return v.Home && lost[v.Peer] && !v.Lapsed }, maxHeld)
	if err != nil {
		return r, err
	}
	if !dryRun && len(found) > 0 {
		if err := n.audit(ctx, "mesh.recover", fmt.Sprintf("%d leases of %s", len(found), cmp.Or(owner, "dead owners"))); err != nil {
			return r, err
		}
	}
	for _, v := range found {
		done := !v.Permitted
		if done && !dryRun {
			if done, err = n.queues.driver.Recover(ctx, v.Task); err != nil {
				return r, err
			}
		}
		if done {
			r.Taken = append(r.Taken, n.leaseView(v))
		} else {
			r.Kept = append(r.Kept, n.leaseView(v))
		}
	}
	return r, nil
}

// lostOwners returns the members that are dead or have left.
func (n *Node) lostOwners() map[proto.PeerID]bool {
	lost := map[proto.PeerID]bool{}
	for _, m := range n.gossip.Members() {
		if m.Status == gossip.Dead || m.Status == gossip.Left {
			lost[m.Peer] = true
		}
	}
	return lost
}

// LeaseConflicts lists the newest rejected claims, oldest first.
func (n *Node) LeaseConflicts(ctx context.Context) []wire.LeaseConflict {
	l := n.queues.log
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]wire.LeaseConflict{}, l.conflicts...)
}

// OwnershipEvents returns up to limit events with a number above after, oldest first.
func (n *Node) OwnershipEvents(ctx context.Context, after uint64, limit int) []wire.OwnershipEvent {
	l := n.queues.log
	l.mu.Lock()
	defer l.mu.Unlock()
	at, _ := slices.BinarySearchFunc(l.lines, after+1, func(k loggedEvent, n uint64) int { return cmp.Compare(k.number, n) })
	out := []wire.OwnershipEvent{}
	for _, k := range l.lines[at:min(len(l.lines), at+max(limit, 0))] {
		out = append(out, l.view(k))
	}
	return out
}

// An ownershipLog keeps the newest ownership events and conflicts in memory.
type ownershipLog struct {
	node     *Node
	count    *prometheus.CounterVec
	sent     *prometheus.CounterVec
	refusals *prometheus.CounterVec

	mu          sync.Mutex
	last        uint64
	lines       []loggedEvent
	jumpedAt    time.Time // latest time that no lease was revoked because the clocks had jumped
	lastRefused string    // queue, home and cause of the refused handoff logged last
	conflicts   []wire.LeaseConflict
}

const (
	maxOwnershipEvents = 4096
	maxConflicts       = 512
)

func newOwnershipLog(n *Node) *ownershipLog {
	l := &ownershipLog{node: n, count: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_ownership_events_total", Help: "Events of the leases that this node granted or owns, by kind.",
	}, []string{"kind"}), sent: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_ownership_messages_total", Help: "Ownership messages sent by this node, by type.",
	}, []string{"type"}), refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "balefire_ownership_refused_total", Help: "Ownership messages rejected because they were damaged or not signed by an authorized node, by type.",
	}, []string{"type"})}
	n.registry.MustRegister(l.count, l.sent, l.refusals)
	return l
}

// appendBounded appends to a list and drops the older half when the list is full.
func appendBounded[T any](list []T, x T, most int) []T {
	if len(list) >= most {
		list = append(list[:0:0], list[len(list)-most/2:]...)
	}
	return append(list, x)
}

// view converts an event for the API.
func (l *ownershipLog) view(k loggedEvent) wire.OwnershipEvent {
	e := k.event
	x := wire.OwnershipEvent{Number: k.number, Time: k.time, Kind: e.Kind.String(), Queue: e.Queue, Epoch: epochText(e.Epoch), Cause: e.Cause}
	if !e.Task.IsZero() {
		x.Task = e.Task.String()
	}
	if !e.Peer.IsZero() {
		x.Peer, x.PeerID = l.node.peerNameID(e.Peer[:])
	}
	return x
}

// events records events that have become durable.
func (l *ownershipLog) events(all []ownership.Event) {
	now := l.node.cfg.Clock.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range all {
		l.count.WithLabelValues(e.Kind.String()).Inc()
		if e.Kind == ownership.EventIgnored {
			continue // late copies are frequent and of no interest
		}
		l.last++
		k := loggedEvent{l.last, now, e}
		l.lines = appendBounded(l.lines, k, maxOwnershipEvents)
		x := l.view(k)
		l.node.logLease(x, e.Kind)
		if e.Kind == ownership.EventSkipped {
			l.jumpedAt = now
		}
		switch e.Kind {
		case ownership.EventConflict:
			l.conflicts = appendBounded(l.conflicts, wire.LeaseConflict{Time: now, Task: x.Task, Queue: x.Queue, Peer: x.Peer, PeerID: x.PeerID, Epoch: x.Epoch, Cause: x.Cause}, maxConflicts)
		case ownership.EventNotTaken:
			if why := x.Queue + x.PeerID + x.Cause; l.lastRefused != why { // many tasks may be refused for the same reason
				l.lastRefused = why
				l.node.log.Warn("the new home of a queue refuses its tasks; they will be sent again", "queue", x.Queue, "home", x.Peer, "task", x.Task, "cause", x.Cause)
				l.node.addEvent("ownership."+x.Kind, e.Peer, x.Cause, map[string]string{"task": x.Task, "queue": x.Queue})
			}
		case ownership.EventSkipped, ownership.EventForged, ownership.EventBlocked:
			l.node.addEvent("ownership."+x.Kind, e.Peer, cmp.Or(e.Cause, x.Kind), map[string]string{"task": x.Task, "queue": x.Queue})
		}
	}
}

// jumpWarnFor is how long a jump of the clocks is reported.
const jumpWarnFor = time.Hour

// lastJump returns the time of the latest jump of the clocks, or zero if there was none
// since the start.
func (l *ownershipLog) lastJump() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.jumpedAt
}

// orphans records results that were rejected.
func (l *ownershipLog) orphans(all []ownership.Orphan) {
	now := l.node.cfg.Clock.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range all {
		c := wire.LeaseConflict{Time: now, Task: o.Task.String(), Epoch: epochText(o.Epoch), State: o.State.Name(), Cause: "a result that was rejected"}
		if len(o.Digest) > 0 {
			c.Digest = "sha256:" + hex.EncodeToString(o.Digest)
		}
		c.Peer, c.PeerID = l.node.peerNameID(o.From[:])
		l.conflicts = appendBounded(l.conflicts, c, maxConflicts)
	}
}

// whyQueued explains the state of a task of a queue whose home is this node.
func (n *Node) whyQueued(ctx context.Context, b wire.Blocker, id proto.TaskID, rec *proto.Record) wire.Blocker {
	v, known, err := n.queues.driver.Task(ctx, id)
	if err != nil || !known {
		return n.whyLeft(ctx, b, id)
	}
	owner, _ := n.peerNameID(v.Peer[:])
	b.Steps = append(b.Steps, fmt.Sprintf("queue %s: home here, state %s, %d attempts, %d leases lost", rec.GetQueue(), v.State, v.Attempts, v.Abandons))
	if n := len(v.Grants); n > 0 {
		b.Steps = append(b.Steps, fmt.Sprintf("lease: epoch %s, %s", epochText(v.Epoch), owner))
	}
	switch {
	case v.Leased:
		b.Cause, b.Fix = fmt.Sprintf("%s has the lease; its result has not arrived yet", owner), "on "+owner+": balefire-node why "+b.Subject
		b.Next = new(n.cfg.Clock.Now().Add(v.Left).UTC())
	case v.State == proto.Running.Name() || v.State == proto.Indeterminate.Name():
		b.Cause = fmt.Sprintf("%s may have started it, it must not start twice, and %s does not answer", owner, owner)
	case v.Paused:
		b.Cause, b.Fix = "the queue is paused", "balefire-node queue resume "+rec.GetQueue()
	case !v.Active:
		b.Cause, b.Fix = "this node considers itself isolated: it "+n.PauseReason()+", and grants only to itself", "balefire-node netcheck"
	case v.Blocked:
		b.Cause = "an earlier task with the same ordering key is a dead letter, and on_dead is block"
		b.Fix = fmt.Sprintf("balefire-node queue unblock %s %s", rec.GetQueue(), rec.GetOrderingKey())
	case !v.AtHead:
		b.Cause = "an earlier task with the same ordering key has not ended"
	case v.Due > 0:
		b.Cause, b.Next = "the last attempt failed: "+cmp.Or(v.Reason, "no reason given")+"; it waits for the next one", new(n.cfg.Clock.Now().Add(v.Due).UTC())
	case v.Serving == 0:
		b.Cause, b.Fix = "no live member serves kind "+rec.GetKind(), "balefire-node handler add "+rec.GetKind()+" on a node that should"
		if len(rec.GetRequire()) > 0 {
			b.Cause, b.Fix = b.Cause+" and has the labels "+strings.Join(rec.GetRequire(), ", "), "set mesh.labels on a node that should, or "+b.Fix
		}
	case v.Available == 0 && v.BackedOff > 0:
		b.Cause = fmt.Sprintf("%d of %d members that serve its kind refused it recently: %s", v.BackedOff, v.Serving, lastGrant(v.Grants))
	case v.Available == 0:
		b.Cause, b.Fix = fmt.Sprintf("all %d members that serve its kind are busy, or a limit of the queue is reached", v.Serving), "balefire-node queue show "+rec.GetQueue()
	default:
		b.Cause = "it is granted next"
	}
	return b
}

func lastGrant(grants []*proto.Granting) string {
	if n := len(grants); n > 0 {
		return cmp.Or(grants[n-1].GetEnded(), "no answer")
	}
	return "no answer"
}
