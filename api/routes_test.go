package api

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/api/apitest"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

var update = flag.Bool("update", false, "write testdata anew")

const jsonTask = `{"target":"laptop","kind":"shell","args":["uname","-a"]}`

// ask sends one request to the API server of n and returns the response and its body.
func ask(t *testing.T, n Node, method, target, contentType, body string, more ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(more); i += 2 {
		r.Header.Add(more[i], more[i+1])
	}
	w := httptest.NewRecorder()
	s := New(n, Config{})
	s.Handler().ServeHTTP(w, r)
	if f, ok := n.(*apitest.Node); !ok || f.Err == nil { // otherwise the error is an artificial one
		described(t, s, r, w.Code)
	}
	return w.Result(), w.Body.String()
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

// TestRoutes calls every route once with valid parameters, and checks the resulting
// call of the node.
func TestRoutes(t *testing.T) {
	id := apitest.ID
	tests := []struct {
		method, target, body string
		status               int
		call, in             string // the call of the node; part of the response
	}{
		{"POST", "/v1/tasks", jsonTask, 202, "Submit laptop shell", `"state":"PENDING"`},
		{"POST", "/v1/tasks/batch", "[" + jsonTask + "]", 200, "SubmitMany 1", `"accepted":1`},
		{"GET", "/v1/tasks", "", 200, "Tasks limit=50", `"next":"more"`},
		{"GET", "/v1/tasks?state=PENDING,SENT&role=home&peer=p&kind=k&label=a=b&before=2026-01-02T03:04:05Z&after=2025-01-02T03:04:05Z&cursor=c&limit=7", "", 200,
			"Tasks states=PENDING+SENT role=home peer=p kind=k label=a=b cursor=c before=2026-01-02T03:04:05Z after=2025-01-02T03:04:05Z limit=7", id},
		{"GET", "/v1/tasks?order=oldest", "", 200, "Tasks oldest limit=50", ""},
		{"GET", "/v1/tasks?order=random", "", 422, "", "order"},
		{"GET", "/v1/dead-letters?order=oldest", "", 200, "DeadLetters oldest limit=50", ""},
		{"GET", "/v1/tasks/" + id, "", 200, "Task " + id, `"peer":"laptop"`},
		{"GET", "/v1/tasks/01a1f84f", "", 200, "Task 01a1f84f", `"id":"01a1f84f"`},
		{"GET", "/v1/tasks/" + id + "/wait?timeout=1s", "", 200, "Wait " + id, `"state":"SUCCESS"`},
		{"GET", "/v1/tasks/" + id + "/result", "", 200, "Result " + id, "Linux\n"},
		{"GET", "/v1/tasks/" + id + "/receipts", "", 200, "Receipts " + id, `"verified":true`},
		{"POST", "/v1/tasks/" + id + "/cancel", "", 200, "Cancel " + id + ` hard=false ""`, `"CANCELLED"`},
		{"POST", "/v1/tasks/" + id + "/cancel", `{"hard":true,"reason":"too slow"}`, 200, "Cancel " + id + ` hard=true "too slow"`, id},
		{"POST", "/v1/tasks/" + id + "/retry", "", 202, "Retry " + id, `"state":"PENDING"`},
		{"PUT", "/v1/tasks/" + id + "/class", `{"class":"critical"}`, 200, "SetClass " + id + " critical", `"class":"critical"`},
		{"PUT", "/v1/tasks/" + id + "/class", `{"class":"urgent"}`, 422, "", "body.class"},
		{"PUT", "/v1/tasks/" + id + "/queue", `{"queue":"night"}`, 202, "MoveTask " + id + " to night", `"state":"PENDING"`},
		{"POST", "/v1/tasks/" + id + "/progress", "", 204, "Progress " + id, ""},
		{"POST", "/v1/tasks/purge", `{"states":["SUCCESS"],"dry_run":true}`, 200, "Purge states=SUCCESS limit=0 dry=true", `"tasks":2`},
		{"GET", "/v1/dead-letters?kind=k", "", 200, "DeadLetters kind=k limit=50", `"items":[]`},
		{"POST", "/v1/dead-letters/retry", `{"ids":["` + id + `"]}`, 200, "Retry " + id, `"failed":0`},
		{"GET", "/v1/peers", "", 200, "Peers", `"name":"laptop"`},
		{"GET", "/v1/peers/laptop", "", 200, "Peer laptop", `"state":"OFFLINE"`},
		{"POST", "/v1/peers/laptop/block", "", 204, "Block laptop", ""},
		{"POST", "/v1/peers/laptop/unblock", "", 204, "Unblock laptop", ""},
		{"DELETE", "/v1/peers/laptop", "", 204, "Forget laptop", ""},
		{"POST", "/v1/peers/laptop/ping", "", 200, "Ping laptop", `"rtt_seconds":0.042`},
		{"GET", "/v1/peers/laptop/path", "", 200, "Path laptop", `"relay":"r1"`},
		{"POST", "/v1/peers/laptop/name", `{"name":"mine"}`, 204, `Rename laptop "mine"`, ""},
		{"POST", "/v1/peers/laptop/name", `{"name":""}`, 204, `Rename laptop ""`, ""},
		{"POST", "/v1/peers/laptop/revoke", `{"reason":"stolen"}`, 204, `Revoke laptop "stolen"`, ""},
		{"GET", "/v1/wishes", "", 200, "JoinRequests", `"code":"K7QM-2ZPA-77WD"`},
		{"POST", "/v1/wishes/K7QM-2ZPA-77WD/accept", "", 200, `Accept K7QM-2ZPA-77WD "" `, `"name":"field-10"`},
		{"POST", "/v1/wishes/12D3KooX/accept", `{"name":"f","roles":["work","send"]}`, 200, `Accept 12D3KooX "f" work+send`, `"name":"f"`},
		{"GET", "/v1/members", "", 200, "Members", `"state":"SUSPECT"`},
		{"GET", "/v1/members/laptop", "", 200, "Member laptop", `"path":"direct"`},
		{"GET", "/v1/mesh", "", 200, "MeshSummary", `"members":5`},
		{"POST", "/v1/mesh/prune", `{"older_than":"36h","limit":9,"dry_run":true}`, 200, "PruneMembers 36h0m0s limit=9 dry=true", `"members":["old"]`},
		{"POST", "/v1/mesh/converge", "", 200, "Converge", `"asked":2`},
		{"GET", "/v1/netcheck", "", 200, "NetCheck", `"nat":"cone"`},
		{"GET", "/v1/events", "", 200, "Events after=0 limit=256 wait=0s", `"kind":"peer.connected"`},
		{"GET", "/v1/events?after=9&limit=7&wait=2ms", "", 200, "Events after=9 limit=7 wait=2ms", `{"boot":7,"items":[],"next":9}`},
		{"GET", "/v1/queues", "", 200, "Queues", `"name":"photos"`},
		{"GET", "/v1/queues/build", "", 200, "Queue build", `"members":[{"name":"here"`},
		{"GET", "/v1/queues/a%2Fb", "", 200, "Queue a/b", `"name":"a/b"`},
		{"PUT", "/v1/queues/build", `{"home":"here","strategy":"priority","concurrency":0,"labels":[],"kinds":[{"kind":"llm","concurrency":2}],"lease_ms":30000}`, 200,
			`SetQueue build {"home":"here","strategy":"priority","concurrency":0,"kinds":[{"kind":"llm","concurrency":2}],"labels":[],"lease_ms":30000}`, `"generation":3`},
		{"POST", "/v1/queues/build/pause", "", 200, `SetQueue build {"paused":true}`, `"paused":true`},
		{"POST", "/v1/queues/build/resume", "", 200, `SetQueue build {"paused":false}`, `"name":"build"`},
		{"POST", "/v1/queues/build/unblock", `{"key":"repo-7"}`, 200, `UnblockLane build "repo-7"`, `"name":"build"`},
		{"POST", "/v1/queues/build/seize", `{"from":"laptop","accept_loss":true}`, 200, "SeizeQueue build from laptop", `"seized_from":"laptop"`},
		{"POST", "/v1/queues/build/seize", `{"from":"laptop"}`, 422, "", `lost unless that node comes back with its disk`},
		{"POST", "/v1/queues/build/seize", `{"from":"","accept_loss":true}`, 422, "", `body.from`},
		{"POST", "/v1/queues/build/handoff", "", 200, `HandOffQueue build to ""`, `"going":240`},
		{"POST", "/v1/queues/build/handoff", `{"to":"field-07"}`, 200, `HandOffQueue build to "field-07"`, `"home":"field-07"`},
		{"GET", "/v1/schedules", "", 200, "Schedules", `"cron":"0 2 * * *"`},
		{"POST", "/v1/schedules", `{"queue":"build","name":"nightly","cron":"@daily","kind":"shell","missed":"run-all","missed_cap":3,"args":["make"]}`, 201,
			`AddSchedule {"queue":"build","name":"nightly","cron":"@daily","missed":"run-all","missed_cap":3,"kind":"shell","args":["make"]}`, `"fired":7`},
		{"POST", "/v1/schedules", `{"queue":"build","name":"nightly","cron":"@daily","kind":"shell","missed":"later"}`, 422, "", "body.missed"},
		{"DELETE", "/v1/schedules/build/nightly", "", 204, "RemoveSchedule build nightly", ""},
		{"POST", "/v1/schedules/build/nightly/pause", "", 200, "PauseSchedule build nightly true", `"paused":true`},
		{"POST", "/v1/schedules/build/nightly/resume", "", 200, "PauseSchedule build nightly false", `"next"`},
		{"POST", "/v1/drain", `{"on":true}`, 200, "Drain true", `"running":1`},
		{"POST", "/v1/drain", `{"on":false}`, 200, "Drain false", `"on":false`},
		{"POST", "/v1/drain", `{}`, 422, "", "body"},
		{"POST", "/v1/leases/recover", `{"owner":"laptop","dry_run":true}`, 200, `RecoverLeases "laptop" dry=true`, `"kept":[{`},
		{"GET", "/v1/ownership/timeline?task=" + id, "", 200, `Timeline task="` + id + `" queue=""`, `"silent":["field-09"]`},
		{"POST", "/v1/stop", "", 204, "Stop handoff=false", ""},
		{"POST", "/v1/stop", `{"handoff":true,"within":"5s"}`, 204, "Stop handoff=true", ""},
		{"POST", "/v1/stop", `{"within":"soon"}`, 422, "", "is not a duration"},
		{"GET", "/v1/leases", "", 200, `Leases queue="" owner="" role="" limit=50`, `"epoch":"7.41"`},
		{"GET", "/v1/leases?queue=build&owner=laptop&role=home&limit=7", "", 200, `Leases queue="build" owner="laptop" role="home" limit=7`, id},
		{"GET", "/v1/leases?role=boss", "", 422, "", "query.role"},
		{"POST", "/v1/leases/" + id + "/release", "", 200, "ReleaseLease " + id, `"state":"PENDING"`},
		{"GET", "/v1/leases/conflicts", "", 200, "LeaseConflicts", `"cause":"epoch 7.41 is newer"`},
		{"GET", "/v1/ownership/events", "", 200, "OwnershipEvents after=0 limit=256", `"kind":"owner_dead"`},
		{"GET", "/v1/ownership/events?after=2&limit=1", "", 200, "OwnershipEvents after=2 limit=1", `{"items":[{"number":3,`},
		{"POST", "/v1/invitations", "", 201, `Invite "" 0s `, `"ticket":"BALE1X"`},
		{"POST", "/v1/invitations", `{"name":"n","ttl":"1h","roles":["work","send"]}`, 201, `Invite "n" 1h work+send`, "BALE1X"},
		{"GET", "/v1/handlers", "", 200, "Handlers", `"items":[]`},
		{"POST", "/v1/handlers", `{"kind":"shell","exec":["/bin/uname","-a"],"allow":["peer:laptop"]}`, 204, "AddHandler shell /bin/uname+-a", ""},
		{"DELETE", "/v1/handlers/shell", "", 204, "RemoveHandler shell", ""},
		{"GET", "/v1/status", "", 200, "Status", `"name":"here"`},
		{"GET", "/v1/why/" + id, "", 200, "Why " + id, `"code":"no_address","peer":"laptop"`},
		{"GET", "/v1/why/peer%2Flaptop", "", 200, "Why peer/laptop", `"code":"no_address","peer":"laptop"`},
		{"GET", "/v1/store", "", 200, "", `"engine":"nutsdb"`},
		{"POST", "/v1/store/compact", "", 204, "Compact", ""},
		{"POST", "/v1/store/snapshot", `{"dir":"/backup/1"}`, 201, "Snapshot /backup/1", "/backup/1"},
		{"GET", "/healthz", "", 200, "Healthy", `"status":"ok"`},
		{"GET", "/readyz", "", 200, "Ready", `"status":"ok"`},
		{"GET", "/metrics", "", 200, "", "balefire_http_requests_in_flight 1"},
		{"GET", "/openapi.json", "", 200, "", `"openapi": "3.1.0"`},
	}
	asked := map[string]bool{}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			n := apitest.New()
			ct := ""
			if tt.body != "" {
				ct = "application/json; charset=utf-8"
			}
			res, body := ask(t, n, tt.method, tt.target, ct, tt.body)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.in) {
				t.Fatalf("status %d, want %d with %s:\n%s", res.StatusCode, tt.status, tt.in, body)
			}
			if got := strings.Join(n.Calls(), "; "); got != tt.call {
				t.Errorf("the node was asked %q, want %q", got, tt.call)
			}
			if res.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Error("a browser may guess the content type of the response")
			}
			if tt.status == 202 && !strings.HasPrefix(res.Header.Get("Location"), "/v1/tasks/01a1f84f-") {
				t.Errorf("Location %q", res.Header.Get("Location"))
			}
		})
		r := httptest.NewRequest(tt.method, tt.target, http.NoBody)
		_, pattern := New(apitest.New(), Config{}).mux.Handler(r)
		asked[pattern] = true
	}
	everyRouteIs(t, asked)
}

