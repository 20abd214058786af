package apitest

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// SetClass changes the class of a task.
func (n *Node) SetClass(_ context.Context, id, class string) (wire.Task, error) {
	t := n.task(id)
	t.Class = class
	return t, n.called("SetClass %s %s", id, class)
}

// MoveTask submits a task again.
func (n *Node) MoveTask(_ context.Context, id, queue string) (wire.Submitted, error) {
	return wire.Submitted{ID: ID, State: "PENDING", Target: queue, NotAfter: Start}, n.called("MoveTask %s to %s", id, queue)
}

// Progress records progress.
func (n *Node) Progress(_ context.Context, id string) error { return n.called("Progress %s", id) }

// UnblockLane unblocks tasks.
func (n *Node) UnblockLane(_ context.Context, queue, key string) (wire.Queue, error) {
	return Shared(queue), n.called("UnblockLane %s %q", queue, key)
}
