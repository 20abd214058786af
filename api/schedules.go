package api

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// BySchedule names a schedule in the path.
type BySchedule struct {
	Queue string `path:"queue" maxLength:"128" doc:"the name of its queue"`
	Name  string `path:"name" maxLength:"128"`
}

// routeSchedules adds the routes of schedules.
func (s *Server) routeSchedules() {
	route(s, op("GET", "/v1/schedules", "listSchedules", "schedules", "List the schedules that this node keeps"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.Schedule], error) {
		all, err := s.schedules.List(ctx)
		return list(all), err
	})
	make := op("POST", "/v1/schedules", "addSchedule", "schedules", "Create a schedule: a task for a queue each time it is due")
	make.Description = "Only at the home of the queue, which creates each task once and hands its schedules over with the queue."
	make.DefaultStatus = http.StatusCreated
	route(s, make, func(ctx context.Context, in *struct{ Body wire.ScheduleSpec }) (wire.Schedule, error) {
		return s.schedules.Add(ctx, in.Body)
	})
	routeNoContent(s, op("DELETE", "/v1/schedules/{queue}/{name}", "removeSchedule", "schedules", "Remove a schedule; its tasks stay"), func(ctx context.Context, in *BySchedule) error {
		return s.schedules.Remove(ctx, in.Queue, in.Name)
	})
	for _, p := range []struct {
		verb, id, summary string
		on                bool
	}{
		{"pause", "pauseSchedule", "Pause a schedule", true},
		{"resume", "resumeSchedule", "Resume a schedule with the next time from now", false},
	} {
		route(s, op("POST", "/v1/schedules/{queue}/{name}/"+p.verb, p.id, "schedules", p.summary), func(ctx context.Context, in *BySchedule) (wire.Schedule, error) {
			return s.schedules.Pause(ctx, in.Queue, in.Name, p.on)
		})
	}
}
