package client_test

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// methods has a call of each method of the client.
func methods() []method {
	return slices.Concat(taskMethods(), meshMethods(), queueMethods(), mailMethods(), boxMethods(), nodeMethods())
}

var (
	testTask = wire.Task{
		ID: taskID, State: "SUCCESS", Role: wire.RoleHome, Kind: "shell", Peer: "laptop", PeerID: "12D3KooW", Attempts: 1, Epoch: "7.1",
		Events: []wire.Event{{Time: start, Node: "here", State: "PENDING"}}, Times: wire.Times{Created: start, NotAfter: start.Add(time.Hour)},
		Ending: wire.Ending{ResultSize: 6, ResultHash: "sha256:c0ffee", ResultType: "text/plain"},
	}
	testSubmitted = wire.Submitted{ID: taskID, State: "PENDING", Target: "laptop", NotAfter: start}
	testQueue     = wire.Queue{Name: "build", Home: "here", Here: true, Generation: 3, Members: []wire.QueueMember{{Name: "here", Slots: 4}}}
	testPeer      = wire.Peer{Name: "laptop", ID: "12D3KooW", State: "OFFLINE", Roles: []string{"work"}}
	testLease     = wire.Lease{Task: taskID, Queue: "build", Role: wire.RoleHome, Peer: "laptop", State: "RUNNING", Epoch: "7.41", Granted: &start}
	testEvent     = wire.OwnershipEvent{Number: 4, Time: start, Kind: "granted", Task: taskID, Queue: "build", Peer: "laptop", Epoch: "7.41"}
	testSchedule  = wire.Schedule{ScheduleSpec: wire.ScheduleSpec{Queue: "build", Name: "n", Cron: "@daily", ScheduledTask: wire.ScheduledTask{Kind: "shell"}}, Next: &start, Fired: 7}
)

func taskMethods() []method {
	q := wire.Query{
		States: []string{"PENDING", "SENT"}, Role: "home", Peer: "p & q", Kind: "k",
		Label: "a=b c", Before: start, After: start.Add(-time.Hour), Cursor: "x/y+z", Limit: 7,
	}
	const (
		id     = taskID
		chosen = "?after=2026-11-20T11%3A00%3A00Z&before=2026-11-20T12%3A00%3A00Z&cursor=x%2Fy%2Bz&kind=k&label=a%3Db+c&limit=7&peer=p+%26+q&role=home&state=PENDING%2CSENT"
		picked = `{"states":["PENDING","SENT"],"role":"home","peer":"p \u0026 q","kind":"k","label":"a=b c","before":"2026-11-20T12:00:00Z","after":"2026-11-20T11:00:00Z"`
	)
	tasks := wire.Page[wire.Task]{Items: []wire.Task{testTask}, Next: "more"}
	return []method{
		{"Submit", `POST /v1/tasks {"target":"laptop","kind":"shell"}`, testSubmitted, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Submit(ctx, wire.Request{Target: "laptop", Kind: "shell"})
		}},
		{"SubmitMany", `POST /v1/tasks/batch {"target":"laptop","kind":"shell"}`, wire.Batch{Accepted: 1, Items: []wire.BatchItem{{Status: 202, Task: &testSubmitted}}}, func(ctx context.Context, c *client.Client) (any, error) {
			_, errs := c.SubmitMany(ctx, []wire.Request{{Target: "laptop", Kind: "shell"}})
			return nil, errs[0]
		}},
		{"Task", "GET /v1/tasks/" + id, testTask, func(ctx context.Context, c *client.Client) (any, error) { return c.Task(ctx, id) }},
		{"Tasks", "GET /v1/tasks" + chosen, tasks, func(ctx context.Context, c *client.Client) (any, error) { return c.Tasks(ctx, q) }},
		{"DeadLetters", "GET /v1/dead-letters" + chosen, tasks, func(ctx context.Context, c *client.Client) (any, error) { return c.DeadLetters(ctx, q) }},
		{"Wait", "GET /v1/tasks/" + id + "/wait?timeout=1m0s", testTask, func(ctx context.Context, c *client.Client) (any, error) { return c.Wait(ctx, id) }},
		{"Result", "GET /v1/tasks/" + id + "/result", []byte("Linux\n"), func(ctx context.Context, c *client.Client) (any, error) {
			r, _, err := c.Result(ctx, id)
			if err != nil {
				return nil, err
			}
			return nil, r.Close()
		}},
		{"Receipts", "GET /v1/tasks/" + id + "/receipts", page(wire.Receipt{Fact: "stored", Node: "here", Time: start, Proof: "AA==", Verified: true}), func(ctx context.Context, c *client.Client) (any, error) {
			return c.Receipts(ctx, id)
		}},
		{"Cancel", "POST /v1/tasks/" + id + `/cancel {"hard":true,"reason":"too slow"}`, testTask, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Cancel(ctx, id, true, "too slow")
		}},
		{"SetClass", "PUT /v1/tasks/" + id + `/class {"class":"low"}`, testTask, func(ctx context.Context, c *client.Client) (any, error) { return c.SetClass(ctx, id, "low") }},
		{"MoveTask", "PUT /v1/tasks/" + id + `/queue {"queue":"night"}`, testSubmitted, func(ctx context.Context, c *client.Client) (any, error) {
			return c.MoveTask(ctx, id, "night")
		}},
		{"Progress", "POST /v1/tasks/" + id + "/progress", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Progress(ctx, id) }},
		{"Retry", "POST /v1/tasks/" + id + "/retry", testSubmitted, func(ctx context.Context, c *client.Client) (any, error) { return c.Retry(ctx, id) }},
		{"Purge", "POST /v1/tasks/purge " + picked + `,"dry_run":true}`, wire.Purged{Tasks: 2, DryRun: true}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Purge(ctx, q, true)
		}},
		{"RetryDead", `POST /v1/dead-letters/retry {"ids":["` + id + `"]}`, wire.Redriven{Items: []wire.RedrivenItem{{ID: id, Task: &testSubmitted}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.RetryDead(ctx, wire.Redrive{IDs: []string{id}})
		}},
	}
}

