package api

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

var update = flag.Bool("update", false, "write testdata")

const (
	jsonTask = `{"target":"laptop","kind":"shell","args":["uname","-a"]}`
	selfTask = `{"target":"here","kind":"later","args":["uname","-a"]}`
)

// ask sends one request to the API server of n and returns the response and its body. The
// OpenAPI document must list the status for the route.
func ask(t *testing.T, n *node.Node, method, target, contentType, body string, more ...string) (*http.Response, string) {
	t.Helper()
	s := serverOf(n)
	r := newRequest(t, method, target, contentType, body, more...)
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	described(t, s, r, w.Code)
	return w.Result(), w.Body.String()
}

// servers has the API server of each node that was asked: to describe its routes takes longer
// than a request.
var servers sync.Map

func serverOf(n *node.Node) *Server {
	s, ok := servers.Load(n)
	if !ok {
		described := New(n, Config{})
		described.describeProblems()
		s, _ = servers.LoadOrStore(n, described)
	}
	return s.(*Server)
}

// askUndescribed is ask for errors that the node does not have otherwise.
func askUndescribed(t *testing.T, n *node.Node, method, target, contentType, body string) (*http.Response, string) {
	t.Helper()
	w := httptest.NewRecorder()
	serverOf(n).Handler().ServeHTTP(w, newRequest(t, method, target, contentType, body))
	return w.Result(), w.Body.String()
}

// newRequest returns a request with pairs of header names and values.
func newRequest(t *testing.T, method, target, contentType, body string, headers ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// described fails the test unless the OpenAPI document lists the status for the route.
func described(t *testing.T, s *Server, r *http.Request, status int) {
	t.Helper()
	_, pattern := s.mux.Handler(r)
	_, path, _ := strings.Cut(pattern, " ")
	item := s.api.OpenAPI().Paths[path]
	if item == nil || status == http.StatusMethodNotAllowed {
		return // the document itself, or no route
	}
	o := map[string]*huma.Operation{"GET": item.Get, "HEAD": item.Get, "PUT": item.Put, "POST": item.Post, "DELETE": item.Delete}[r.Method]
	if o == nil || o.Responses[strconv.Itoa(status)] == nil {
		t.Errorf("%s %s returns %d, which the document does not list", r.Method, path, status)
	}
}

// problemOfBody reads a problem and checks the fields that every problem has.
func problemOfBody(t *testing.T, res *http.Response, body string) wire.Problem {
	t.Helper()
	var p wire.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("status %d, the body is not a problem: %v\n%s", res.StatusCode, err, body)
	}
	if got := res.Header.Get("Content-Type"); got != wire.ProblemType {
		t.Errorf("content type %q", got)
	}
	if p.Status != res.StatusCode || p.Code == "" || p.Title == "" || p.Detail == "" || p.Fix == "" || !strings.HasPrefix(p.Type, "urn:balefire:problem:") {
		t.Errorf("status %d: the problem lacks a field: %+v", res.StatusCode, p)
	}
	return p
}

// A routed request is one of a sequence to the same node.
type routed struct {
	method, target, body string
	status               int
	in                   string      // part of the response
	then                 func() bool // what holds after it; nil: nothing else
}

