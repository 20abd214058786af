package node

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// Queues lists the known shared queues by name.
func (n *Node) Queues(ctx context.Context) []wire.Queue { return n.queues.List(ctx) }

// Queue returns one queue.
func (n *Node) Queue(ctx context.Context, name string) (wire.Queue, error) {
	return n.queues.Get(ctx, name)
}

// SetQueue is [queue.Queues.Set].
func (n *Node) SetQueue(ctx context.Context, name string, s wire.QueueSettings) (wire.Queue, error) {
	return n.queues.Set(ctx, name, s)
}

// SeizeQueue is [queue.Queues.Seize].
func (n *Node) SeizeQueue(ctx context.Context, name, from string) (wire.Queue, error) {
	return n.queues.Seize(ctx, name, from)
}

// HandOffQueue is [queue.Queues.HandOff].
func (n *Node) HandOffQueue(ctx context.Context, name, to string) (wire.Queue, error) {
	return n.queues.HandOff(ctx, name, to)
}

// UnblockLane is [queue.Queues.UnblockLane].
func (n *Node) UnblockLane(ctx context.Context, name, key string) (wire.Queue, error) {
	return n.queues.UnblockLane(ctx, name, key)
}

// Leases is [queue.Queues.Leases].
func (n *Node) Leases(ctx context.Context, f wire.LeaseFilter) ([]wire.Lease, error) {
	return n.queues.Leases(ctx, f)
}

// ReleaseLease is [queue.Queues.Release].
func (n *Node) ReleaseLease(ctx context.Context, task string) (wire.Lease, error) {
	return n.queues.Release(ctx, task)
}

// RecoverLeases is [queue.Queues.Recover].
func (n *Node) RecoverLeases(ctx context.Context, owner string, dryRun bool) (wire.Recovered, error) {
	return n.queues.Recover(ctx, owner, dryRun)
}

// LeaseConflicts is [queue.Queues.Conflicts].
func (n *Node) LeaseConflicts(ctx context.Context) []wire.LeaseConflict {
	return n.queues.Conflicts(ctx)
}

// OwnershipEvents is [queue.Queues.Events].
func (n *Node) OwnershipEvents(ctx context.Context, after uint64, limit int) []wire.OwnershipEvent {
	return n.queues.Events(ctx, after, limit)
}

// Timeline is [queue.Queues.Timeline].
func (n *Node) Timeline(ctx context.Context, q wire.TimelineQuery) (wire.Timeline, error) {
	return n.queues.Timeline(ctx, q)
}

// SetClass is [queue.Queues.SetClass].
func (n *Node) SetClass(ctx context.Context, ref, class string) (wire.Task, error) {
	return n.queues.SetClass(ctx, ref, class)
}

// Progress is [queue.Queues.Progress].
func (n *Node) Progress(ctx context.Context, task string) error { return n.queues.Progress(ctx, task) }

// Drain is [queue.Queues.Drain].
func (n *Node) Drain(ctx context.Context, on bool) (wire.Drained, error) {
	return n.queues.Drain(ctx, on)
}
