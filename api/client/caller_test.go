//go:build linux || darwin

package client_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

// TestAuditNamesTheCaller checks that the audit log names the user who changed a setting
// over the socket, at the start and at the end.
func TestAuditNamesTheCaller(t *testing.T) {
	c, dir := real(t)
	if err := c.AddHandler(t.Context(), wire.HandlerSpec{Kind: "echo", Type: wire.TypeEcho, Allow: []string{"peer:here"}}); err != nil {
		t.Fatal(err)
	}
	me := fmt.Sprintf("uid:%d", os.Getuid())
	want := []audit.Entry{
		{Actor: me, Detail: map[string]string{"subject": "/v1/handlers", "step": "start"}},
		{Actor: me, Detail: map[string]string{"subject": "/v1/handlers", "step": "end", "result": "ok", "did": "echo"}},
	}
	got := entries(t, dir, "handler.add")
	if !slices.EqualFunc(got, want, func(a, b audit.Entry) bool { return a.Actor == b.Actor && maps.Equal(a.Detail, b.Detail) }) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// entries returns the entries of the audit log for one action.
func entries(t *testing.T, dir, action string) (out []audit.Entry) {
	t.Helper()
	err := audit.Scan(filepath.Join(dir, audit.DirName), func(r audit.Record) error {
		if r.Action == action {
			out = append(out, r.Entry)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// notAudited are the operations that leave no steps in the audit log.
var notAudited = []string{"pingPeer", "taskProgress", "newReplyBox", "leaseMailbox", "leaseSubscription", "settleMailbox", "settleSubscription"}

// documents has a valid document for each route that needs one, by operation.
var documents = map[string]string{
	"setTaskClass": `{"class":"low"}`, "moveTask": `{"queue":"q"}`, "purgeTasks": `{"dry_run":true}`, "retryDeadLetters": `{"all":true}`,
	"renamePeer": `{"name":"n"}`, "revokePeer": `{"reason":"r"}`, "pruneMesh": `{"dry_run":true}`, "setQueue": `{"concurrency":1}`,
	"seizeQueue": `{"from":"nobody","accept_loss":true}`, "unblockLane": `{"key":"k"}`, "recoverLeases": `{"dry_run":true}`,
	"addSchedule": `{"queue":"q","name":"n","cron":"@daily","kind":"k"}`, "addHandler": `{"kind":"k","type":"echo","allow":["peer:here"]}`,
	"snapshotStore": `{"dir":"/nowhere/snapshot"}`, "drain": `{"on":true}`,
	"settleMailbox": `{"ack":["1.1.1"]}`, "settleSubscription": `{"ack":["1.1.1"]}`, "unblockMailbox": `{"key":"k"}`, "unblockSubscription": `{"key":"k"}`,
	"seekSubscription": `{"to":"first"}`, "handOffMailbox": `{"to":"beta"}`, "handOffTopic": `{"to":"beta"}`,
}

// TestEveryCommandIsAudited checks I19 for the routes of the API: each that changes
// something, except what submits a task, or sends, leases or settles mail, is an entry before it is done and one with its result.
func TestEveryCommandIsAudited(t *testing.T) {
	n, dir := realNode(t)
	h := api.New(n, api.Config{}).Handler()
	_, text := ask(t, h, http.MethodGet, "/openapi.json", "")
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	commands := 0
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if method == "get" || strings.HasPrefix(op.OperationID, "submitTask") || strings.HasPrefix(op.OperationID, "sendMail") || op.OperationID == "requestMail" {
				continue
			}
			commands++
			path := strings.NewReplacer("{id}", "01a1f84f-fb79-727b-b679-7a95fb475002", "{task}", "01a1f84f-fb79-727b-b679-7a95fb475002").Replace(path)
			path = strings.NewReplacer("{name}", "nobody", "{queue}", "q", "{kind}", "nothing", "{box}", "desk", "{topic}", "orders", "{sub}", "billing").Replace(path)
			before := len(stepsOf(t, dir, path))
			status, answer := ask(t, h, strings.ToUpper(method), path, documents[op.OperationID])
			if strings.Contains(answer, "validation failed") {
				t.Errorf("%s %s: the document of the test is not valid: %s", method, path, answer)
			}
			steps := stepsOf(t, dir, path)[before:]
			if slices.Contains(notAudited, op.OperationID) {
				if len(steps) > 0 {
					t.Errorf("%s %s is in the audit log: %q", method, path, steps)
				}
				continue
			}
			if len(steps) != 2 || steps[0] != "start" || !strings.HasPrefix(steps[1], "end ") || (steps[1] == "end ok") != (status < 300) {
				t.Errorf("%s %s was answered with %d and has the entries %q", method, path, status, steps)
			}
		}
	}
	if commands < 30 {
		t.Errorf("only %d commands: the document cannot be read", commands)
	}
}

// ask sends a request to the API server and returns its answer.
func ask(t *testing.T, h http.Handler, method, path, doc string) (status int, answer string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(doc))
	if r.Body = http.NoBody; doc != "" {
		r.Body = io.NopCloser(strings.NewReader(doc))
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// stepsOf returns the steps of the commands with this path in the audit log, and how they
// ended.
func stepsOf(t *testing.T, dir, path string) (out []string) {
	t.Helper()
	err := audit.Scan(filepath.Join(dir, audit.DirName), func(r audit.Record) error {
		if r.Detail["subject"] == path {
			out = append(out, strings.TrimSpace(r.Detail["step"]+" "+r.Detail["result"]))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSubmitsAreChecked: a task without a target or a kind, or with an unknown class or
// mode, is refused with what is wrong; a class may be written in capitals.
func TestSubmitsAreChecked(t *testing.T) {
	n, _ := realNode(t)
	h := api.New(n, api.Config{}).Handler()
	for doc, want := range map[string]string{
		`{"kind":"sum"}`:    "no target",
		`{"target":"here"}`: "kind",
		`{"target":"here","kind":"sum","class":"urgent"}`:      "urgent",
		`{"target":"here","kind":"sum","mode":"exactly_once"}`: "exactly_once",
	} {
		if status, answer := ask(t, h, http.MethodPost, "/v1/tasks", doc); status != http.StatusUnprocessableEntity || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s, want 422 that names %q", doc, status, answer, want)
		}
	}
	if status, answer := ask(t, h, http.MethodPost, "/v1/tasks", `{"target":"here","kind":"sum","class":"CRITICAL"}`); status >= 300 {
		t.Errorf("a class in capitals: %d %s", status, answer)
	}
}
