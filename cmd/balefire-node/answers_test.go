package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// testStart is the time of everything that happens at a canned node.
var testStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const (
	testID   = "01a1f84f-fb79-727b-b679-7a95fb475002" // of its only task
	testBoot = 7
)

// newCannedNode returns a node that gives the same answers every time.
func newCannedNode() *clienttest.Node {
	return clienttest.New(map[string]any{
		"GET /v1/status": testStatus(),
		"GET /v1/store":  testStatus().Store,

		"POST /v1/tasks":             wire.Submitted{ID: testID, State: "PENDING", Target: "laptop", NotAfter: testStart},
		"GET /v1/tasks":              wire.Page[wire.Task]{Items: []wire.Task{testTask(testID)}, Next: "more"},
		"GET /v1/tasks/{id}":         func(r *http.Request) any { return testTask(r.PathValue("id")) },
		"POST /v1/tasks/{id}/cancel": func(r *http.Request) any { return cancelledTask(r.PathValue("id")) },
		"POST /v1/tasks/{id}/retry":  wire.Submitted{ID: testID, State: "PENDING", Target: "laptop", NotAfter: testStart},
		"GET /v1/dead-letters":       wire.Page[wire.Task]{Items: []wire.Task{}},
		"GET /v1/handlers":           wire.Page[wire.Handler]{Items: []wire.Handler{}},

		"GET /v1/peers":                page(testPeer("laptop")),
		"POST /v1/peers/{name}/name":   nil,
		"POST /v1/peers/{name}/revoke": nil,
		"POST /v1/peers/{name}/ping": func(r *http.Request) any {
			return wire.Pong{Peer: r.PathValue("name"), RTT: 0.042, Path: "quic /ip4/192.0.2.1/udp/4001/quic-v1", Direct: true}
		},
		"GET /v1/peers/{name}/path": testPath,
		"GET /v1/netcheck":          testNetCheck(),
		"GET /v1/join-requests": page(wire.JoinRequest{
			Name: "field-10", ID: "12D3KooX", Code: "K7QM-2ZPA-77WD", Addrs: []string{"/ip4/192.168.1.9/tcp/4001"}, Since: testStart.Add(-time.Minute), Last: testStart,
		}),
		"POST /v1/join-requests/{id}/accept": acceptedPeer,

		"GET /v1/members": page(testMembers()...),
		"GET /v1/members/{name}": func(r *http.Request) any {
			return wire.Member{Name: r.PathValue("name"), ID: "12D3KooW", State: "ALIVE", Connected: true, Path: "direct"}
		},
		"GET /v1/mesh": wire.MeshSummary{
			Mesh: "ab", Members: 5, States: map[string]int{"ALIVE": 3, "SUSPECT": 1, "DEAD": 1}, Connected: 3, Direct: 2, Relayed: 1,
			Root: "c0ffee", Risks: []wire.Note{{Code: wire.NoteNoRelay}},
		},
		"POST /v1/mesh/prune": func(r *http.Request) any {
			return wire.Pruned{Members: []string{"old"}, DryRun: document[wire.Prune](r).DryRun}
		},
		"POST /v1/mesh/converge": wire.Convergence{Asked: 2, Agree: []string{"laptop"}, Failed: []string{"field: no answer within 5s"}, Took: 0.041},

		"GET /v1/events": wire.EventPage{Boot: testBoot, Items: []wire.NodeEvent{testEvent(1)}, Next: 1},

		"GET /v1/queues":                 page(testQueue("build"), remoteQueue("photos")),
		"GET /v1/queues/{name}":          shownQueueOf,
		"PUT /v1/queues/{name}":          setQueue,
		"POST /v1/queues/{name}/pause":   changedQueue(func(q *wire.Queue, _ *http.Request) { q.Paused = true }),
		"POST /v1/queues/{name}/resume":  changedQueue(func(*wire.Queue, *http.Request) {}),
		"POST /v1/queues/{name}/unblock": changedQueue(func(*wire.Queue, *http.Request) {}),
		"POST /v1/queues/{name}/seize": changedQueue(func(q *wire.Queue, r *http.Request) {
			q.Generation, q.SeizedFrom = 4, document[wire.Seize](r).From
		}),
		"POST /v1/queues/{name}/handoff": handedOff,
		"POST /v1/drain": func(r *http.Request) any {
			return wire.Drained{On: document[wire.Drain](r).On, Running: 1, Going: 2}
		},

		"GET /v1/leases": func(r *http.Request) any {
			if r.URL.Query().Get("role") == "boss" {
				return fmt.Errorf("%w: query.role: it must be home or owner", wire.ErrInvalid)
			}
			return page(testLeases()...)
		},
		"GET /v1/leases/conflicts": page(wire.LeaseConflict{
			Time: testStart.Add(-time.Minute), Task: testID, Queue: "build", Peer: "烽火台", PeerID: "12D3KooX", Epoch: "7.40", Cause: "epoch 7.41 is newer", State: "SUCCESS", Digest: "sha256:c0ffee",
		}, wire.LeaseConflict{Time: testStart.Add(-30 * time.Second), Mail: testID, Box: "agent:ceo@alpha", Epoch: "1.1795212606.1", Cause: wire.LeaseMailSettled}),
		"POST /v1/leases/{task}/release": func(r *http.Request) any {
			return wire.Lease{Task: r.PathValue("task"), Queue: "build", Role: wire.RoleHome, Peer: "laptop", PeerID: "12D3KooW", State: "PENDING", Epoch: "7.41"}
		},
		"POST /v1/leases/recover":    recoveredLeases,
		"GET /v1/ownership/events":   ownershipEvents(testOwnershipEvents()...),
		"GET /v1/ownership/timeline": testTimeline(),

		"GET /v1/schedules":                        page(testSchedule("build", "nightly"), pausedSchedule("build", "weekly")),
		"POST /v1/schedules":                       addedSchedule,
		"DELETE /v1/schedules/{queue}/{name}":      nil,
		"POST /v1/schedules/{queue}/{name}/pause":  func(r *http.Request) any { return pausedSchedule(r.PathValue("queue"), r.PathValue("name")) },
		"POST /v1/schedules/{queue}/{name}/resume": func(r *http.Request) any { return testSchedule(r.PathValue("queue"), r.PathValue("name")) },
	})
}