// everyRouteIs fails the test for each described route that was not called.
func everyRouteIs(t *testing.T, asked map[string]bool) {
	t.Helper()
	for path, item := range New(apitest.New(), Config{}).api.OpenAPI().Paths {
		for method, op := range map[string]any{"GET": item.Get, "POST": item.Post, "DELETE": item.Delete, "PUT": item.Put, "PATCH": item.Patch} {
			if fmt.Sprintf("%v", op) != "<nil>" && !asked[method+" "+path] {
				t.Errorf("%s %s is described but never called", method, path)
			}
		}
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
	for _, tt := range tests {
		for _, target := range []string{"POST /v1/tasks", "POST /v1/tasks/" + apitest.ID + "/retry", "GET /v1/tasks/" + apitest.ID, "GET /v1/tasks/" + apitest.ID + "/result", "DELETE /v1/peers/x"} {
			t.Run(fmt.Sprintf("%v at %s", tt.err, target), func(t *testing.T) {
				n := apitest.New()
				n.Err = fmt.Errorf("do it: %w: because", tt.err)
				method, path, _ := strings.Cut(target, " ")
				body := ""
				if path == "/v1/tasks" {
					body = jsonTask
				}
				res, got := ask(t, n, method, path, jsonType, body)
				p := problemOfBody(t, res, got)
				if p.Status != tt.status || p.Code != tt.code {
					t.Errorf("%d %s, want %d %s", p.Status, p.Code, tt.status, tt.code)
				}
				if retry := res.Header.Get("Retry-After"); (retry != "") != (tt.status == 503) {
					t.Errorf("Retry-After %q with status %d", retry, tt.status)
				}
			})
		}
	}
}

// TestReadingNeverWrites checks that no GET has a side effect: a write-only route
// returns 405 with the allowed methods.
func TestReadingNeverWrites(t *testing.T) {
	id := apitest.ID
	for _, path := range []string{
		"/v1/tasks/batch", "/v1/tasks/purge", "/v1/tasks/" + id + "/cancel", "/v1/tasks/" + id + "/retry", "/v1/dead-letters/retry",
		"/v1/peers/laptop/block", "/v1/peers/laptop/unblock", "/v1/peers/laptop/ping", "/v1/peers/laptop/name", "/v1/peers/laptop/revoke",
		"/v1/wishes/field-10/accept", "/v1/mesh/prune", "/v1/mesh/converge", "/v1/queues/build/pause", "/v1/queues/build/resume",
		"/v1/queues/build/seize", "/v1/queues/build/handoff", "/v1/leases/" + id + "/release", "/v1/drain", "/v1/stop", "/v1/leases/recover", "/v1/invitations", "/v1/store/compact", "/v1/store/snapshot", "/v1/handlers/shell",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			n := apitest.New()
			res, body := ask(t, n, method, path+"?target=laptop", "", "")
			if res.StatusCode != 405 || res.Header.Get("Allow") == "" {
				t.Errorf("%s %s: status %d, Allow %q", method, path, res.StatusCode, res.Header.Get("Allow"))
				continue
			}
			p := problemOfBody(t, res, body)
			if p.Code != wire.CodeMethod || !strings.Contains(p.Fix, "never changes") {
				t.Errorf("%s %s: %+v", method, path, p)
			}
			if calls := n.Calls(); len(calls) > 0 {
				t.Errorf("%s %s reached the node: %q", method, path, calls)
			}
		}
	}
	res, body := ask(t, apitest.New(), "GET", "/v1/tasks?target=laptop&kind=shell", "", "")
	if p := problemOfBody(t, res, body); p.Status != 422 || len(p.Errors) != 1 {
		t.Errorf("a GET with the parameters of a submit: %+v", p)
	}
}

