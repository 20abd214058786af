package outbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// The caller's operations are written with the task or not at all: not if its key is
// used, not if a requirement does not hold, and not if the outbox is full.
func TestSubmitWithTheCallersOperations(t *testing.T) {
	keyed := func(digest string) func(*proto.Record) {
		return func(r *proto.Record) { r.IdempotencyKey, r.RequestDigest = "key", []byte(digest) }
	}
	redrive := func(r *proto.Record) {
		keyed("request")(r)
		r.RedriveOf = make([]byte, len(proto.TaskID{}))
	}
	tests := []struct {
		name    string
		before  func(*proto.Record) // of a task that was submitted before; nil: none
		set     func(*proto.Record)
		require bool // a requirement that does not hold
		full    bool
		known   bool // answered with the earlier task
		err     error
	}{
		{name: "no key"},
		{name: "no key, its requirement does not hold", require: true, err: store.ErrConflict},
		{name: "a new key", set: keyed("request")},
		{name: "a new key, its requirement does not hold", set: keyed("request"), require: true, err: store.ErrConflict},
		{name: "a used key", before: keyed("request"), set: keyed("request"), known: true},
		{name: "a used key, its requirement does not hold", before: keyed("request"), set: keyed("request"), require: true, known: true},
		{name: "a key of another request", before: keyed("other"), set: keyed("request"), err: ErrKeyConflict},
		{name: "a redrive", before: keyed("request"), set: redrive},
		{name: "a redrive, its requirement does not hold", before: keyed("request"), set: redrive, require: true, err: store.ErrConflict},
		{name: "the outbox is full", before: func(*proto.Record) {}, full: true, err: ErrFull},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{}
			if tt.full {
				cfg.MaxPending = 1
			}
			inBubble(t, cfg, func(t *testing.T, h *home) {
				g := newTarget(t)
				var first proto.TaskID
				if tt.before != nil {
					first = h.submit(g.peer(), day, tt.before)
				}
				tasks, keys := outstanding(&h.seqs, g.peer()), h.Outbox.keys.Count()
				d := h.draft(g.peer(), day, tt.set)
				existing, err := h.Submit(t.Context(), d, func(b *store.Batch) {
					b.Put(store.Flows, []byte("run"), d.Header.ID[:])
					if tt.require {
						b.RequireEqual(store.Flows, []byte("none"), []byte("such"))
					}
				})
				if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
					t.Fatalf("submit: %v, want %v", err, tt.err)
				}
				if known := existing != nil; known != tt.known || known && *existing != first {
					t.Errorf("existing: %v, want %v", existing, tt.known)
				}
				written := tt.err == nil && !tt.known
				want := ""
				if written {
					want, tasks = string(d.Header.ID[:]), tasks+1
				} else if n := h.Outbox.keys.Count(); n != keys {
					t.Errorf("%d keys after a refusal, %d before", n, keys)
				}
				if n := outstanding(&h.seqs, g.peer()); n != tasks {
					t.Errorf("%d sequences outstanding, want %d", n, tasks)
				}
				h.crash()
				if got := h.flow("run"); got != want {
					t.Errorf("recorded %x, want %x", got, want)
				}
				if _, err := h.Get(d.Header.ID); (err == nil) != written {
					t.Errorf("the task: %v, want it there: %v", err, written)
				}
			})
		})
	}
}

// A power cut before the batch leaves neither the task nor the caller's record; one
// after it leaves both, and the same request with its key is then the same task.
func TestCrashWhileSubmittingWithTheCallersOperations(t *testing.T) {
	for _, key := range []string{"", "key"} {
		t.Run("key "+key, func(t *testing.T) {
			inBubble(t, Config{}, func(t *testing.T, h *home) {
				g := newTarget(t)
				draft := func() *Draft {
					return h.draft(g.peer(), day, func(r *proto.Record) { r.IdempotencyKey, r.RequestDigest = key, []byte("request") })
				}
				lost := draft()
				_, err := h.Submit(t.Context(), lost, func(b *store.Batch) {
					b.Put(store.Flows, []byte("run"), []byte("lost"))
					h.cutPower()
				})
				if err == nil {
					t.Error("submit during the power cut succeeded")
				}
				h.crash()
				if _, err := h.Get(lost.Header.ID); !errors.Is(err, ErrNotFound) || h.flow("run") != "" {
					t.Errorf("after a crash before the batch: %v, recorded %q", err, h.flow("run"))
				}
				kept := draft()
				put := func(b *store.Batch) { b.Put(store.Flows, []byte("run"), []byte("kept")) }
				if existing, err := h.Submit(t.Context(), kept, put); err != nil || existing != nil {
					t.Fatalf("again: %v, %v", existing, err)
				}
				h.crash()
				if h.want(kept.Header.ID, pending); h.flow("run") != "kept" {
					t.Errorf("after a crash behind the batch: recorded %q", h.flow("run"))
				}
				if key == "" {
					return
				}
				existing, err := h.Submit(t.Context(), draft(), func(b *store.Batch) { b.Put(store.Flows, []byte("run"), []byte("twice")) })
				if err != nil || existing == nil || *existing != kept.Header.ID || h.flow("run") != "kept" {
					t.Errorf("the same request: %v, %v, recorded %q", existing, err, h.flow("run"))
				}
			})
		})
	}
}

// If the caller gives up, its operations are still written with the task.
func TestSubmitWithTheCallersOperationsGivenUp(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		ctx, cancel := context.WithCancel(t.Context())
		d := h.draft(newTarget(t).peer(), day, nil)
		_, err := h.Submit(ctx, d, func(b *store.Batch) {
			b.Put(store.Flows, []byte("run"), []byte("kept"))
			cancel()
			time.Sleep(time.Second)
		})
		if !errors.Is(err, store.ErrUnknown) {
			t.Errorf("given up: %v", err)
		}
		time.Sleep(2 * time.Second)
		if h.want(d.Header.ID, pending); h.flow("run") != "kept" {
			t.Errorf("recorded %q", h.flow("run"))
		}
	})
}