func page[T any](items ...T) wire.Page[T] { return wire.Page[T]{Items: items} }

// document returns the document of a request.
func document[T any](r *http.Request) (v T) {
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		panic(err) // a command sent it
	}
	return v
}

func testStatus() wire.Status {
	return wire.Status{
		Name: "here", ID: "12D3KooW", Mesh: "ab", Version: "dev", Started: testStart, Outbox: map[string]int{"PENDING": 3},
		Store: wire.StoreStats{Engine: datadir.EngineNuts, Schema: 1, Keys: 9},
	}
}

func testTask(id string) wire.Task {
	return wire.Task{
		ID: id, State: proto.Success.Name(), Role: wire.RoleHome, Kind: "shell", Class: "normal",
		Target: "laptop", Peer: "laptop", PeerID: "12D3KooW", Attempts: 1, Epoch: "7.1", BodySize: 3,
		Receipts: []string{"stored", "accepted", "started", "done"},
		Events:   []wire.Event{{Time: testStart, Node: "here", State: "PENDING"}},
		Times:    wire.Times{Created: testStart, NotAfter: testStart.Add(proto.DefaultTTL)},
		Ending:   wire.Ending{ResultSize: 6, ResultType: "text/plain"},
	}
}

func cancelledTask(id string) wire.Task {
	t := testTask(id)
	t.State = "CANCELLED"
	return t
}

func testPeer(name string) wire.Peer {
	return wire.Peer{Name: name, ID: "12D3KooW", State: "OFFLINE", Roles: []string{"work"}}
}

func acceptedPeer(r *http.Request) any {
	if name := document[wire.AcceptOptions](r).Name; name != "" {
		return testPeer(name)
	}
	return testPeer("field-10")
}

