package queue

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/balefire/balefire/ownership/dispatch"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// List returns the known shared queues by name.
func (qs *Queues) List(ctx context.Context) []wire.Queue {
	out := []wire.Queue{}
	states := qs.Driver.QueueStates()
	for _, name := range slices.Sorted(maps.Keys(states)) {
		out = append(out, qs.view(ctx, states[name]))
	}
	return out
}

// Get returns one queue.
func (qs *Queues) Get(ctx context.Context, name string) (wire.Queue, error) {
	s := qs.Driver.QueueStates()[name]
	if s == nil {
		_, err := qs.HomeOf(name)
		return wire.Queue{}, err
	}
	return qs.view(ctx, s), nil
}

func (qs *Queues) view(ctx context.Context, s *proto.QueueState) wire.Queue {
	q := wire.Queue{Name: s.GetName(), Generation: s.GetGeneration(), Members: []wire.QueueMember{}, Changed: proto.TimeOrNil(s.GetChangedMs())}
	q.Home, q.HomeID = qs.parts.Book.Identify(s.GetHome())
	q.Here = q.HomeID == qs.self.String()
	q.SeizedFrom, _ = qs.parts.Book.Identify(s.GetSeizedFrom())
	q.QueueRules = wire.QueueRules{
		Strategy: cmp.Or(s.GetStrategy(), dispatch.Names()[0]), Paused: s.GetPaused(), Draining: s.GetDraining(), Concurrency: int(s.GetConcurrency()),
		NodeConcurrency: int(s.GetNodeConcurrency()), Labels: s.GetLabels(), Allow: s.GetAllow(), LeaseMs: int(s.GetLeaseMs()), OnLostLease: s.GetOnLostLease(),
	}
	if q.Lanes = wire.LanesOrigin; s.GetSharedLanes() {
		q.Lanes = wire.LanesShared
	}
	for _, k := range s.GetKinds() {
		q.Kinds = append(q.Kinds, wire.KindLimit{Kind: k.GetKind(), Concurrency: int(k.GetConcurrency()), NodeConcurrency: int(k.GetNodeConcurrency())})
	}
	q.Homes, q.MemberRules = qs.nodeRules(s)
	v, err := qs.Driver.Queue(ctx, s.GetName())
	if err != nil {
		return q
	}
	q.QueueCounts = wire.QueueCounts{Waiting: v.Waiting, Owned: v.Owned, Going: v.Going}
	if !q.Here {
		q.Alarm = qs.Alarm(ctx, s)
		return q // the tasks that are still here are moving to the home
	}
	for _, l := range v.Blocked {
		x := wire.BlockedLane{Key: l.Key, Waiting: l.Waiting}
		if !l.DeadHead.IsZero() {
			x.Died = l.DeadHead.String()
		}
		if !l.Origin.IsZero() {
			x.Origin = qs.parts.Book.NameOf(l.Origin)
		}
		q.Blocked = append(q.Blocked, x)
	}
	for _, m := range v.Members {
		x := wire.QueueMember{
			Alive: m.Alive, Draining: m.Draining, Kinds: append([]string{}, m.Kinds...), Labels: m.Labels, Slots: m.Slots, Busy: m.Busy,
			Priority: int(m.Priority), Owned: m.Owned,
		}
		x.Name, x.ID = qs.parts.Book.Identify(m.Peer[:])
		q.Members = append(q.Members, x)
	}
	return q
}
