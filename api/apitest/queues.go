package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/balefire/balefire/wire"
)

// Queues returns two queues; the home of one of them is this node.
func (n *Node) Queues(context.Context) []wire.Queue {
	_ = n.called("Queues") // it cannot fail
	return []wire.Queue{Shared("build"), remoteQueue("photos")}
}

// Shared is a queue whose home is this node.
func Shared(name string) wire.Queue {
	changed := Start.Add(-time.Hour)
	return wire.Queue{
		Name: name, Home: "here", HomeID: "12D3KooH", Here: true, Generation: 3, Changed: &changed,
		QueueRules: wire.QueueRules{
			Strategy: "least_loaded", Concurrency: 8, NodeConcurrency: 2, Kinds: []wire.KindLimit{{Kind: "llm", Concurrency: 4, NodeConcurrency: 1}, {Kind: "shell", Concurrency: 6}},
			Labels: []string{"gpu=yes"}, Allow: []string{"peer:laptop"}, LeaseMs: 30000, OnLostLease: "stop",
		},
		QueueCounts: wire.QueueCounts{Waiting: 240, Owned: 3, Going: 1},
		Members: []wire.QueueMember{
			{Name: "here", ID: "12D3KooH", Alive: true, Kinds: []string{"llm", "shell"}, Labels: []string{"gpu=yes"}, Slots: 4, Busy: 2, Priority: 5, Owned: 2},
			{Name: "laptop", ID: "12D3KooW", Kinds: []string{"shell"}, Slots: 2, Busy: 1, Owned: 1},
			{Name: "烽火台", ID: "12D3KooX", Alive: true, Draining: true, Kinds: []string{"shell"}, Slots: 2},
		},
	}
}

// remoteQueue is a queue with another home.
func remoteQueue(name string) wire.Queue {
	return wire.Queue{Name: name, Home: "laptop", HomeID: "12D3KooW", Generation: 1, QueueRules: wire.QueueRules{Strategy: "ordered", Paused: true}, Members: []wire.QueueMember{}}
}

// Queue returns a queue; the home of the one named photos is another node.
func (n *Node) Queue(_ context.Context, name string) (wire.Queue, error) {
	q := Shared(name)
	if name == "photos" {
		q = remoteQueue(name)
	}
	return q, n.called("Queue %s", name)
}

// SetQueue records the settings as JSON.
func (n *Node) SetQueue(_ context.Context, name string, s wire.QueueSettings) (wire.Queue, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return wire.Queue{}, fmt.Errorf("set %s: %w", name, err)
	}
	q := Shared(name)
	if s.Paused != nil {
		q.Paused = *s.Paused
	}
	if s.Draining != nil {
		q.Draining = *s.Draining
	}
	return q, n.called("SetQueue %s %s", name, b)
}

// SeizeQueue seizes a queue.
func (n *Node) SeizeQueue(_ context.Context, name, from string) (wire.Queue, error) {
	q := Shared(name)
	q.Generation, q.SeizedFrom = 4, from
	return q, n.called("SeizeQueue %s from %s", name, from)
}

// HandOffQueue hands over a queue, to laptop if no home is named.
func (n *Node) HandOffQueue(_ context.Context, name, to string) (wire.Queue, error) {
	q := remoteQueue(name)
	if to != "" {
		q.Home = to
	}
	q.Generation, q.Going = 4, 240
	return q, n.called("HandOffQueue %s to %q", name, to)
}

// Drain reports one running handler.
func (n *Node) Drain(_ context.Context, on bool) (wire.Drained, error) {
	return wire.Drained{On: on, Running: 1, Going: 2}, n.called("Drain %v", on)
}

// RecoverLeases has revoked one lease and kept another.
func (n *Node) RecoverLeases(ctx context.Context, owner string, dryRun bool) (wire.Recovered, error) {
	lease := wire.Lease{Task: ID, Queue: "build", Kind: "shell", Role: wire.RoleHome, Peer: "laptop", PeerID: "12D3KooW", State: "ACCEPTED", Epoch: "7.41"}
	once := lease
	once.Task, once.State = "01a1f850-0000-7000-8000-000000000001", "RUNNING"
	return wire.Recovered{DryRun: dryRun, Taken: []wire.Lease{lease}, Kept: []wire.Lease{once}}, n.called("RecoverLeases %q dry=%v", owner, dryRun)
}