// TestRoutes calls every route with valid parameters, one after the other at the same
// node, and checks what the node did.
func TestRoutes(t *testing.T) {
	stopped := false
	n := newNode(t, func(cfg *node.Config) { cfg.Stop = func() { stopped = true } })
	nodetest.Admit(t, n, "laptop")
	nodetest.Admit(t, n, "tablet")
	nodetest.Happen(t, n, 3)
	asked := map[string]bool{}
	s := serverOf(n)
	run := func(name string, rows []routed) {
		for _, tt := range rows {
			t.Run(name+" "+tt.method+" "+tt.target, func(t *testing.T) {
				ct := ""
				if tt.body != "" {
					ct = "application/json; charset=utf-8"
				}
				res, body := ask(t, n, tt.method, tt.target, ct, tt.body)
				if res.StatusCode != tt.status || !strings.Contains(body, tt.in) {
					t.Fatalf("status %d, want %d with %s:\n%s", res.StatusCode, tt.status, tt.in, body)
				}
				if tt.then != nil && !tt.then() {
					t.Errorf("the node did not do it; the response is %s", body)
				}
				if res.Header.Get("X-Content-Type-Options") != "nosniff" {
					t.Error("a browser may guess the content type of the response")
				}
				if location := res.Header.Get("Location"); tt.status == 202 && (location == "" || !strings.Contains(body, path.Base(location))) {
					t.Errorf("Location %q of %s", location, body)
				}
			})
			_, pattern := s.mux.Handler(httptest.NewRequest(tt.method, tt.target, http.NoBody))
			asked[pattern] = true
		}
	}
	run("tasks", taskRoutes(t, n))
	run("peers", peerRoutes(t, n))
	run("queues", queueRoutes(t, n))
	run("leases", leaseRoutes(t, n))
	run("mailboxes", mailboxRoutes(t, n))
	run("topics", topicRoutes(t, n))
	run("node", nodeRoutes(t, n))
	run("stop", []routed{
		{"POST", "/v1/stop", `{"within":"soon"}`, 422, "is not a duration", nil},
		{"POST", "/v1/stop", `{"handoff":true,"within":"1ns"}`, 504, "deadline", func() bool { return !stopped }}, // nobody can take over its queue
		{"POST", "/v1/stop", "", 204, "", func() bool { return stopped }},
	})
	everyRouteIs(t, s, asked)
}

