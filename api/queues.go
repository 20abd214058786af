package api

import (
	"cmp"
	"context"
	"time"

	"github.com/balefire/balefire/node"
)

// The inputs of the routes of shared queues.
type (
	// ByQueue names a shared queue in the path.
	ByQueue struct {
		Name string `path:"name" maxLength:"128" doc:"the queue's name, without queue: before it"`
	}
	// Seize gives up a queue's home.
	Seize struct {
		From       string `json:"from" minLength:"1" maxLength:"128" doc:"name or id of the home that is given up"`
		AcceptLoss bool   `json:"accept_loss,omitempty" doc:"must be true: what only that home knows is lost unless it comes back"`
	}
	// HandOff names a queue's next home.
	HandOff struct {
		To string `json:"to,omitempty" maxLength:"128" doc:"name or id of the next home; default the best that the node knows"`
	}
	// Leases chooses leases. The zero value means all of them.
	Leases struct {
		Queue string `query:"queue" maxLength:"128"`
		Owner string `query:"owner" maxLength:"128" doc:"name or id of the node that has the lease"`
		Role  string `query:"role" enum:"home,owner" doc:"home: given by this node; owner: that it has; default both"`
		Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
	}
	// Recover says whose leases to take back.
	Recover struct {
		Owner  string `json:"owner,omitempty" maxLength:"128" doc:"name or id of a node that is not alive; default all that are dead or have left"`
		DryRun bool   `json:"dry_run,omitempty" doc:"only list"`
	}
	// OwnershipAfter asks for what happened behind a number.
	OwnershipAfter struct {
		After uint64 `query:"after" doc:"number of the last event that is known; 0: from the first that is kept"`
		Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"256"`
	}
	// UnblockLane names tasks that stand still because the one before them died.
	UnblockLane struct {
		Key string `json:"key" minLength:"1" maxLength:"256" doc:"their ordering key"`
	}
	// Merged chooses the task or the queue whose events are merged.
	Merged struct {
		Task  string `query:"task" maxLength:"36" doc:"id, or the beginning of one that the node knows; or"`
		Queue string `query:"queue" maxLength:"128"`
	}
	// Drain says whether the node is to be given nothing new.
	Drain struct {
		On bool `json:"on" doc:"false: it takes work again"`
	}
	// Stop says how the node leaves.
	Stop struct {
		HandOff bool   `json:"handoff,omitempty" doc:"first hand over the homes of its queues; a node that cannot do so does not stop"`
		Within  string `json:"within,omitempty" example:"30s" doc:"how long the handing over may take; default 30s"`
	}
)

// routeSharedQueues adds what tells of shared queues and of who owns their tasks.
func (s *Server) routeSharedQueues(n queueOps) {
	s.routeQueues(n)
	s.routeHomes(n)
	s.routeDrain(n)
	s.routeLeases(n)
	s.routeSchedules(n)
}

// routeQueues adds what tells of queues and sets them.
func (s *Server) routeQueues(n queueEditor) {
	route(s, op("GET", "/v1/queues", "listQueues", "queues", "List the shared queues that this node knows"), func(ctx context.Context, _ *struct{}) (node.Page[node.Queue], error) {
		return list(n.Queues(ctx)), nil
	})
	route(s, op("GET", "/v1/queues/{name}", "getQueue", "queues", "Show a shared queue with its members"), func(ctx context.Context, in *ByQueue) (node.Queue, error) {
		return n.Queue(ctx, in.Name)
	})
	type set struct {
		ByQueue
		Body node.QueueSettings
	}
	change := op("PUT", "/v1/queues/{name}", "setQueue", "queues", "Change the settings of a queue, or make one")
	change.Description = "What is left out stays as it is; an empty list clears. It counts at once, for what waits, too. With home: here a queue that nobody knows yet is made."
	route(s, change, func(ctx context.Context, in *set) (node.Queue, error) {
		return n.SetQueue(ctx, in.Name, in.Body)
	})
	for _, p := range []struct {
		verb, id, summary string
		paused            bool
	}{
		{"pause", "pauseQueue", "Grant nothing more from a queue; what is owned goes on", true},
		{"resume", "resumeQueue", "Grant from a paused queue again", false},
	} {
		route(s, op("POST", "/v1/queues/{name}/"+p.verb, p.id, "queues", p.summary), func(ctx context.Context, in *ByQueue) (node.Queue, error) {
			return n.SetQueue(ctx, in.Name, node.QueueSettings{Paused: &p.paused})
		})
	}
}

// routeHomes adds what moves work from node to node.
func (s *Server) routeHomes(n queueMover) {
	type seize struct {
		ByQueue
		Body Seize
	}
	take := op("POST", "/v1/queues/{name}/seize", "seizeQueue", "queues", "Make this node the home of a queue whose home is gone for good")
	take.Description = "What only the old home knows stays with it: it is lost unless that node comes back with its disk and hands it over. The seizure is written to the audit."
	route(s, take, func(ctx context.Context, in *seize) (node.Queue, error) {
		if !in.Body.AcceptLoss {
			return node.Queue{}, lossNotAccepted(in.Name, in.Body.From)
		}
		return n.SeizeQueue(ctx, in.Name, in.Body.From)
	})
	type handOff struct {
		ByQueue
		Body *HandOff
	}
	route(s, op("POST", "/v1/queues/{name}/handoff", "handOffQueue", "queues", "Give a queue whose home is here to another home"), func(ctx context.Context, in *handOff) (node.Queue, error) {
		to := ""
		if in.Body != nil {
			to = in.Body.To
		}
		return n.HandOffQueue(ctx, in.Name, to)
	})
}

// routeDrain adds what a node is told before it goes away.
func (s *Server) routeDrain(n drainer) {
	type drain struct{ Body Drain }
	away := op("POST", "/v1/drain", "drain", "node", "Have this node be given nothing new and hand over its queues, or take work again")
	away.Description = "Asked again it tells how far it is. What runs goes on."
	route(s, away, func(ctx context.Context, in *drain) (node.Drained, error) {
		return n.Drain(ctx, in.Body.On)
	})
	type stop struct{ Body *Stop }
	end := op("POST", "/v1/stop", "stop", "node", "Stop this node as a signal does")
	end.Description = "It is answered when the node begins to stop: running handlers have limits.graceful_timeout then."
	routeNoContent(s, end, func(ctx context.Context, in *stop) error {
		var o Stop
		if in.Body != nil {
			o = *in.Body
		}
		within, err := duration("within", o.Within)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(within, handOffTime))
		defer cancel()
		return n.Stop(ctx, o.HandOff)
	})
}

// handOffTime is how long a node that stops may take for handing over its queues.
const handOffTime = 30 * time.Second

// lossNotAccepted is the answer to a seizure whose price nobody agreed to.
func lossNotAccepted(queue, from string) *Problem {
	p := problem(CodeInvalid, "seize the queue %.128s: accept_loss is not true: what only %.128s knows of it is lost unless that node comes back with its disk", queue, from)
	p.Fix = "when that node is there, let it hand the queue off; when it may come back, wait for it; when it is gone for good, send accept_loss: true"
	return p
}

// routeLeases adds what tells who owns what, and who claimed to.
func (s *Server) routeLeases(n ownership) {
	route(s, op("GET", "/v1/leases", "listLeases", "queues", "List leases that this node gave, then those that it has"), func(ctx context.Context, in *Leases) (node.Page[node.Lease], error) {
		ls, err := n.Leases(ctx, node.LeaseFilter{Queue: in.Queue, Owner: in.Owner, Role: in.Role, Limit: in.Limit})
		return list(ls), err
	})
	type unblock struct {
		ByQueue
		Body UnblockLane
	}
	route(s, op("POST", "/v1/queues/{name}/unblock", "unblockLane", "queues", "Let the tasks of one ordering key go on that stand still"), func(ctx context.Context, in *unblock) (node.Queue, error) {
		return n.UnblockLane(ctx, in.Name, in.Body.Key)
	})
	type byTask struct {
		Task string `path:"task" pattern:"^[0-9A-Fa-f-]{1,36}$" doc:"id, or the beginning of one that is unique"`
	}
	route(s, op("POST", "/v1/leases/{task}/release", "releaseLease", "queues", "Take the lease of one task back by hand"), func(ctx context.Context, in *byTask) (node.Lease, error) {
		return n.ReleaseLease(ctx, in.Task)
	})
	type recover struct{ Body Recover }
	route(s, op("POST", "/v1/leases/recover", "recoverLeases", "queues", "Take back the leases of owners that are dead"), func(ctx context.Context, in *recover) (node.Recovered, error) {
		return n.RecoverLeases(ctx, in.Body.Owner, in.Body.DryRun)
	})
	route(s, op("GET", "/v1/leases/conflicts", "listLeaseConflicts", "queues", "List the newest claims that did not count"), func(ctx context.Context, _ *struct{}) (node.Page[node.LeaseConflict], error) {
		return list(n.LeaseConflicts(ctx)), nil
	})
	route(s, op("GET", "/v1/ownership/events", "listOwnershipEvents", "queues", "Read the timeline of ownership at this node"), func(ctx context.Context, in *OwnershipAfter) (node.Page[node.OwnershipEvent], error) {
		return list(n.OwnershipEvents(ctx, in.After, in.Limit)), nil
	})
	merged := op("GET", "/v1/ownership/timeline", "getTimeline", "queues", "Merge what the connected nodes saw happen to the leases of a task or of a queue")
	route(s, merged, func(ctx context.Context, in *Merged) (node.Timeline, error) {
		return n.Timeline(ctx, node.TimelineQuery{Task: in.Task, Queue: in.Queue})
	})
}
