package client

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/node"
)

// Schedules returns the schedules that the node keeps.
func (c *Client) Schedules(ctx context.Context) ([]node.Schedule, error) {
	p, err := get[node.Page[node.Schedule]](ctx, c, "/v1/schedules", nil)
	return p.Items, err
}

// AddSchedule has a task made for a queue each time that it is due.
func (c *Client) AddSchedule(ctx context.Context, s node.ScheduleSpec) (node.Schedule, error) {
	return post[node.Schedule](ctx, c, "/v1/schedules", s)
}

// RemoveSchedule removes a schedule. The tasks that it made stay.
func (c *Client) RemoveSchedule(ctx context.Context, queue, name string) error {
	return c.exec(ctx, call{method: http.MethodDelete, path: "/v1/schedules/" + escape(queue) + "/" + escape(name)})
}

// PauseSchedule has a schedule make nothing, or with false go on.
func (c *Client) PauseSchedule(ctx context.Context, queue, name string, on bool) (node.Schedule, error) {
	verb := "/resume"
	if on {
		verb = "/pause"
	}
	return post[node.Schedule](ctx, c, "/v1/schedules/"+escape(queue)+"/"+escape(name)+verb, nil)
}
