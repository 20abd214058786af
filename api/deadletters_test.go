package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/balefire/balefire/api/apitest"
	"github.com/balefire/balefire/wire"
)

// deadLetterPages creates pages of dead letters of the given sizes; every tenth dead letter
// was repeated before.
func deadLetterPages(sizes ...int) (pages []wire.Page[wire.Task]) {
	id := 0
	for i, size := range sizes {
		var p wire.Page[wire.Task]
		for range size {
			t := wire.Task{ID: fmt.Sprintf("dead-%d", id), State: "DEAD_LETTER"}
			if id%10 == 0 {
				t.RedrivenAs = "somebody"
			}
			p.Items = append(p.Items, t)
			id++
		}
		if i+1 < len(sizes) {
			p.Next = fmt.Sprint(i + 1)
		}
		pages = append(pages, p)
	}
	return pages
}

// TestRedrive checks that dead letters are repeated once each, and that a dry run
// repeats none.
func TestRedrive(t *testing.T) {
	tests := []struct {
		name, body    string
		pages         []wire.Page[wire.Task]
		items, failed int
		more          bool
		calls         int // of Retry
	}{
		{"by id", `{"ids":["dead-1","dead-2"]}`, nil, 2, 0, false, 2},
		{"by kind, over pages", `{"kind":"k"}`, deadLetterPages(20, 20, 5), 40, 0, false, 40},
		{"all of none", `{"all":true}`, deadLetterPages(0), 0, 0, false, 0},
		{"a dry run", `{"all":true,"dry_run":true}`, deadLetterPages(20), 18, 0, false, 0},
		{"more than one request takes", `{"all":true}`, deadLetterPages(1000, 1000), 1000, 0, true, 1000},
		{"one cannot be repeated", `{"ids":["dead-1","bad","dead-2"]}`, nil, 3, 1, false, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := apitest.New()
			n.Dead = tt.pages
			n.PerItem = func(r wire.Request) error {
				if r.Key == "bad" {
					return fmt.Errorf("%w: task bad is RUNNING", wire.ErrRefused)
				}
				return nil
			}
			res, body := ask(t, n, "POST", "/v1/dead-letters/retry", jsonType, tt.body)
			var got wire.Redriven
			if err := json.Unmarshal([]byte(body), &got); err != nil || res.StatusCode != 200 {
				t.Fatalf("%d %s", res.StatusCode, body)
			}
			if len(got.Items) != tt.items || got.Failed != tt.failed || got.More != tt.more {
				t.Errorf("%d items, %d failed, more %v", len(got.Items), got.Failed, got.More)
			}
			retries := 0
			for _, c := range n.Calls() {
				if strings.HasPrefix(c, "Retry ") {
					retries++
				}
			}
			if retries != tt.calls {
				t.Errorf("%d retries, want %d", retries, tt.calls)
			}
			for _, i := range got.Items {
				if ok := i.Task != nil; ok != (i.Problem == nil && !got.DryRun) || (i.ID == "bad") == ok && !got.DryRun {
					t.Errorf("item %+v", i)
				}
			}
		})
	}
}