// TestOtherMethodsAndPaths checks that a request without a route returns a problem, too.
func TestOtherMethodsAndPaths(t *testing.T) {
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
		{"BREW", "/v1/tasks/" + apitest.ID + "/cancel", 405, "POST"},
	}
	for _, tt := range tests {
		res, body := ask(t, apitest.New(), tt.method, tt.path, "", "")
		if p := problemOfBody(t, res, body); p.Status != tt.status || res.Header.Get("Allow") != tt.allow {
			t.Errorf("%s %s: %d, Allow %q", tt.method, tt.path, p.Status, res.Header.Get("Allow"))
		}
	}
}

// TestOpenAPI compares the description of the API with the golden file: a change
// affects every client. Run with -update to accept a change.
func TestOpenAPI(t *testing.T) {
	got := append(New(apitest.New(), Config{}).spec, '\n')
	golden := filepath.Join("testdata", "openapi.json")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the description changed: run go test ./api -run TestOpenAPI -update and review the difference\n%s", got)
	}
}

// TestWaitingEndsWithTheTimeout checks that the response distinguishes a task that has not
// ended from one that has.
func TestWaitingEndsWithTheTimeout(t *testing.T) {
	n := apitest.New()
	n.Ended = make(chan struct{})
	res, body := ask(t, n, "GET", "/v1/tasks/"+apitest.ID+"/wait?timeout=5ms", "", "")
	if res.StatusCode != 202 || !strings.Contains(body, `"state":"RUNNING"`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	close(n.Ended)
	res, body = ask(t, n, "GET", "/v1/tasks/"+apitest.ID+"/wait?timeout=5m", "", "")
	if res.StatusCode != 200 || !strings.Contains(body, `"state":"SUCCESS"`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}