func meshMethods() []method {
	member := wire.Member{Name: "laptop", ID: "12D3KooW", State: "SUSPECT", Since: &start, Load: &wire.Load{CPU: 0.5, Slots: 4}, Relays: []string{"r1"}}
	return []method{
		{"Peers", "GET /v1/peers", page(testPeer), func(ctx context.Context, c *client.Client) (any, error) { return c.Peers(ctx) }},
		{"Peer", "GET /v1/peers/lap%20top%2F%C3%BC", testPeer, func(ctx context.Context, c *client.Client) (any, error) { return c.Peer(ctx, "lap top/ü") }},
		{"Block", "POST /v1/peers/laptop/block", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Block(ctx, "laptop") }},
		{"Unblock", "POST /v1/peers/laptop/unblock", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Unblock(ctx, "laptop") }},
		{"Forget", "DELETE /v1/peers/laptop", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Forget(ctx, "laptop") }},
		{"Invite", `POST /v1/invitations {"name":"n","ttl":"1h","roles":["work","send"]}`, wire.Invitation{Ticket: "BALE1X", Expires: start, Roles: []string{"work"}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Invite(ctx, wire.InviteOptions{Name: "n", TTL: wire.Duration(time.Hour), Roles: []string{"work", "send"}})
		}},
		{"JoinRequests", "GET /v1/join-requests", page(wire.JoinRequest{Name: "field-10", ID: "12D3KooX", Code: "K7QM-2ZPA-77WD", Since: start}), func(ctx context.Context, c *client.Client) (any, error) {
			return c.JoinRequests(ctx)
		}},
		{"Accept", `POST /v1/join-requests/K7QM-2ZPA-77WD/accept {"name":"f","roles":["work","send"]}`, testPeer, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Accept(ctx, "K7QM-2ZPA-77WD", wire.AcceptOptions{Name: "f", Roles: []string{"work", "send"}})
		}},
		{"Rename", `POST /v1/peers/laptop/name {"name":"烽火台"}`, nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.Rename(ctx, "laptop", "烽火台")
		}},
		{"Revoke", `POST /v1/peers/laptop/revoke {"reason":"stolen"}`, nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.Revoke(ctx, "laptop", "stolen")
		}},
		{"Members", "GET /v1/members", page(member), func(ctx context.Context, c *client.Client) (any, error) { return c.Members(ctx) }},
		{"Member", "GET /v1/members/laptop", member, func(ctx context.Context, c *client.Client) (any, error) { return c.Member(ctx, "laptop") }},
		{"MeshSummary", "GET /v1/mesh", wire.MeshSummary{Mesh: "ab", Members: 5, States: map[string]int{"ALIVE": 3}, Risks: []wire.Note{{Code: wire.NoteNoRelay}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.MeshSummary(ctx)
		}},
		{"PruneMembers", `POST /v1/mesh/prune {"older_than":"36h","limit":7,"dry_run":true}`, wire.Pruned{Members: []string{"old"}, DryRun: true}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.PruneMembers(ctx, 36*time.Hour, 7, true)
		}},
		{"Converge", "POST /v1/mesh/converge", wire.Convergence{Asked: 2, Agree: []string{"laptop"}, Took: 0.041}, func(ctx context.Context, c *client.Client) (any, error) { return c.Converge(ctx) }},
		{"Ping", "POST /v1/peers/lap%20top%2F%C3%BC/ping", wire.Pong{Peer: "lap top/ü", RTT: 0.042, Direct: true}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Ping(ctx, "lap top/ü")
		}},
		{"Path", "GET /v1/peers/laptop/path", wire.PathReport{Peer: "laptop", Candidates: []wire.PathCandidate{{Addr: "a", Since: &start}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Path(ctx, "laptop")
		}},
		{"NetCheck", "GET /v1/netcheck", wire.NetCheck{Listen: []string{"a"}, NAT: "cone", UDP: true, Findings: []wire.Note{{Code: wire.NoteNoQUIC}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.NetCheck(ctx)
		}},
		{"EventPage", "GET /v1/events?after=3&limit=7&wait=2ms", wire.EventPage{Boot: 7, Items: []wire.NodeEvent{happened(4)}, Next: 4}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.EventPage(ctx, 3, 7, 2*time.Millisecond)
		}},
		{"MailEvents", "GET /v1/events?after=3&mail=topic%3Aorders", wire.EventPage{Boot: 7, Items: []wire.NodeEvent{happened(4)}, Next: 4}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.MailEvents(ctx, "topic:orders", 3, 0, 0)
		}},
	}
}

