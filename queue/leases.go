package queue

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Leases lists the leases that this node granted, then those that it owns.
func (qs *Queues) Leases(ctx context.Context, f wire.LeaseFilter) ([]wire.Lease, error) {
	limit, err := wire.PageSize(f.Limit)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"", wire.RoleHome, wire.RoleOwner}, f.Role) {
		return nil, fmt.Errorf("%w: role %.20q: must be home or owner", wire.ErrInvalid, f.Role)
	}
	var owner proto.PeerID
	if f.Owner != "" {
		p, err := qs.findPeer(f.Owner)
		if err != nil {
			return nil, err
		}
		owner = p.Peer
	}
	match := func(v ownership.LeaseView) bool {
		holder := v.Peer
		if !v.Home {
			holder = qs.self
		}
		return (f.Queue == "" || f.Queue == v.Queue) && (f.Role == "" || v.Home == (f.Role == wire.RoleHome)) && (f.Owner == "" || holder == owner)
	}
	found, err := qs.Driver.Leases(ctx, match, limit)
	out := make([]wire.Lease, len(found))
	for i, v := range found {
		out[i] = qs.leaseView(v)
	}
	return out, err
}

func (qs *Queues) leaseView(v ownership.LeaseView) wire.Lease {
	l := wire.Lease{
		Task: v.Task.String(), Queue: v.Queue, Kind: v.Kind, Role: wire.RoleOwner, State: v.State, Epoch: v.Epoch.String(),
		Attempts: v.Attempts, Abandons: v.Abandons, Cancel: v.Cancel, Lapsed: v.Lapsed, Granted: proto.TimeOrNil(v.GrantedMs),
	}
	if v.Home {
		l.Role = wire.RoleHome
	}
	l.Peer, l.PeerID = qs.parts.Book.Identify(v.Peer[:])
	if !v.Lapsed {
		l.Until = new(qs.cfg.Clock.Now().Add(v.Left).UTC())
	}
	return l
}

// LeaseOf returns the lease that this node owns for the only task whose id begins with ref.
func (qs *Queues) LeaseOf(ctx context.Context, ref string) (v ownership.LeaseView, ok bool) {
	if len(ref) < 6 {
		return v, false
	}
	ref = strings.ToLower(ref)
	found, err := qs.Driver.Leases(ctx, func(v ownership.LeaseView) bool { return !v.Home && strings.HasPrefix(v.Task.String(), ref) }, 2)
	if err != nil || len(found) != 1 {
		return v, false
	}
	return found[0], true
}

// Release revokes the lease of one task on behalf of an operator.
func (qs *Queues) Release(ctx context.Context, task string) (wire.Lease, error) {
	id, err := proto.ParseTaskID(task)
	if err != nil {
		if id, _, _, err = qs.parts.Tasks.Find(ctx, task); err != nil {
			return wire.Lease{}, err
		}
	}
	before, known, err := qs.Driver.Task(ctx, id)
	if err != nil {
		return wire.Lease{}, err
	}
	if !known {
		return wire.Lease{}, fmt.Errorf("%w: task %s is not in a queue whose home is this node: release the lease on its home", wire.ErrNotFound, id)
	}
	done, err := qs.Driver.Recover(ctx, id)
	if err != nil {
		return wire.Lease{}, err
	}
	if !done {
		return qs.leaseView(before.LeaseView), fmt.Errorf("%w: task %s has no lease that can be revoked: no node owns it, or it may have been started and must not start twice", wire.ErrRefused, id)
	}
	if err := qs.cfg.Audit(ctx, "lease.release", id.String()); err != nil {
		return wire.Lease{}, err
	}
	after, known, err := qs.Driver.Task(ctx, id)
	if !known {
		after = before
	}
	return qs.leaseView(after.LeaseView), err
}

// Recover revokes at once the leases of owners that are dead or have left, or
// those of the named owner, which must not be alive; with dryRun it only lists them. The
// lease of a task that may have been started and must not start twice is kept: its home
// waits for the owner.
func (qs *Queues) Recover(ctx context.Context, owner string, dryRun bool) (wire.Recovered, error) {
	r := wire.Recovered{DryRun: dryRun, Taken: []wire.Lease{}, Kept: []wire.Lease{}}
	lost := qs.lostOwners()
	if owner != "" {
		p, err := qs.findPeer(owner)
		if err == nil && p.Peer == qs.self {
			err = fmt.Errorf("%w: %s is this node itself", wire.ErrInvalid, p.Label())
		}
		if err != nil {
			return r, err
		}
		if m, ok := qs.gossip.Member(p.Peer); ok && m.Status == gossip.Alive {
			return r, fmt.Errorf("%w: %s is alive: use balefire-node lease release to revoke the lease of one task", wire.ErrRefused, p.Label())
		}
		lost = map[proto.PeerID]bool{p.Peer: true}
	}
	found, err := qs.Driver.Leases(ctx, func(v ownership.LeaseView) bool { return v.Home && lost[v.Peer] && !v.Lapsed }, maxHeld)
	if err != nil {
		return r, err
	}
	if !dryRun && len(found) > 0 {
		if err := qs.cfg.Audit(ctx, "mesh.recover", fmt.Sprintf("%d leases of %s", len(found), cmp.Or(owner, "dead owners"))); err != nil {
			return r, err
		}
	}
	for _, v := range found {
		done := !v.Permitted
		if done && !dryRun {
			if done, err = qs.Driver.Recover(ctx, v.Task); err != nil {
				return r, err
			}
		}
		if done {
			r.Taken = append(r.Taken, qs.leaseView(v))
		} else {
			r.Kept = append(r.Kept, qs.leaseView(v))
		}
	}
	return r, nil
}

// lostOwners returns the members that are dead or have left.
func (qs *Queues) lostOwners() map[proto.PeerID]bool {
	lost := map[proto.PeerID]bool{}
	for _, m := range qs.gossip.Members() {
		if m.Status == gossip.Dead || m.Status == gossip.Left {
			lost[m.Peer] = true
		}
	}
	return lost
}

// LeaseRisks returns the members that are SUSPECT or DEAD and hold leases that this
// node granted, by name.
func (qs *Queues) LeaseRisks(ctx context.Context) []wire.LeaseRisk {
	risks, unhealthy := map[proto.PeerID]*wire.LeaseRisk{}, map[proto.PeerID]string{}
	for _, m := range qs.gossip.Members() {
		if m.Status == gossip.Suspect || m.Status == gossip.Dead {
			unhealthy[m.Peer] = m.Status.String()
		}
	}
	if len(unhealthy) == 0 {
		return []wire.LeaseRisk{}
	}
	_, err := qs.Driver.Leases(ctx, func(v ownership.LeaseView) bool {
		state, ok := unhealthy[v.Peer]
		if !v.Home || !ok {
			return false
		}
		r := risks[v.Peer]
		if r == nil {
			r = &wire.LeaseRisk{State: state}
			risks[v.Peer] = r
		}
		r.Tasks++
		if v.Permitted {
			r.Once++
		}
		return false // counted: nothing is copied
	}, 1)
	if err != nil {
		return []wire.LeaseRisk{} // the node is stopping
	}
	out := make([]wire.LeaseRisk, 0, len(risks))
	for _, p := range slices.Collect(maps.Keys(risks)) {
		risks[p].Owner = qs.parts.Book.NameOf(p)
		out = append(out, *risks[p])
	}
	slices.SortFunc(out, func(a, b wire.LeaseRisk) int { return strings.Compare(a.Owner, b.Owner) })
	return out
}
