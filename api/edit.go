package api

import (
	"context"
	"net/http"

	"github.com/balefire/balefire/node"
)

// The inputs of the routes that change tasks under way.
type (
	// Reclass names another class for a task.
	Reclass struct {
		Class string `json:"class" enum:"critical,high,normal,low"`
	}
	// Requeue names another queue for a task.
	Requeue struct {
		Queue string `json:"queue" minLength:"1" maxLength:"63" doc:"its name, without queue: before it"`
	}
)

// routeTaskEdits adds what changes tasks that are under way.
func (s *Server) routeTaskEdits(n taskEditor) {
	type reclass struct {
		ByID
		Body Reclass
	}
	set := op("PUT", "/v1/tasks/{id}/class", "setTaskClass", "tasks", "Give a task that waits in a queue another class")
	set.Description = "It is done at the home of the queue, and counts at once while the task waits."
	route(s, set, func(ctx context.Context, in *reclass) (node.Task, error) {
		return n.SetClass(ctx, in.ID, in.Body.Class)
	})
	type requeue struct {
		ByID
		Body Requeue
	}
	type moved struct {
		Location string `header:"Location"`
		Body     node.Submitted
	}
	move := op("PUT", "/v1/tasks/{id}/queue", "moveTask", "tasks", "Put a task into another queue, as a new task")
	move.Description = "It is done where the task was made. One that runs is stopped first."
	move.DefaultStatus = http.StatusAccepted
	register(s, move, func(ctx context.Context, in *requeue) (*moved, error) {
		done, err := n.MoveTask(ctx, in.ID, in.Body.Queue)
		return &moved{"/v1/tasks/" + done.ID, done}, err
	})
	made := op("POST", "/v1/tasks/{id}/progress", "taskProgress", "tasks", "Say that the handler of a granted task made progress")
	made.Description = "From then on it must say so again before the stall limit is over: else it is stopped, and its lease is not renewed."
	made.DefaultStatus = http.StatusNoContent
	register(s, made, func(ctx context.Context, in *ByID) (*struct{}, error) {
		return nil, n.Progress(ctx, in.ID)
	})
}
