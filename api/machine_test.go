package api

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	points "github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

// newNode returns a node that runs. It handles tasks of the kinds echo, fail, which fails
// permanently, dead, which fails at each attempt, and block, which runs until it is
// stopped. A task of another kind waits for a handler.
func newNode(t testing.TB, change func(*node.Config)) *node.Node {
	t.Helper()
	n := nodetest.Open(t, func(cfg *node.Config) {
		cfg.Handlers = append(cfg.Handlers, wire.HandlerSpec{Kind: "echo", Type: wire.TypeEcho, Allow: []string{"peer:here"}})
		for kind, outcome := range map[string]handler.Outcome{"fail": handler.Fail, "dead": handler.Retry, "block": 0} {
			cfg.Handle(kind, handler.Func(func(ctx context.Context, _ *handler.Run) *handler.Result {
				if outcome == 0 {
					<-ctx.Done()
					return &handler.Result{Outcome: handler.Cancelled, Code: -1}
				}
				return &handler.Result{Outcome: outcome, Code: 65, Reason: "it always does"}
			}), "peer:here")
		}
		if change != nil {
			change(cfg)
		}
	})
	nodetest.Run(t, n)
	return n
}

// submitted submits a task and returns its id.
func submitted(t testing.TB, n *node.Node, r wire.Request) string {
	t.Helper()
	s, err := n.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// ended submits a task to the node itself and returns its id when it has ended.
func ended(t testing.TB, n *node.Node, r wire.Request) string {
	t.Helper()
	r.Target = "here"
	id := submitted(t, n, r)
	if task, err := n.Views.Wait(t.Context(), id); err != nil {
		t.Fatalf("%+v, %v", task, err)
	}
	return id
}

// tasks returns the tasks that q selects, at most 1000.
func tasks(t testing.TB, n *node.Node, q wire.Query) []wire.Task {
	t.Helper()
	q.Limit = 1000
	page, err := n.Views.Tasks(q)
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// decoded decodes a JSON answer with this status.
func decoded[T any](t *testing.T, res *http.Response, body string, status int) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &v); err != nil || res.StatusCode != status {
		t.Fatalf("status %d, want %d; %v\n%s", res.StatusCode, status, err, body)
	}
	return v
}

// failing returns a node on which each submit of a task fails with the error that *err
// has at that time.
func failing(t testing.TB) (n *node.Node, err *error) {
	err = new(error)
	return newNode(t, func(cfg *node.Config) {
		cfg.Fail = func(point string) error {
			if point == points.PointSealed {
				return *err
			}
			return nil
		}
	}), err
}
