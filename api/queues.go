package api

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/balefire/balefire/wire"
)

// The inputs of the queue routes.
type (
	// ByQueue names a shared queue in the path.
	ByQueue struct {
		Name string `path:"name" maxLength:"128" doc:"the queue's name, without queue: before it"`
	}
	// ofQueue is a document for a queue.
	ofQueue[B any] struct {
		ByQueue
		Body B
	}
	// OwnershipAfter asks for the events after a number.
	OwnershipAfter struct {
		After uint64 `query:"after" doc:"number of the last event that is known; 0: from the first that is kept"`
		Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"256"`
	}
)

// routeSharedQueues adds the routes of shared queues, homes and leases.
func (s *Server) routeSharedQueues() {
	s.routeQueues()
	s.routeHomes()
	s.routeDrain()
	s.routeLeases()
	s.routeSchedules()
}

// routeQueues adds the routes that show and change queues.
func (s *Server) routeQueues() {
	route(s, op("GET", "/v1/queues", "listQueues", "queues", "List the shared queues that this node knows"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.Queue], error) {
		return list(s.queues.List(ctx)), nil
	})
	route(s, op("GET", "/v1/queues/{name}", "getQueue", "queues", "Show a shared queue with its members"), func(ctx context.Context, in *ByQueue) (wire.Queue, error) {
		return s.queues.Get(ctx, in.Name)
	})
	change := op("PUT", "/v1/queues/{name}", "setQueue", "queues", "Change the settings of a queue, or create one")
	change.Description = "Absent settings do not change; an empty list clears a list. Changes apply at once, also to waiting tasks. With home: here a queue that does not exist yet is created."
	route(s, change, func(ctx context.Context, in *ofQueue[wire.QueueSettings]) (wire.Queue, error) {
		return s.queues.Set(ctx, in.Name, in.Body)
	})
	for _, p := range []struct {
		verb, id, summary string
		paused            bool
	}{
		{"pause", "pauseQueue", "Stop granting tasks of a queue; owned tasks continue", true},
		{"resume", "resumeQueue", "Resume a paused queue", false},
	} {
		route(s, op("POST", "/v1/queues/{name}/"+p.verb, p.id, "queues", p.summary), func(ctx context.Context, in *ByQueue) (wire.Queue, error) {
			return s.queues.Set(ctx, in.Name, wire.QueueSettings{Paused: &p.paused})
		})
	}
}

// routeHomes adds the routes that move queues between nodes.
func (s *Server) routeHomes() {
	take := op("POST", "/v1/queues/{name}/seize", "seizeQueue", "queues", "Make this node the home of a queue whose home is permanently lost")
	take.Description = "What only the old home knows stays there: it is lost unless that node comes back with its disk and hands it over. The seizure is written to the audit log."
	route(s, take, func(ctx context.Context, in *ofQueue[wire.Seize]) (wire.Queue, error) {
		if !in.Body.AcceptLoss {
			return wire.Queue{}, lossNotAccepted(in.Name, in.Body.From)
		}
		return s.queues.Seize(ctx, in.Name, in.Body.From)
	})
	route(s, op("POST", "/v1/queues/{name}/handoff", "handOffQueue", "queues", "Hand over a queue to another home"), func(ctx context.Context, in *ofQueue[*wire.HandOff]) (wire.Queue, error) {
		return s.queues.HandOff(ctx, in.Name, orZero(in.Body).To)
	})
}

// routeDrain adds the routes that drain and stop the node.
func (s *Server) routeDrain() {
	away := op("POST", "/v1/drain", "drain", "node", "Drain this node and hand over its queues, or accept tasks again")
	away.Description = "Repeat the request to see the progress. Running tasks continue."
	away.Middlewares = append(away.Middlewares, withPath)
	change := audited(s, "node.drain", func(ctx context.Context, on any) (*wire.Drained, error) {
		d, err := s.queues.Drain(ctx, on.(bool))
		return &d, err
	})
	route(s, away, func(ctx context.Context, in *struct{ Body wire.Drain }) (wire.Drained, error) {
		if s.queues.Drained() == in.Body.On { // it asks for the progress
			return s.queues.Drain(ctx, in.Body.On)
		}
		d, err := change(ctx, in.Body.On)
		return orZero(d), err
	})
	end := op("POST", "/v1/stop", "stop", "node", "Stop this node like SIGTERM does")
	end.Description = "The response is sent when the node begins to stop: running handlers have limits.graceful_timeout then."
	routeNoContent(s, end, func(ctx context.Context, in *struct{ Body *wire.Stop }) error {
		o := orZero(in.Body)
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(time.Duration(o.Within), handOffTime))
		defer cancel()
		return s.life.Stop(ctx, o.HandOff)
	})
}

// handOffTime is the default time limit for handing over queues before a stop.
const handOffTime = 30 * time.Second

// lossNotAccepted is the problem of a seizure without accept_loss.
func lossNotAccepted(queue, from string) *wire.Problem {
	p := problem(wire.CodeInvalid, "seize the queue %.128s: accept_loss is not true: what only %.128s knows about it is lost unless that node comes back with its disk", queue, from)
	p.Fix = "if that node is running, hand the queue off there; if it may come back, wait for it; if it is permanently lost, send accept_loss: true"
	return p
}

// routeLeases adds the routes of leases and ownership events.
func (s *Server) routeLeases() {
	route(s, op("GET", "/v1/leases", "listLeases", "queues", "List the leases that this node granted, then those that it owns"), func(ctx context.Context, in *wire.LeaseFilter) (wire.Page[wire.Lease], error) {
		ls, err := s.queues.Leases(ctx, *in)
		return list(ls), err
	})
	route(s, op("POST", "/v1/queues/{name}/unblock", "unblockLane", "queues", "Unblock the tasks of one ordering key"), func(ctx context.Context, in *ofQueue[wire.UnblockLane]) (wire.Queue, error) {
		return s.queues.UnblockLane(ctx, in.Name, in.Body.Key)
	})
	type byTask struct {
		Task string `path:"task" pattern:"^[0-9A-Fa-f-]{1,36}$" doc:"id, or the beginning of one that is unique"`
	}
	route(s, op("POST", "/v1/leases/{task}/release", "releaseLease", "queues", "Revoke the lease of one task"), func(ctx context.Context, in *byTask) (wire.Lease, error) {
		return s.queues.Release(ctx, in.Task)
	})
	route(s, op("POST", "/v1/leases/recover", "recoverLeases", "queues", "Revoke the leases of dead owners"), func(ctx context.Context, in *struct{ Body wire.Recover }) (wire.Recovered, error) {
		return s.queues.Recover(ctx, in.Body.Owner, in.Body.DryRun)
	})
	route(s, op("GET", "/v1/leases/conflicts", "listLeaseConflicts", "queues", "List the newest rejected claims to tasks and mail"), func(ctx context.Context, _ *struct{}) (wire.Page[wire.LeaseConflict], error) {
		all := append(s.queues.Conflicts(), s.mail.Conflicts()...)
		slices.SortStableFunc(all, func(a, b wire.LeaseConflict) int { return a.Time.Compare(b.Time) })
		return list(all), nil
	})
	route(s, op("GET", "/v1/ownership/events", "listOwnershipEvents", "queues", "Read the ownership events of this node"), func(ctx context.Context, in *OwnershipAfter) (wire.Page[wire.OwnershipEvent], error) {
		return list(s.queues.Events(in.After, in.Limit)), nil
	})
	merged := op("GET", "/v1/ownership/timeline", "getTimeline", "queues", "Merge the ownership events of all connected nodes for a task or a queue")
	route(s, merged, func(ctx context.Context, in *wire.TimelineQuery) (wire.Timeline, error) {
		return s.queues.Timeline(ctx, *in)
	})
}