func queueMethods() []method {
	return []method{
		{"Queues", "GET /v1/queues", page(testQueue), func(ctx context.Context, c *client.Client) (any, error) { return c.Queues(ctx) }},
		{"Queue", "GET /v1/queues/a%2Fb%20%C3%BC", testQueue, func(ctx context.Context, c *client.Client) (any, error) { return c.Queue(ctx, "a/b ü") }},
		{"SetQueue", `PUT /v1/queues/build {"home":"here","concurrency":0}`, testQueue, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SetQueue(ctx, "build", wire.QueueSettings{Home: "here", Concurrency: new(0)})
		}},
		{"PauseQueue", "POST /v1/queues/build/pause", testQueue, func(ctx context.Context, c *client.Client) (any, error) { return c.PauseQueue(ctx, "build") }},
		{"ResumeQueue", "POST /v1/queues/build/resume", testQueue, func(ctx context.Context, c *client.Client) (any, error) { return c.ResumeQueue(ctx, "build") }},
		{"UnblockLane", `POST /v1/queues/a%2Fb/unblock {"key":"x y"}`, testQueue, func(ctx context.Context, c *client.Client) (any, error) {
			return c.UnblockLane(ctx, "a/b", "x y")
		}},
		{"SeizeQueue", `POST /v1/queues/build/seize {"from":"laptop","accept_loss":true}`, testQueue, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SeizeQueue(ctx, "build", "laptop")
		}},
		{"HandOffQueue", "POST /v1/queues/build/handoff {}", testQueue, func(ctx context.Context, c *client.Client) (any, error) {
			return c.HandOffQueue(ctx, "build", "")
		}},
		{"Schedules", "GET /v1/schedules", page(testSchedule), func(ctx context.Context, c *client.Client) (any, error) { return c.Schedules(ctx) }},
		{"AddSchedule", `POST /v1/schedules {"queue":"build","name":"n","cron":"@daily","kind":"shell"}`, testSchedule, func(ctx context.Context, c *client.Client) (any, error) {
			return c.AddSchedule(ctx, testSchedule.ScheduleSpec)
		}},
		{"PauseSchedule", "POST /v1/schedules/build/n/pause", testSchedule, func(ctx context.Context, c *client.Client) (any, error) {
			return c.PauseSchedule(ctx, "build", "n", true)
		}},
		{"PauseSchedule", "POST /v1/schedules/build/n/resume", testSchedule, func(ctx context.Context, c *client.Client) (any, error) {
			return c.PauseSchedule(ctx, "build", "n", false)
		}},
		{"RemoveSchedule", "DELETE /v1/schedules/a%2Fb/n", nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.RemoveSchedule(ctx, "a/b", "n")
		}},
		{"Drain", `POST /v1/drain {"on":true}`, wire.Drained{On: true, Running: 1}, func(ctx context.Context, c *client.Client) (any, error) { return c.Drain(ctx, true) }},
		{"RecoverLeases", `POST /v1/leases/recover {"owner":"n2","dry_run":true}`, wire.Recovered{DryRun: true, Taken: []wire.Lease{testLease}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.RecoverLeases(ctx, "n2", true)
		}},
		{"Timeline", "GET /v1/ownership/timeline?queue=build", wire.Timeline{Items: []wire.TimelineEvent{{Node: "here", OwnershipEvent: testEvent}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Timeline(ctx, wire.TimelineQuery{Queue: "build"})
		}},
		{"Leases", "GET /v1/leases?limit=7&owner=lap+top&queue=build&role=home", page(testLease), func(ctx context.Context, c *client.Client) (any, error) {
			return c.Leases(ctx, wire.LeaseFilter{Queue: "build", Owner: "lap top", Role: wire.RoleHome, Limit: 7})
		}},
		{"ReleaseLease", "POST /v1/leases/" + taskID + "/release", testLease, func(ctx context.Context, c *client.Client) (any, error) { return c.ReleaseLease(ctx, taskID) }},
		{"LeaseConflicts", "GET /v1/leases/conflicts", page(wire.LeaseConflict{Time: start, Task: taskID, Cause: "epoch 7.41 is newer"}), func(ctx context.Context, c *client.Client) (any, error) {
			return c.LeaseConflicts(ctx)
		}},
		{"OwnershipEvents", "GET /v1/ownership/events?after=1&limit=7", page(testEvent), func(ctx context.Context, c *client.Client) (any, error) {
			return c.OwnershipEvents(ctx, 1, 7)
		}},
	}
}