func testMembers() []wire.Member {
	return []wire.Member{
		{Name: "here", ID: "12D3KooH", Self: true, State: "ALIVE", Eligible: true, Phase: "RUNNING", Boot: testBoot},
		{Name: "laptop", ID: "12D3KooW", State: "SUSPECT", Since: ago(time.Hour), Accusers: 2, Incarnation: 3, Load: &wire.Load{CPU: 0.5, Memory: 0.25, Slots: 4, Busy: 1}, Relays: []string{"r1"}, Connected: true, Path: "relayed"},
	}
}

func testPath(r *http.Request) any {
	return wire.PathReport{
		Peer: r.PathValue("name"), ID: "12D3KooW", Connected: true, Cause: wire.Note{Code: wire.PathNewest},
		Candidates: []wire.PathCandidate{
			{Addr: "/ip4/192.0.2.1/udp/4001/quic-v1", Network: "quic", Connected: true, InUse: true, RTT: 0.008, Loss: 0.004, Rate: 3 << 20, Score: 0.91, Terms: []string{"bandwidth 0.5", "latency 0.45", "loss -0.04"}, Since: ago(time.Minute)},
			{Addr: "/ip4/198.51.100.1/udp/4001/quic-v1/p2p-circuit", Network: "quic", Relay: "r1", Connected: true, RTT: 0.042, Score: 0.5},
		},
		Punches: []wire.Punch{{Time: *ago(time.Minute), OK: true, Detail: "by a plain address", Took: 0.412}},
	}
}

// testNetCheck is a network behind a NAT.
func testNetCheck() wire.NetCheck {
	return wire.NetCheck{
		Listen: []string{"/ip4/0.0.0.0/udp/4001/quic-v1"}, Observed: []wire.Observed{{Addr: "/ip4/203.0.113.4/udp/4001/quic-v1", By: []string{"r1", "laptop"}}},
		NAT: "cone", UDP: true, TCP: true, Reservations: []wire.Reservation{{Relay: "r1", Until: testStart.Add(time.Hour), Score: 0.9}},
		Relaying: &wire.Relaying{Reservations: 1, Circuits: 2, Bytes: 3 << 20}, DHT: 4, MDNS: "on", Gossip: 4, Strangers: 1,
		Findings: []wire.Note{{Code: wire.NoteNoQUIC}},
	}
}

func testEvent(seq uint64) wire.NodeEvent {
	return wire.NodeEvent{Seq: seq, Time: testStart, Kind: "peer.connected", Peer: "laptop", Fields: map[string]string{"path": "quic direct"}}
}

// nextEvents answers a request for a page of events with the next of pages. Without one
// it answers like a node: when the request or the node ends.
func nextEvents(pages <-chan wire.EventPage) func(*http.Request) any {
	return func(r *http.Request) any {
		after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
		select {
		case p := <-pages:
			return p
		default:
		}
		wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
		ctx, cancel := context.WithTimeout(r.Context(), wait)
		defer cancel()
		select {
		case p := <-pages:
			return p
		case <-ctx.Done():
			return wire.EventPage{Boot: testBoot, Items: []wire.NodeEvent{}, Next: after}
		}
	}
}

