package client

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// Schedules returns the schedules that the node keeps.
func (c *Client) Schedules(ctx context.Context) ([]wire.Schedule, error) {
	p, err := get[wire.Page[wire.Schedule]](ctx, c, "/v1/schedules", nil)
	return p.Items, err
}

// AddSchedule creates a schedule: a task for a queue each time it is due.
func (c *Client) AddSchedule(ctx context.Context, s wire.ScheduleSpec) (wire.Schedule, error) {
	return post[wire.Schedule](ctx, c, "/v1/schedules", s)
}

// RemoveSchedule removes a schedule. Its tasks stay.
func (c *Client) RemoveSchedule(ctx context.Context, queue, name string) error {
	return c.exec(ctx, call{method: http.MethodDelete, path: "/v1/schedules/" + escape(queue) + "/" + escape(name)})
}

// PauseSchedule pauses a schedule, or with false resumes it.
func (c *Client) PauseSchedule(ctx context.Context, queue, name string, on bool) (wire.Schedule, error) {
	verb := "/resume"
	if on {
		verb = "/pause"
	}
	return post[wire.Schedule](ctx, c, "/v1/schedules/"+escape(queue)+"/"+escape(name)+verb, nil)
}
