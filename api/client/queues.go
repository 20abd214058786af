package client

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/balefire/balefire/wire"
)

// Queues returns the shared queues that the node knows.
func (c *Client) Queues(ctx context.Context) ([]wire.Queue, error) {
	p, err := get[wire.Page[wire.Queue]](ctx, c, "/v1/queues", nil)
	return p.Items, err
}

// Queue returns the shared queue with this name.
func (c *Client) Queue(ctx context.Context, name string) (wire.Queue, error) {
	return get[wire.Queue](ctx, c, "/v1/queues/"+escape(name), nil)
}

// SetQueue changes the settings of a queue whose home is the node, or creates it.
func (c *Client) SetQueue(ctx context.Context, name string, s wire.QueueSettings) (wire.Queue, error) {
	return put[wire.Queue](ctx, c, "/v1/queues/"+escape(name), s)
}

// PauseQueue stops granting tasks of a queue. Owned tasks continue.
func (c *Client) PauseQueue(ctx context.Context, name string) (wire.Queue, error) {
	return post[wire.Queue](ctx, c, "/v1/queues/"+escape(name)+"/pause", nil)
}

// ResumeQueue resumes a paused queue.
func (c *Client) ResumeQueue(ctx context.Context, name string) (wire.Queue, error) {
	return post[wire.Queue](ctx, c, "/v1/queues/"+escape(name)+"/resume", nil)
}

// SeizeQueue makes the node the home of a queue whose home, from, is permanently lost. The
// caller accepts that what only from knows is lost unless it comes back.
func (c *Client) SeizeQueue(ctx context.Context, name, from string) (wire.Queue, error) {
	return post[wire.Queue](ctx, c, "/v1/queues/"+escape(name)+"/seize", wire.Seize{From: from, AcceptLoss: true})
}

// HandOffQueue hands over a queue whose home is the node; without a name the node chooses
// the new home.
func (c *Client) HandOffQueue(ctx context.Context, name, to string) (wire.Queue, error) {
	return post[wire.Queue](ctx, c, "/v1/queues/"+escape(name)+"/handoff", wire.HandOff{To: to})
}

// Drain drains the node, or with false makes it accept tasks again.
func (c *Client) Drain(ctx context.Context, on bool) (wire.Drained, error) {
	return post[wire.Drained](ctx, c, "/v1/drain", wire.Drain{On: on})
}

// Stop stops the node, with handoff after it has handed over its queues within the given
// time, 0 for the node's own limit. It returns when the node begins to stop.
func (c *Client) Stop(ctx context.Context, handoff bool, within time.Duration) error {
	return c.tell(ctx, "/v1/stop", wire.Stop{HandOff: handoff, Within: wire.Duration(within)})
}

// Leases returns the leases that the node granted, then those that it owns.
func (c *Client) Leases(ctx context.Context, f wire.LeaseFilter) ([]wire.Lease, error) {
	q := query(f.Limit, map[string]string{"queue": f.Queue, "owner": f.Owner, "role": f.Role})
	p, err := get[wire.Page[wire.Lease]](ctx, c, "/v1/leases", q)
	return p.Items, err
}

// ReleaseLease revokes the lease of one task.
func (c *Client) ReleaseLease(ctx context.Context, task string) (wire.Lease, error) {
	return post[wire.Lease](ctx, c, "/v1/leases/"+escape(task)+"/release", nil)
}

// RecoverLeases revokes the leases of dead owners, or of a named one.
func (c *Client) RecoverLeases(ctx context.Context, owner string, dryRun bool) (wire.Recovered, error) {
	return post[wire.Recovered](ctx, c, "/v1/leases/recover", wire.Recover{Owner: owner, DryRun: dryRun})
}

// Timeline merges the ownership events of all connected nodes for a task or a queue.
func (c *Client) Timeline(ctx context.Context, q wire.TimelineQuery) (wire.Timeline, error) {
	return get[wire.Timeline](ctx, c, "/v1/ownership/timeline", query(0, map[string]string{"task": q.Task, "queue": q.Queue}))
}

// LeaseConflicts returns the newest rejected claims, oldest first.
func (c *Client) LeaseConflicts(ctx context.Context) ([]wire.LeaseConflict, error) {
	p, err := get[wire.Page[wire.LeaseConflict]](ctx, c, "/v1/leases/conflicts", nil)
	return p.Items, err
}

// OwnershipEvents returns up to limit events after a number, oldest first. Continue after
// the number of the last one.
func (c *Client) OwnershipEvents(ctx context.Context, after uint64, limit int) ([]wire.OwnershipEvent, error) {
	q := url.Values{"after": {strconv.FormatUint(after, 10)}}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	p, err := get[wire.Page[wire.OwnershipEvent]](ctx, c, "/v1/ownership/events", q)
	return p.Items, err
}
