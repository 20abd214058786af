package backlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// note is a hook that records in Flows how an entry ended.
func note(k Key, r *proto.Record, b *store.Batch) {
	b.Put(store.Flows, k.ID[:], []byte(r.State.Name()))
}

// noted returns what note recorded, empty if nothing.
func (w *fixture) noted(k Key) string {
	val, err := w.store.Get(store.Flows, k.ID[:])
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		w.t.Fatal(err)
	}
	return string(val)
}

// TestEndedIsCalledForEnds: the hook's record is written with an end, with nothing else,
// by Change and in a caller's batch.
func TestEndedIsCalledForEnds(t *testing.T) {
	tests := []struct {
		name   string
		action Action
		want   string
	}{
		{"kept", Keep, ""}, {"written", Write, ""}, {"queued again", Requeue, ""},
		{"tombstone", Tombstone, ""}, {"dropped", Drop, ""},
		{"done", ToDone, "SUCCESS"}, {"dead", ToDead, "SUCCESS"},
	}
	for _, tt := range tests {
		for _, prepared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, prepared %v", tt.name, prepared), func(t *testing.T) {
				w := newFixture(t, Config{Ended: note})
				k := w.addOne("p", classNormal, nil)
				decide := func(r *proto.Record) Action {
					if tt.want != "" || tt.action == Tombstone {
						r.State = success
					}
					return tt.action
				}
				if !prepared {
					w.change(k, decide)
				} else if step, err := w.Prepare(Edit{Key: k}, decide); err != nil {
					t.Fatal(err)
				} else if step != nil {
					var b store.Batch
					step.AddTo(&b)
					if err := w.store.Apply(t.Context(), &b); err != nil {
						t.Fatal(err)
					}
				}
				if got := w.noted(k); got != tt.want {
					t.Errorf("recorded %q, want %q", got, tt.want)
				}
			})
		}
	}
}

// TestEndedIsCalledAgainAfterARefusal: a refused batch leaves neither the end nor the
// hook's record, and the next try calls the hook again.
func TestEndedIsCalledAgainAfterARefusal(t *testing.T) {
	bad := true
	w := newFixture(t, Config{Ended: func(k Key, r *proto.Record, b *store.Batch) {
		note(k, r, b)
		if bad {
			b.Put(store.Flows, nil, nil)
		}
	}})
	k := w.addOne("p", classNormal, nil)
	finish := func(_ int, r *proto.Record) Action { r.State = success; return ToDone }
	if err := w.Change(t.Context(), []Edit{{Key: k}}, finish)[0]; !errors.Is(err, store.ErrKey) {
		t.Fatalf("a batch with a bad key: %v", err)
	}
	if _, set, err := w.Get(k); err != nil || set != Live || w.noted(k) != "" {
		t.Errorf("after the refusal: in %v, %v, recorded %q", set, err, w.noted(k))
	}
	bad = false
	if err := w.Change(t.Context(), []Edit{{Key: k}}, finish)[0]; err != nil {
		t.Fatal(err)
	}
	if _, set, err := w.Get(k); err != nil || set != Done || w.noted(k) != "SUCCESS" {
		t.Errorf("after the next try: in %v, %v, recorded %q", set, err, w.noted(k))
	}
}

// TestEndedOperationsAreBounded: with the most operations that the hook may add, no batch
// exceeds its bound; one more panics.
func TestEndedOperationsAreBounded(t *testing.T) {
	const n = 200
	extra, largest := MaxEndedOps, 0
	w := newFixture(t, Config{Ended: func(k Key, _ *proto.Record, b *store.Batch) {
		for i := range extra {
			b.Put(store.Flows, append(k.ID[:], byte(i)), nil)
		}
		largest = max(largest, b.Len())
	}})
	var edits []Edit
	for range n {
		k := w.addOne("p", classNormal, nil)
		w.change(k, func(r *proto.Record) Action { r.State = accepted; return Write })
		edits = append(edits, Edit{Key: k})
	}
	die := func(_ int, r *proto.Record) Action { r.State = failed; return ToDead }
	before := w.store.Counters().Ops
	if err := errors.Join(w.Change(t.Context(), edits, die)...); err != nil {
		t.Fatal(err)
	}
	if ops := w.store.Counters().Ops - before; ops != n*changeOps || largest > batchOps || largest <= batchOps-changeOps {
		t.Errorf("%d operations for %d ends, want %d; %d in the largest batch, limit %d", ops, n, n*changeOps, largest, batchOps)
	}
	extra++
	k := w.addOne("p", classNormal, nil)
	defer func() {
		if why := fmt.Sprint(recover()); !strings.Contains(why, "added 5 operations") || !strings.Contains(why, "limit 4") {
			t.Errorf("one operation too many: %s", why)
		}
	}()
	w.Change(t.Context(), []Edit{{Key: k}}, die)
}
