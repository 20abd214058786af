package client

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// SetClass changes the class of a task that waits in a queue.
func (c *Client) SetClass(ctx context.Context, id, class string) (wire.Task, error) {
	return put[wire.Task](ctx, c, "/v1/tasks/"+escape(id)+"/class", wire.Reclass{Class: class})
}

// MoveTask moves a task to another queue, as a new task.
func (c *Client) MoveTask(ctx context.Context, id, queue string) (wire.Submitted, error) {
	return put[wire.Submitted](ctx, c, "/v1/tasks/"+escape(id)+"/queue", wire.Requeue{Queue: queue})
}

// Progress reports progress of the handler of a granted task.
func (c *Client) Progress(ctx context.Context, id string) error {
	return c.exec(ctx, call{method: http.MethodPost, path: "/v1/tasks/" + escape(id) + "/progress"})
}

// UnblockLane unblocks the tasks of one ordering key of a queue.
func (c *Client) UnblockLane(ctx context.Context, queue, key string) (wire.Queue, error) {
	return post[wire.Queue](ctx, c, "/v1/queues/"+escape(queue)+"/unblock", wire.UnblockLane{Key: key})
}
