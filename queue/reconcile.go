package queue

import (
	"context"
	"errors"
	"sync"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
)

// returnOverdue returns the leases that have waited here for a slot for too long.
func (qs *Queues) returnOverdue(ctx context.Context) {
	var all sync.WaitGroup
	for _, id := range qs.parts.Inbox.Overdue() {
		all.Go(func() {
			err := qs.Driver.Return(ctx, id, "it waited for a slot for more than a second", 0)
			if err != nil && !errors.Is(err, ownership.ErrStopped) && ctx.Err() == nil {
				qs.cfg.Logger.Warn("could not return a task that waits for a slot", "task", id.String(), "err", err)
			}
		})
	}
	all.Wait()
}

// reconcile repairs inconsistencies, whatever their cause. It revokes leases of dead
// owners also when their death went unnoticed, because this node was isolated or had
// just started, and returns a lease that is renewed here without a running handler. idle
// holds the leases that had no handler at the last check, and the result those that have
// none now: a handler may just have started or ended. The lease of a run that a crash cut
// off is none of them: it waits until its handler is probed.
func (qs *Queues) reconcile(ctx context.Context, idle map[proto.TaskID]bool) map[proto.TaskID]bool {
	for p := range qs.lostOwners() {
		qs.Driver.Dead(p)
	}
	started, homes := proto.LeaseStarted.Name(), map[proto.PeerID]bool{}
	found, err := qs.Driver.Leases(ctx, func(v ownership.LeaseView) bool {
		if !v.Home {
			homes[v.Peer] = true
		}
		return !v.Home && v.State == started && v.Running
	}, maxHeld)
	if err != nil {
		return nil
	}
	for p := range homes {
		if qs.parts.Book.Revoked(p) {
			qs.Driver.HomeRevoked(p)
		}
	}
	now := map[proto.TaskID]bool{}
	for _, v := range found {
		switch {
		case qs.parts.Inbox.Working(v.Task):
		case !idle[v.Task]:
			now[v.Task] = true
		default:
			qs.cfg.Logger.Error("a lease was renewed without a running handler; returning it", "task", v.Task.String(), "queue", v.Queue)
			if err := qs.Driver.Fail(ctx, v.Task, &proto.Released{Cause: proto.CauseCrashed, Reason: "its handler no longer ran"}); err != nil {
				return nil
			}
		}
	}
	return now
}
