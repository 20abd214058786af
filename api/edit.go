package api

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// routeTaskEdits adds the routes that change tasks in progress.
func (s *Server) routeTaskEdits() {
	set := op("PUT", "/v1/tasks/{id}/class", "setTaskClass", "tasks", "Change the class of a task that waits in a queue")
	set.Description = "Only at the home of the queue. It takes effect at once while the task waits."
	route(s, set, func(ctx context.Context, in *ofTask[wire.Reclass]) (wire.Task, error) {
		return s.queues.SetClass(ctx, in.ID, in.Body.Class)
	})
	move := op("PUT", "/v1/tasks/{id}/queue", "moveTask", "tasks", "Move a task to another queue, as a new task")
	move.Description = "Only at the origin of the task. A running task is stopped first."
	move.DefaultStatus = http.StatusAccepted
	register(s, move, func(ctx context.Context, in *ofTask[wire.Requeue]) (*newTask, error) {
		done, err := s.redriver.Move(ctx, in.ID, in.Body.Queue)
		return &newTask{"/v1/tasks/" + done.ID, done}, err
	})
	made := op("POST", "/v1/tasks/{id}/progress", "taskProgress", "tasks", "Report progress of the handler of a granted task")
	made.Description = "After that it must report again within the stall limit; otherwise it is stopped and its lease is not renewed."
	routeNoContent(s, made, func(ctx context.Context, in *ByID) error { return s.queues.Progress(ctx, in.ID) })
}