// testQueue is a queue whose home is the node.
func testQueue(name string) wire.Queue {
	return wire.Queue{
		Name: name, Home: "here", HomeID: "12D3KooH", Here: true, Generation: 3, Changed: ago(time.Hour),
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

func shownQueueOf(r *http.Request) any {
	if name := r.PathValue("name"); name == "photos" {
		return remoteQueue(name)
	}
	return testQueue(r.PathValue("name"))
}

func changedQueue(change func(*wire.Queue, *http.Request)) func(*http.Request) any {
	return func(r *http.Request) any {
		q := testQueue(r.PathValue("name"))
		change(&q, r)
		return q
	}
}

func setQueue(r *http.Request) any {
	q, s := testQueue(r.PathValue("name")), document[wire.QueueSettings](r)
	if s.Paused != nil {
		q.Paused = *s.Paused
	}
	if s.Draining != nil {
		q.Draining = *s.Draining
	}
	return q
}

func handedOff(r *http.Request) any {
	q := remoteQueue(r.PathValue("name"))
	if to := document[wire.HandOff](r).To; to != "" {
		q.Home = to
	}
	q.Generation, q.Going = 4, 240
	return q
}

const otherLeaseTask = "01a1f850-0000-7000-8000-000000000001"

// testLeases are a granted lease and an owned one.
func testLeases() []wire.Lease {
	until, over := testStart.Add(12*time.Second), testStart.Add(-5*time.Second)
	return []wire.Lease{
		{Task: testID, Queue: "build", Kind: "shell", Role: wire.RoleHome, Peer: "laptop", PeerID: "12D3KooW", State: "RUNNING", Epoch: "7.41", Attempts: 1, Granted: ago(time.Minute), Until: &until},
		{Task: otherLeaseTask, Queue: "photos", Kind: "llm", Role: wire.RoleOwner, Peer: "laptop", PeerID: "12D3KooW", State: "STARTED", Epoch: "9.2", Attempts: 2, Abandons: 1, Cancel: true, Lapsed: true, Until: &over},
	}
}

// recoveredLeases are one that was revoked, and one that was kept.
func recoveredLeases(r *http.Request) any {
	taken := wire.Lease{Task: testID, Queue: "build", Kind: "shell", Role: wire.RoleHome, Peer: "laptop", PeerID: "12D3KooW", State: "ACCEPTED", Epoch: "7.41"}
	kept := taken
	kept.Task, kept.State = otherLeaseTask, "RUNNING"
	return wire.Recovered{DryRun: document[wire.Recover](r).DryRun, Taken: []wire.Lease{taken}, Kept: []wire.Lease{kept}}
}

func testOwnershipEvents() []wire.OwnershipEvent {
	return []wire.OwnershipEvent{
		{Number: 1, Time: testStart.Add(-time.Minute), Kind: "granted", Task: testID, Queue: "build", Peer: "laptop", PeerID: "12D3KooW", Epoch: "7.41"},
		{Number: 2, Time: testStart.Add(-time.Second), Kind: "owner_dead", Task: testID, Queue: "build", Peer: "laptop", PeerID: "12D3KooW", Epoch: "7.41", Detail: "the mesh\ncalls it dead"},
		{Number: 3, Time: testStart, Kind: "seized", Queue: "photos", Peer: "laptop", PeerID: "12D3KooW"},
	}
}

// ownershipEvents answers with those of the events that a request asks for.
func ownershipEvents(all ...wire.OwnershipEvent) func(*http.Request) any {
	return func(r *http.Request) any {
		after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		out := page[wire.OwnershipEvent]()
		for _, e := range all {
			if e.Number > after && len(out.Items) < limit {
				out.Items = append(out.Items, e)
			}
		}
		return out
	}
}

// testTimeline has the events of two nodes; a third does not answer.
func testTimeline() wire.Timeline {
	e := wire.OwnershipEvent{Number: 4, Time: testStart, Kind: "granted", Task: testID, Queue: "build", Peer: "laptop", PeerID: "12D3KooW", Epoch: "7.41"}
	taken := e
	taken.Number, taken.Kind, taken.Peer, taken.PeerID = 9, "started", "here", "12D3KooH"
	return wire.Timeline{
		Items: []wire.TimelineEvent{{Node: "here", OwnershipEvent: e}, {Node: "laptop", OwnershipEvent: taken}},
		Asked: []string{"here", "laptop"}, Silent: []string{"field-09"},
	}
}

// testSchedule is a schedule that has created a task.
func testSchedule(queue, name string) wire.Schedule {
	next := testStart.Add(14 * time.Hour)
	return wire.Schedule{
		ScheduleSpec: wire.ScheduleSpec{Queue: queue, Name: name, Cron: "0 2 * * *", Zone: "Europe/Paris", Missed: "run-once", ScheduledTask: wire.ScheduledTask{Kind: "shell", Class: "low"}},
		Last:         ago(10 * time.Hour), LastTask: testID, Next: &next, Fired: 7, Skipped: 1,
	}
}

func pausedSchedule(queue, name string) wire.Schedule {
	s := testSchedule(queue, name)
	s.Paused, s.Next = true, nil
	return s
}

func addedSchedule(r *http.Request) any {
	spec := document[wire.ScheduleSpec](r)
	s := testSchedule(spec.Queue, spec.Name)
	s.ScheduleSpec = spec
	return s
}