func taskRoutes(t *testing.T, n *node.Node) []routed {
	task := func(id string) wire.Task {
		v, err := n.Views.Task(t.Context(), id)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	done := ended(t, n, wire.Request{Kind: "echo", Body: []byte("Linux\n")})
	failed, dead := ended(t, n, wire.Request{Kind: "fail"}), ended(t, n, wire.Request{Kind: "dead", Retries: 1})
	waits, hard := submitted(t, n, wire.Request{Target: "laptop", Kind: "later"}), submitted(t, n, wire.Request{Target: "laptop", Kind: "later"})
	return []routed{
		{"POST", "/v1/tasks", jsonTask, 202, `"state":"PENDING"`, func() bool {
			all := tasks(t, n, wire.Query{Kind: "shell"})
			return len(all) == 1 && all[0].Target == "laptop"
		}},
		{"POST", "/v1/tasks/batch", "[" + jsonTask + "]", 200, `"accepted":1`, func() bool { return len(tasks(t, n, wire.Query{Kind: "shell"})) == 2 }},
		{"GET", "/v1/tasks?limit=1", "", 200, `"next":"`, nil}, // see TestTaskQueries
		{"GET", "/v1/tasks?order=random", "", 422, "order", nil},
		{"GET", "/v1/tasks/" + done, "", 200, `"peer":"here"`, nil},
		{"GET", "/v1/tasks/" + done[:35], "", 200, `"id":"` + done + `"`, nil},
		{"GET", "/v1/tasks/" + done + "/wait?timeout=1s", "", 200, `"state":"SUCCESS"`, nil},
		{"GET", "/v1/tasks/" + done + "/result", "", 200, "Linux\n", nil},
		{"GET", "/v1/tasks/" + done + "/receipts", "", 200, `"verified":true`, nil},
		{"POST", "/v1/tasks/" + waits + "/cancel", "", 200, `"id":"` + waits, func() bool { return task(waits).State == "CANCELLED" }},
		{"POST", "/v1/tasks/" + hard + "/cancel", `{"hard":true,"reason":"too slow"}`, 200, `"reason":"too slow"`, nil},
		{"POST", "/v1/tasks/" + failed + "/retry", "", 202, `"state":"PENDING"`, func() bool { return task(failed).RedrivenAs != "" }},
		{"POST", "/v1/tasks/purge", `{"states":["SUCCESS"],"kind":"echo","dry_run":true}`, 200, `"tasks":1`, func() bool { return task(done).ID == done }},
		{"POST", "/v1/tasks/purge", `{"states":["SUCCESS"],"kind":"echo"}`, 200, `"tasks":1`, func() bool { return len(tasks(t, n, wire.Query{Kind: "echo", Role: wire.RoleHome})) == 0 }},
		{"GET", "/v1/dead-letters?order=oldest", "", 200, `{"items":[{"id":"` + failed, nil},
		{"GET", "/v1/dead-letters?kind=dead", "", 200, `{"items":[{"id":"` + dead, nil},
		{"GET", "/v1/dead-letters?kind=k", "", 200, `"items":[]`, nil},
		{"POST", "/v1/dead-letters/retry", `{"ids":["` + dead + `"]}`, 200, `"failed":0`, func() bool { return task(dead).RedrivenAs != "" }},
	}
}

func peerRoutes(t *testing.T, n *node.Node) []routed {
	peer := func(name string) wire.Peer {
		v, err := n.Views.Peer(name)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	var asks proto.PeerID
	asks[0] = 7
	if r := n.Pairing.Join(t.Context(), asks, &proto.JoinRequest{Name: "field-10"}); !r.GetPending() {
		t.Fatalf("the request to join is not pending: %v", r)
	}
	code := pairing.JoinCode(asks)
	return []routed{
		{"GET", "/v1/peers", "", 200, `"name":"laptop"`, nil},
		{"GET", "/v1/peers/laptop", "", 200, `"state":"OFFLINE"`, nil},
		{"POST", "/v1/peers/laptop/block", "", 204, "", func() bool { return peer("laptop").State == "BLOCKED" }},
		{"POST", "/v1/peers/laptop/unblock", "", 204, "", func() bool { return peer("laptop").State == "OFFLINE" }},
		{"POST", "/v1/peers/laptop/ping", "", 409, "laptop", nil},
		{"GET", "/v1/peers/laptop/path", "", 200, `"peer":"laptop"`, nil},
		{"POST", "/v1/peers/laptop/name", `{"name":"mine"}`, 204, "", func() bool { return peer("laptop").Alias == "mine" }},
		{"POST", "/v1/peers/laptop/name", `{"name":""}`, 204, "", func() bool { return peer("laptop").Alias == "" }},
		{"GET", "/v1/join-requests", "", 200, `"code":"` + code + `"`, nil},
		{"POST", "/v1/join-requests/AAAA-AAAA-AAAA/accept", "", 404, "AAAA-AAAA-AAAA", nil},
		{"POST", "/v1/join-requests/" + code + "/accept", `{"name":"f","roles":["work","send"]}`, 200, `"roles":["work","send"]`, nil},
		{"GET", "/v1/members", "", 200, `"name":"laptop"`, nil},
		{"GET", "/v1/members/laptop", "", 200, `"name":"laptop"`, nil},
		{"GET", "/v1/mesh", "", 200, `"members":3`, nil},
		{"POST", "/v1/mesh/prune", `{"older_than":"36h","limit":9,"dry_run":true}`, 200, `{"members":[],"dry_run":true}`, nil},
		{"POST", "/v1/mesh/prune", `{"older_than":"-36h"}`, 422, "", nil},
		{"POST", "/v1/mesh/prune", `{"limit":-1}`, 422, "", nil},
		{"POST", "/v1/mesh/converge", "", 200, `"asked":0`, nil},
		{"GET", "/v1/netcheck", "", 200, `"listen":["/ip4/127.0.0.1/tcp/`, nil},
		{"GET", "/v1/events", "", 200, `"kind":"lan.stranger"`, nil},
		{"GET", "/v1/events?after=1&limit=1&wait=2ms", "", 200, `"items":[{"seq":2,`, nil},
		{"DELETE", "/v1/peers/laptop", "", 409, "2 tasks and results wait for it", nil},
		{"POST", "/v1/peers/tablet/revoke", `{"reason":"stolen"}`, 204, "", func() bool { return peer("tablet").State == "REVOKED" }},
		{"DELETE", "/v1/peers/tablet", "", 204, "", func() bool { return len(n.Views.Peers()) == 1 }},
		{"POST", "/v1/invitations", "", 201, `"ticket":"BALE1`, nil},
		{"POST", "/v1/invitations", `{"name":"n","ttl":"1h","roles":["work","send"]}`, 201, `"roles":["work","send"]`, nil},
	}
}

func queueRoutes(t *testing.T, n *node.Node) []routed {
	queue := func() wire.Queue {
		v, err := n.Queues.Get(t.Context(), "build")
		if err != nil {
			t.Error(err)
		}
		return v
	}
	schedules := func() []wire.Schedule {
		all, err := n.Schedules.List(t.Context())
		if err != nil {
			t.Error(err)
		}
		return all
	}
	return []routed{
		{"PUT", "/v1/queues/build", `{"home":"here","strategy":"priority","concurrency":0,"labels":[],"kinds":[{"kind":"llm","concurrency":2}],"lease_ms":30000}`, 200, `"generation":1`, func() bool {
			q := queue()
			return q.Strategy == "priority" && q.LeaseMs == 30000 && len(q.Kinds) == 1 && q.Kinds[0].Concurrency == 2
		}},
		{"GET", "/v1/queues", "", 200, `"name":"build"`, nil},
		{"GET", "/v1/queues/build", "", 200, `"members":[{"name":"here"`, nil},
		{"GET", "/v1/queues/a%2Fb", "", 422, "a/b", nil},
		{"POST", "/v1/queues/build/pause", "", 200, `"paused":true`, func() bool { return queue().Paused }},
		{"POST", "/v1/queues/build/resume", "", 200, `"name":"build"`, func() bool { return !queue().Paused }},
		{"POST", "/v1/queues/build/unblock", `{"key":"repo-7"}`, 404, `repo-7`, nil},
		{"POST", "/v1/queues/build/seize", `{"from":"laptop","accept_loss":true}`, 409, `build`, nil},
		{"POST", "/v1/queues/build/seize", `{"from":"laptop"}`, 422, `lost unless that node comes back with its disk`, nil},
		{"POST", "/v1/queues/build/seize", `{"from":"","accept_loss":true}`, 422, `body.from`, nil},
		{"POST", "/v1/queues/build/handoff", "", 409, `name one with --to`, nil},
		{"POST", "/v1/queues/build/handoff", `{"to":"field-07"}`, 404, `field-07`, nil},
		{"POST", "/v1/schedules", `{"queue":"build","name":"nightly","cron":"@daily","kind":"shell","missed":"run-all","missed_cap":3,"args":["make"]}`, 201, `"missed_cap":3`, func() bool {
			s := schedules()
			return len(s) == 1 && s[0].Missed == "run-all" && s[0].Args[0] == "make"
		}},
		{"POST", "/v1/schedules", `{"queue":"build","name":"nightly","cron":"@daily","kind":"shell","missed":"later"}`, 422, "body.missed", nil},
		{"GET", "/v1/schedules", "", 200, `"cron":"@daily"`, nil},
		{"POST", "/v1/schedules/build/nightly/pause", "", 200, `"paused":true`, func() bool { return schedules()[0].Paused }},
		{"POST", "/v1/schedules/build/nightly/resume", "", 200, `"next"`, func() bool { return !schedules()[0].Paused }},
		{"DELETE", "/v1/schedules/build/nightly", "", 204, "", func() bool { return len(schedules()) == 0 }},
		{"POST", "/v1/queues/build/pause", "", 200, "", nil}, // the next tasks wait
	}
}

// awaitTask waits until a task is as it should be.
func awaitTask(t *testing.T, n *node.Node, id string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			why, err := n.Explainer.Why(t.Context(), id)
			t.Fatalf("the task waits: %+v, %v", why, err)
		}
	}
}