// Timeline returns the events of two nodes; a third does not answer.
func (n *Node) Timeline(_ context.Context, q wire.TimelineQuery) (wire.Timeline, error) {
	e := wire.OwnershipEvent{Number: 4, Time: Start, Kind: "granted", Task: ID, Queue: "build", Peer: "laptop", PeerID: "12D3KooW", Epoch: "7.41"}
	taken := e
	taken.Number, taken.Kind, taken.Peer, taken.PeerID = 9, "started", "here", "12D3KooH"
	return wire.Timeline{
		Items: []wire.TimelineEvent{{Node: "here", OwnershipEvent: e}, {Node: "laptop", OwnershipEvent: taken}},
		Asked: []string{"here", "laptop"}, Silent: []string{"field-09"},
	}, n.called("Timeline task=%q queue=%q", q.Task, q.Queue)
}

// Stop starts to stop.
func (n *Node) Stop(_ context.Context, handoff bool) error {
	return n.called("Stop handoff=%v", handoff)
}

// Leases returns a granted lease and an owned one.
func (n *Node) Leases(_ context.Context, f wire.LeaseFilter) ([]wire.Lease, error) {
	granted, until := Start.Add(-time.Minute), Start.Add(12*time.Second)
	over := Start.Add(-5 * time.Second)
	return []wire.Lease{
		{Task: ID, Queue: "build", Kind: "shell", Role: wire.RoleHome, Peer: "laptop", PeerID: "12D3KooW", State: "RUNNING", Epoch: "7.41", Attempts: 1, Granted: &granted, Until: &until},
		{Task: "01a1f850-0000-7000-8000-000000000001", Queue: "photos", Kind: "llm", Role: wire.RoleOwner, Peer: "laptop", PeerID: "12D3KooW", State: "STARTED", Epoch: "9.2", Attempts: 2, Abandons: 1, Cancel: true, Lapsed: true, Until: &over},
	}, n.called("Leases queue=%q owner=%q role=%q limit=%d", f.Queue, f.Owner, f.Role, f.Limit)
}

// ReleaseLease revokes a lease.
func (n *Node) ReleaseLease(_ context.Context, task string) (wire.Lease, error) {
	return wire.Lease{Task: task, Queue: "build", Role: wire.RoleHome, Peer: "laptop", PeerID: "12D3KooW", State: "PENDING", Epoch: "7.41"}, n.called("ReleaseLease %s", task)
}

// LeaseConflicts returns a claim that came too late.
func (n *Node) LeaseConflicts(context.Context) []wire.LeaseConflict {
	_ = n.called("LeaseConflicts") // it cannot fail
	return []wire.LeaseConflict{{Time: Start.Add(-time.Minute), Task: ID, Queue: "build", Peer: "烽火台", PeerID: "12D3KooX", Epoch: "7.40", Cause: "epoch 7.41 is newer", State: "SUCCESS", Digest: "sha256:c0ffee"}}
}

// OwnershipEvents returns at most limit of three events.
func (n *Node) OwnershipEvents(_ context.Context, after uint64, limit int) []wire.OwnershipEvent {
	_ = n.called("OwnershipEvents after=%d limit=%d", after, limit) // it cannot fail
	out := []wire.OwnershipEvent{}
	for _, e := range []wire.OwnershipEvent{
		{Number: 1, Time: Start.Add(-time.Minute), Kind: "granted", Task: ID, Queue: "build", Peer: "laptop", PeerID: "12D3KooW", Epoch: "7.41"},
		{Number: 2, Time: Start.Add(-time.Second), Kind: "owner_dead", Task: ID, Queue: "build", Peer: "laptop", PeerID: "12D3KooW", Epoch: "7.41", Cause: "the mesh\ncalls it dead"},
		{Number: 3, Time: Start, Kind: "seized", Queue: "photos", Peer: "laptop", PeerID: "12D3KooW"},
	} {
		if e.Number > after && len(out) < limit {
			out = append(out, e)
		}
	}
	return out
}
