package node

import (
	"context"

	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
)

// reconcile mends what has come apart, whatever the cause: leases of owners that are
// dead are taken back also when that was not heard at the time (this node was cut off
// itself, or was just started), and a lease that is renewed here without a handler at
// work goes back. idle are those that had none at the last look, and the result those
// that have none now: a handler may just have begun or ended.
func (q *queues) reconcile(ctx context.Context, idle map[proto.TaskID]bool) map[proto.TaskID]bool {
	for p := range q.node.lostOwners() {
		q.driver.Dead(p)
	}
	started := phaseName(proto.LeaseStarted)
	found, err := q.driver.Leases(ctx, func(v ownership.LeaseView) bool { return !v.Home && v.State == started }, maxHeld)
	if err != nil {
		return nil
	}
	now := map[proto.TaskID]bool{}
	for _, v := range found {
		switch {
		case q.node.inbox.Working(v.Task):
		case !idle[v.Task]:
			now[v.Task] = true
		default:
			q.node.log.Error("a lease was renewed without a handler at work: it goes back", "task", v.Task.String(), "queue", v.Queue)
			if err := q.driver.Fail(ctx, v.Task, &proto.Released{Cause: proto.CauseCrashed, Reason: "its handler was gone"}); err != nil {
				return nil
			}
		}
	}
	return now
}