func leaseRoutes(t *testing.T, n *node.Node) []routed {
	if _, err := n.Queues.Set(t.Context(), "run", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	runs := submitted(t, n, wire.Request{Target: "queue:run", Kind: "block"})
	awaitTask(t, n, runs, func() bool {
		task, err := n.Views.Task(t.Context(), runs)
		return err == nil && task.State == "RUNNING"
	})
	build := func(kind string) string { // build is paused
		id := submitted(t, n, wire.Request{Target: "queue:build", Kind: kind})
		awaitTask(t, n, id, func() bool { // the queue has it
			why, err := n.Explainer.Why(t.Context(), id)
			return err == nil && why.State == "ACCEPTED"
		})
		return id
	}
	waits, moves := build("w"), build("m")
	return []routed{
		{"PUT", "/v1/tasks/" + waits + "/class", `{"class":"critical"}`, 200, `"class":"critical"`, nil},
		{"PUT", "/v1/tasks/" + waits + "/class", `{"class":"urgent"}`, 422, "body.class", nil},
		{"PUT", "/v1/tasks/" + moves + "/queue", `{"queue":"night"}`, 404, "night", nil},
		{"PUT", "/v1/tasks/" + moves + "/queue", `{"queue":"run"}`, 202, `"state":"`, func() bool { return tasks(t, n, wire.Query{Kind: "m"})[0].Target == "queue:run" }},
		{"POST", "/v1/tasks/" + runs + "/progress", "", 204, "", nil},
		{"POST", "/v1/tasks/" + waits + "/progress", "", 404, waits, nil},
		{"GET", "/v1/leases", "", 200, `"task":"` + runs, nil},
		{"GET", "/v1/leases?queue=run&owner=here&role=home&limit=7", "", 200, runs, nil},
		{"GET", "/v1/leases?queue=build", "", 200, `"items":[]`, nil},
		{"GET", "/v1/leases?owner=nobody", "", 404, "nobody", nil},
		{"GET", "/v1/leases?role=boss", "", 422, "query.role", nil},
		{"GET", "/v1/leases/conflicts", "", 200, `"items":[]`, nil},
		{"GET", "/v1/ownership/events", "", 200, `"kind":"granted"`, nil},
		{"GET", "/v1/ownership/events?after=1&limit=1", "", 200, `{"items":[{"number":2,`, nil},
		{"GET", "/v1/ownership/timeline?task=" + runs, "", 200, `"kind":"granted"`, nil},
		{"POST", "/v1/leases/recover", `{"owner":"here","dry_run":true}`, 422, "this node itself", nil},
		{"POST", "/v1/leases/recover", `{"owner":"laptop","dry_run":true}`, 200, `"dry_run":true`, nil},
		{"POST", "/v1/leases/recover", `{"owner":"nobody","dry_run":true}`, 404, "nobody", nil},
		{"POST", "/v1/leases/" + runs + "/release", "", 200, runs, nil},
	}
}

func nodeRoutes(t *testing.T, n *node.Node) []routed {
	waits := submitted(t, n, wire.Request{Target: "here", Kind: "later"})
	copied := filepath.Join(t.TempDir(), "copy")
	handles := func(kind string) bool {
		return slices.ContainsFunc(n.Handlers.List(), func(h wire.Handler) bool { return h.Kind == kind })
	}
	return []routed{
		{"GET", "/v1/mail/stream", "", 422, "is a WebSocket", nil},
		{"GET", "/v1/handlers", "", 200, `"kind":"echo"`, nil},
		{"POST", "/v1/handlers", `{"kind":"shell","exec":["/bin/uname","-a"],"allow":["peer:here"]}`, 204, "", func() bool { return handles("shell") }},
		{"DELETE", "/v1/handlers/shell", "", 204, "", func() bool { return !handles("shell") }},
		{"GET", "/v1/status", "", 200, `"name":"here"`, nil},
		{"GET", "/v1/why/" + waits, "", 200, `"subject":"` + waits, nil},
		{"GET", "/v1/why/peer%2Flaptop", "", 404, `peer/laptop`, nil},
		{"GET", "/v1/store", "", 200, `"engine":"`, nil},
		{"POST", "/v1/store/compact", "", 204, "", nil},
		{"POST", "/v1/store/snapshot", `{"dir":"` + copied + `"}`, 201, copied, func() bool { _, err := os.Stat(copied); return err == nil }},
		{"GET", "/healthz", "", 200, `"status":"ok"`, nil},
		{"GET", "/readyz", "", 200, `"status":"ok"`, nil},
		{"GET", "/metrics", "", 200, "balefire_http_requests_in_flight 1", nil},
		{"GET", "/openapi.json", "", 200, `"openapi": "3.1.0"`, nil},
		{"POST", "/v1/drain", `{}`, 422, "body", nil},
		{"POST", "/v1/drain", `{"on":true}`, 200, `"on":true`, n.Queues.Drained},
		{"POST", "/v1/drain", `{"on":false}`, 200, `"on":false`, func() bool { return !n.Queues.Drained() }},
	}
}

// everyRouteIs fails the test for each described route that was not called.
func everyRouteIs(t *testing.T, s *Server, asked map[string]bool) {
	t.Helper()
	for path, item := range s.api.OpenAPI().Paths {
		for method, op := range map[string]any{"GET": item.Get, "POST": item.Post, "DELETE": item.Delete, "PUT": item.Put, "PATCH": item.Patch} {
			if fmt.Sprintf("%v", op) != "<nil>" && !asked[method+" "+path] {
				t.Errorf("%s %s is described but never called", method, path)
			}
		}
	}
}

// TestTaskQueries checks each parameter of a list of tasks.
func TestTaskQueries(t *testing.T) {
	n := newNode(t, nil)
	nodetest.Admit(t, n, "laptop")
	begin := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	id := submitted(t, n, wire.Request{Target: "laptop", Kind: "k", Labels: map[string]string{"a": "b"}})
	end := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for made := time.Now().UnixMilli(); time.Now().UnixMilli() == made; { // ids of one millisecond are in any order
		runtime.Gosched()
	}
	const all = 60
	rs := slices.Repeat([]wire.Request{{Target: "laptop", Kind: "other"}}, all-1)
	if _, errs := n.SubmitMany(t.Context(), rs); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	list := func(query string) (page wire.Page[wire.Task]) {
		t.Helper()
		res, body := ask(t, n, "GET", "/v1/tasks?"+query, "", "")
		return decoded[wire.Page[wire.Task]](t, res, body, 200)
	}
	chosen := "state=PENDING,SENT&role=home&peer=laptop&kind=k&label=a=b&after=" + begin + "&before=" + end + "&limit=7"
	if p := list(chosen); len(p.Items) != 1 || p.Items[0].ID != id || p.Next != "" {
		t.Errorf("%s: %+v", chosen, p)
	}
	for old, changed := range map[string]string{
		"PENDING": "RUNNING", "role=home": "role=owner", "kind=k": "kind=l", "a=b": "a=c", "after=" + begin + "&before=" + end: "after=" + end, "before=" + end: "before=" + begin,
	} {
		if query := strings.Replace(chosen, old, changed, 1); len(list(query).Items) != 0 {
			t.Errorf("%s selects the task", query)
		}
	}
	first := list("")
	if len(first.Items) != 50 || first.Next == "" || first.Items[49].ID == id {
		t.Errorf("%d tasks, next %q: the default is a page of the 50 newest", len(first.Items), first.Next)
	}
	if rest := list("cursor=" + url.QueryEscape(first.Next)); len(rest.Items) != all-50 || rest.Items[9].ID != id {
		t.Errorf("the second page has %d tasks", len(rest.Items))
	}
	if p := list("order=oldest&limit=1"); len(p.Items) != 1 || p.Items[0].ID != id {
		t.Errorf("the oldest is %+v", p.Items)
	}
	if res, body := ask(t, n, "GET", "/v1/tasks?peer=nobody", "", ""); res.StatusCode != 404 {
		t.Errorf("an unknown peer: %d %s", res.StatusCode, body)
	}
}

// TestEveryErrorHasAStatusACodeAndAFix checks that an error of the node arrives
// as a problem, through huma and through the handlers that bypass it.
func TestEveryErrorHasAStatusACodeAndAFix(t *testing.T) {
	tests := []struct {
		err    error
		status int
		code   wire.Code
	}{
		{wire.ErrNotFound, 404, wire.CodeNotFound},
		{wire.ErrInvalid, 422, wire.CodeInvalid},
		{wire.ErrRefused, 409, wire.CodeRefused},
		{wire.ErrKeyConflict, 409, wire.CodeKeyConflict},
		{wire.ErrFull, 507, wire.CodeFull},
		{store.ErrFull, 507, wire.CodeFull},
		{wire.ErrDenied, 403, wire.CodeDenied},
		{wire.ErrDraining, 503, wire.CodeDraining},
		{store.ErrFailed, 503, wire.CodeUnhealthy},
		{store.ErrUnknown, 504, wire.CodeUnknown},
		{context.DeadlineExceeded, 504, wire.CodeTimeout},
		{io.ErrUnexpectedEOF, 400, wire.CodeInvalid},
		{&http.MaxBytesError{Limit: 7}, 413, wire.CodeTooLarge},
		{fmt.Errorf("%w: %w", wire.ErrInvalid, bodies.ErrTooLarge), 413, wire.CodeTooLarge},
		{io.ErrClosedPipe, 500, wire.CodeInternal},
	}
	n, failure := failing(t)
	id := ended(t, n, wire.Request{Kind: "fail"})
	for _, tt := range tests {
		for _, target := range []string{"/v1/tasks", "/v1/tasks/batch", "/v1/tasks/" + id + "/retry", "/v1/dead-letters/retry"} {
			t.Run(fmt.Sprintf("%v at %s", tt.err, target), func(t *testing.T) {
				*failure = fmt.Errorf("do it: %w: because", tt.err)
				body := map[string]string{"/v1/tasks": selfTask, "/v1/tasks/batch": "[" + selfTask + "]", "/v1/dead-letters/retry": `{"ids":["` + id + `"]}`}[target]
				res, got := askUndescribed(t, n, "POST", target, jsonType, body)
				p := problemIn(t, res, got)
				if p.Status != tt.status || p.Code != tt.code || !strings.Contains(p.Detail, "because") && tt.status != 413 {
					t.Errorf("%d %s %s, want %d %s", p.Status, p.Code, p.Detail, tt.status, tt.code)
				}
				if retry := res.Header.Get("Retry-After"); (retry != "") != (tt.status == 503 && res.StatusCode == 503) {
					t.Errorf("Retry-After %q with status %d", retry, tt.status)
				}
			})
		}
	}
	const unknown = "01a1f84f-fb79-727b-b679-7a95fb475002"
	for _, target := range []string{"GET /v1/tasks/" + unknown, "GET /v1/tasks/" + unknown + "/result", "DELETE /v1/peers/x", "DELETE /v1/handlers/x", "POST /v1/queues/x/pause", "GET /v1/why/x"} {
		method, path, _ := strings.Cut(target, " ")
		res, body := ask(t, n, method, path, "", "")
		if p := problemOfBody(t, res, body); p.Status != 404 || p.Code != wire.CodeNotFound {
			t.Errorf("%s: %+v", target, p)
		}
	}
}

// problemIn returns the problem of a response, or that of the only item of a batch.
func problemIn(t *testing.T, res *http.Response, body string) wire.Problem {
	t.Helper()
	if res.StatusCode != http.StatusOK {
		return problemOfBody(t, res, body)
	}
	var batch struct {
		Items []struct{ Problem *wire.Problem }
	}
	if err := json.Unmarshal([]byte(body), &batch); err != nil || len(batch.Items) != 1 || batch.Items[0].Problem == nil {
		t.Fatalf("%v: no problem in %s", err, body)
	}
	if p := batch.Items[0].Problem; p.Title == "" || p.Fix == "" {
		t.Errorf("the problem lacks a field: %+v", p)
	}
	return *batch.Items[0].Problem
}

// TestReadingNeverWrites checks that no GET has a side effect: a write-only route
// returns 405 with the allowed methods.
func TestReadingNeverWrites(t *testing.T) {
	n := newNode(t, nil)
	id := submitted(t, n, wire.Request{Target: "here", Kind: "later", Delay: wire.Duration(time.Hour)})
	state := func() string {
		st := n.Views.Status(t.Context())
		st.Store = wire.StoreStats{} // it writes for itself
		mail := st.Mail
		st.Mail = nil // a pointer
		return fmt.Sprintf("%+v %+v %+v %+v", tasks(t, n, wire.Query{}), n.Handlers.List(), st, mail)
	}
	before := state()
	names := strings.NewReplacer("{id}", id, "{task}", id, "{kind}", "echo", "{name}", "laptop", "{box}", "ceo", "{topic}", "orders", "{sub}", "s", "{queue}", "build")
	asked := 0
	for path, item := range serverOf(n).api.OpenAPI().Paths {
		if item.Get != nil {
			continue
		}
		asked++
		path = names.Replace(path)
		for _, method := range []string{"GET", "HEAD"} {
			res, body := ask(t, n, method, path+"?target=laptop", "", "")
			if res.StatusCode != 405 || res.Header.Get("Allow") == "" {
				t.Errorf("%s %s: status %d, Allow %q", method, path, res.StatusCode, res.Header.Get("Allow"))
				continue
			}
			p := problemOfBody(t, res, body)
			if p.Code != wire.CodeMethod || !strings.Contains(p.Fix, "never changes") {
				t.Errorf("%s %s: %+v", method, path, p)
			}
		}
	}
	if asked < 51 { // one has got a GET: does it change anything?
		t.Errorf("only %d routes were asked", asked)
	}
	if after := state(); after != before {
		t.Errorf("the node was changed from\n%s\nto\n%s", before, after)
	}
	res, body := ask(t, n, "GET", "/v1/tasks?target=laptop&kind=shell", "", "")
	if p := problemOfBody(t, res, body); p.Status != 422 || len(p.Errors) != 1 {
		t.Errorf("a GET with the parameters of a submit: %+v", p)
	}
}

// TestOtherMethodsAndPaths checks that a request without a route returns a problem, too.
func TestOtherMethodsAndPaths(t *testing.T) {
	n := nodetest.Open(t, nil)
	tests := []struct {
		method, path string
		status       int
		allow        string
	}{
		{"PUT", "/v1/tasks", 405, "GET, HEAD, POST"},
		{"PATCH", "/v1/peers/laptop", 405, "DELETE, GET, HEAD"},
		{"PATCH", "/v1/queues/build", 405, "GET, HEAD, PUT"},
		{"DELETE", "/v1/status", 405, "GET, HEAD"},
		{"GET", "/", 404, ""},
		{"GET", "/v2/tasks", 404, ""},
		{"GET", "/debug/pprof/", 404, ""}, // only on the socket
		{"BREW", "/v1/tasks/01a1f84f/cancel", 405, "POST"},
	}
	for _, tt := range tests {
		res, body := ask(t, n, tt.method, tt.path, "", "")
		if p := problemOfBody(t, res, body); p.Status != tt.status || res.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, Allow %q", tt.method, tt.path, p.Status, res.Header.Get("Allow"))
		}
	}
}

// TestWaitingEndsWithTheTimeout checks that the response distinguishes a task that has not
// ended from one that has.
func TestWaitingEndsWithTheTimeout(t *testing.T) {
	n := newNode(t, nil)
	id := submitted(t, n, wire.Request{Target: "here", Kind: "later"})
	res, body := ask(t, n, "GET", "/v1/tasks/"+id+"/wait?timeout=5ms", "", "")
	if task := decoded[wire.Task](t, res, body, 202); task.ID != id || task.State == "SUCCESS" {
		t.Errorf("%+v", task)
	}
	if err := n.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "later", Type: wire.TypeEcho, Allow: []string{"peer:here"}}); err != nil {
		t.Fatal(err)
	}
	res, body = ask(t, n, "GET", "/v1/tasks/"+id+"/wait?timeout=5m", "", "")
	if task := decoded[wire.Task](t, res, body, 200); task.ID != id || task.State != "SUCCESS" {
		t.Errorf("%+v", task)
	}
}
