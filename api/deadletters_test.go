package api

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/wire"
)

// failsUntil returns a handler that fails each task until well is true.
func failsUntil(well *atomic.Bool) handler.Func {
	return func(context.Context, *handler.Run) *handler.Result {
		if well.Load() {
			return &handler.Result{Outcome: handler.Success}
		}
		return &handler.Result{Outcome: handler.Fail, Code: 65, Reason: "it is not well"}
	}
}

// deadLetters makes count dead letters of a kind and returns their ids.
func deadLetters(t *testing.T, n *node.Node, kind string, count int) (ids []string) {
	t.Helper()
	for len(ids) < count {
		rs := make([]wire.Request, min(wire.MaxBatch, count-len(ids)))
		for i := range rs {
			rs[i] = wire.Request{Target: "here", Kind: kind}
		}
		out, errs := n.SubmitMany(t.Context(), rs)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, s := range out {
			ids = append(ids, s.ID)
		}
	}
	for _, id := range ids {
		if task, err := n.Views.Wait(t.Context(), id); err != nil || task.State != "FAILED" {
			t.Fatalf("%+v, %v", task, err)
		}
	}
	return ids
}

// TestRedrive checks that dead letters are repeated once each, and that a dry run
// repeats none.
func TestRedrive(t *testing.T) {
	var well atomic.Bool
	n := newNode(t, func(cfg *node.Config) { cfg.Handle("few", failsUntil(&well), "peer:here") })
	few := deadLetters(t, n, "few", 45)
	well.Store(true)
	for i := 0; i < len(few); i += 10 { // repeated before
		if _, err := n.Redriver.Retry(t.Context(), few[i]); err != nil {
			t.Fatal(err)
		}
	}
	running := submitted(t, n, wire.Request{Target: "here", Kind: "later"})
	tests := []struct {
		name, body    string
		items, failed int
		more          bool
		repeated      int // tasks after it that were repeated
	}{
		{"by id", fmt.Sprintf(`{"ids":[%q,%q]}`, few[1], few[2]), 2, 0, false, 5 + 2},
		{"all of none", `{"kind":"none"}`, 0, 0, false, 7},
		{"results of other homes", `{"role":"owner"}`, 0, 0, false, 7},
		{"a dry run", `{"kind":"few","dry_run":true}`, 38, 0, false, 7},
		{"a dry run by id", fmt.Sprintf(`{"ids":[%q,%q,%q,"01a1f84f-fb79-727b-b679-7a95fb475002"],"dry_run":true}`, few[3], running, few[1]), 4, 3, false, 7},
		{"one cannot be repeated", fmt.Sprintf(`{"ids":[%q,%q,%q]}`, few[3], running, few[4]), 3, 1, false, 9},
		{"by kind", `{"kind":"few"}`, 36, 0, false, 45},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := ask(t, n, "POST", "/v1/dead-letters/retry", jsonType, tt.body)
			got := decoded[wire.Redriven](t, res, body, 200)
			if len(got.Items) != tt.items || got.Failed != tt.failed || got.More != tt.more {
				t.Errorf("%d items, %d failed, more %v", len(got.Items), got.Failed, got.More)
			}
			repeated := 0
			for _, id := range few {
				if task, err := n.Views.Task(t.Context(), id); err != nil || task.RedrivenAs != "" {
					repeated++
				}
			}
			if repeated != tt.repeated {
				t.Errorf("%d tasks are repeated, want %d", repeated, tt.repeated)
			}
			for _, i := range got.Items {
				if got.DryRun && len(got.Items) == 4 && (i.ID == few[3]) != (i.Problem == nil) {
					t.Errorf("by a dry run: %+v", i)
				}
				if ok := i.Task != nil; ok != (i.Problem == nil && !got.DryRun) || (i.ID == running) == ok && !got.DryRun {
					t.Errorf("item %+v", i)
				}
			}
		})
	}
}

// TestRedriveOfNone checks that an empty list is no filter: it would select all.
func TestRedriveOfNone(t *testing.T) {
	n := newNode(t, nil)
	for _, doc := range []string{`{}`, `{"states":[]}`, `{"states":[],"ids":[]}`} {
		if res, body := ask(t, n, "POST", "/v1/dead-letters/retry", jsonType, doc); res.StatusCode != 422 || problemOfBody(t, res, body).Code != wire.CodeInvalid {
			t.Errorf("%s: %d %s", doc, res.StatusCode, body)
		}
	}
}

// TestRedriveOfManyStopsAtItsLimit checks that one request repeats at most maxRedrive dead
// letters, each once, and says that there are more.
func TestRedriveOfManyStopsAtItsLimit(t *testing.T) {
	var well atomic.Bool
	n := newNode(t, func(cfg *node.Config) { cfg.Handle("many", failsUntil(&well), "peer:here") })
	deadLetters(t, n, "many", maxRedrive+1)
	well.Store(true)
	res, body := ask(t, n, "POST", "/v1/dead-letters/retry", jsonType, `{"all":true}`)
	got := decoded[wire.Redriven](t, res, body, 200)
	if len(got.Items) != maxRedrive || got.Failed != 0 || !got.More {
		t.Errorf("%d items, %d failed, more %v", len(got.Items), got.Failed, got.More)
	}
	res, body = ask(t, n, "POST", "/v1/dead-letters/retry", jsonType, `{"all":true}`)
	if got := decoded[wire.Redriven](t, res, body, 200); len(got.Items) != 1 || got.More {
		t.Errorf("then %d items, more %v", len(got.Items), got.More)
	}
}
