package outbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// The record of an accepted task is cached for its result, which is not committed on it if
// the task has changed since. Nothing is left in the cache.
func TestResultIsCommittedOnTheNewestRecord(t *testing.T) {
	for _, changed := range []bool{false, true} {
		inBubble(t, Config{}, func(t *testing.T, h *home) {
			g := newTarget(t)
			defer h.connect(g)()
			id := h.submit(g.peer(), day, nil)
			synctest.Wait()
			k := backlog.TaskKey(id)
			ed, ok := h.accepted.edits[k]
			if it, _ := h.backlog.Peek(k); !ok || ed.Record.State != accepted || ed.Version != it.Version {
				t.Fatalf("cached: %v, the task is %v", ed, it)
			}
			if changed {
				errs := h.backlog.Change(t.Context(), []backlog.Edit{{Key: k}}, func(_ int, r *proto.Record) backlog.Action {
					r.Labels = map[string]string{"changed": "since"}
					return backlog.Write
				})
				if errs[0] != nil {
					t.Fatal(errs[0])
				}
			}
			if v := h.Commit(t.Context(), g.peer(), []ResultIn{g.result(h, id, success, "")}); v[0].Code != 0 {
				t.Fatal(v[0])
			}
			r, err := h.Get(id)
			if err != nil || r.State != success || len(r.Receipts) != 1 || (len(r.Labels) > 0) != changed {
				t.Errorf("changed %v: %v, %v", changed, r, err)
			}
			if n := len(h.accepted.edits); n != 0 {
				t.Errorf("%d records are cached", n)
			}
			time.Sleep(time.Second)
		})
	}
}

// The newest record replaces the oldest.
func TestAcceptCacheIsBounded(t *testing.T) {
	c := newAcceptCache()
	key := func(i int) backlog.Key { return backlog.TaskKey(proto.TaskID{byte(i >> 8), byte(i), 1}) }
	for i := range 3 * acceptCacheEntries / 2 {
		c.put(backlog.Edit{Key: key(i), Record: new(proto.Record)})
	}
	if n := len(c.edits); n != acceptCacheEntries {
		t.Errorf("%d records", n)
	}
	for i := range 3 * acceptCacheEntries / 2 {
		if ed := c.take(key(i)); (ed.Record != nil) != (i >= acceptCacheEntries/2) || ed.Key != key(i) {
			t.Fatalf("record %d: %v", i, ed)
		}
	}
}