func nodeMethods() []method {
	health := wire.Health{Status: "ok"}
	return []method{
		{"Handlers", "GET /v1/handlers", page(wire.Handler{Kind: "shell", Allow: []string{"peer:laptop"}}), func(ctx context.Context, c *client.Client) (any, error) { return c.Handlers(ctx) }},
		{"AddHandler", `POST /v1/handlers {"kind":"shell","exec":["/bin/uname"],"allow":["peer:laptop"]}`, nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.AddHandler(ctx, wire.HandlerSpec{Kind: "shell", Exec: []string{"/bin/uname"}, Allow: []string{"peer:laptop"}})
		}},
		{"RemoveHandler", "DELETE /v1/handlers/shell", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.RemoveHandler(ctx, "shell") }},
		{"Status", "GET /v1/status", wire.Status{Name: "here", ID: "12D3KooW", Started: start, Outbox: map[string]int{"PENDING": 3}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Status(ctx)
		}},
		{"Why", "GET /v1/why/" + taskID, wire.Blocker{Subject: taskID, State: "PENDING", Cause: wire.Note{Code: wire.NoteNoAddress, NoteArgs: wire.NoteArgs{Peer: "laptop"}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Why(ctx, taskID)
		}},
		{"StoreStats", "GET /v1/store", wire.StoreStats{Engine: "nutsdb", Schema: 1, Keys: 9}, func(ctx context.Context, c *client.Client) (any, error) { return c.StoreStats(ctx) }},
		{"Compact", "POST /v1/store/compact", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Compact(ctx) }},
		{"Snapshot", `POST /v1/store/snapshot {"dir":"/nowhere/backup"}`, wire.Snapshot{Dir: "/nowhere/backup"}, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.Snapshot(ctx, "/nowhere/backup", "")
		}},
		{"Healthy", "GET /healthz", health, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Healthy(ctx) }},
		{"Ready", "GET /readyz", health, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.Ready(ctx) }},
		{"Metrics", "GET /metrics", []byte("balefire_build_info 1\n"), func(ctx context.Context, c *client.Client) (any, error) { return c.Metrics(ctx) }},
		{"OpenAPI", "GET /openapi.json", []byte("{}"), func(ctx context.Context, c *client.Client) (any, error) { return c.OpenAPI(ctx) }},
		{"Profile", "GET /debug/pprof/goroutine", []byte("goroutine"), func(ctx context.Context, c *client.Client) (any, error) {
			return c.Profile(ctx, "goroutine", 0)
		}},
		{"Stop", `POST /v1/stop {"handoff":true,"within":"1m"}`, nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.Stop(ctx, true, time.Minute)
		}},
	}
}

// happened returns an event with this number.
func happened(seq uint64) wire.NodeEvent {
	return wire.NodeEvent{Seq: seq, Time: start, Kind: "peer.connected", Peer: "laptop", Fields: map[string]string{"path": "quic direct"}}
}

// lines answers a request for a stream of events with lines, and ends the response when the
// node stops.
func lines(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = w.Write([]byte(text))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}
