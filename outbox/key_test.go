package outbox

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/idempotency"
)

// The same key with the same request is the same task; with another request it is
// refused. After its period, and once its task has ended, the key is free.
func TestIdempotencyKeys(t *testing.T) {
	inBubble(t, Config{Keys: idempotency.Limits{For: time.Hour}}, func(t *testing.T, h *home) {
		g := newTarget(t)
		keyed := func(digest string) func(*proto.Record) {
			return func(r *proto.Record) { r.IdempotencyKey, r.RequestDigest = "key", []byte(digest) }
		}
		first := h.draft(g.peer(), day, keyed("request"))
		drafts := []*Draft{first, h.draft(g.peer(), day, keyed("request")), h.draft(g.peer(), day, keyed("other")), h.draft(g.peer(), day, nil)}
		existing, errs := h.SubmitMany(t.Context(), drafts)
		if errs[0] != nil || existing[0] != nil || errs[3] != nil {
			t.Fatalf("first: %v, %v, last: %v", existing[0], errs[0], errs[3])
		}
		if errs[1] != nil || existing[1] == nil || *existing[1] != first.Header.ID {
			t.Errorf("the same request: %v, %v", existing[1], errs[1])
		}
		if !errors.Is(errs[2], ErrKeyConflict) {
			t.Errorf("another request: %v", errs[2])
		}
		h.crash()
		if id, err := h.Submit(t.Context(), h.draft(g.peer(), day, keyed("request")), nil); err != nil || id == nil || *id != first.Header.ID {
			t.Errorf("after a crash: %v, %v", id, err)
		}
		if st := h.Stats(); st.Live != 2 {
			t.Errorf("%d tasks, want 2", st.Live)
		}
		if n := outstanding(&h.seqs, g.peer()); n != 2 {
			t.Errorf("%d sequences outstanding, want 2", n)
		}
		redrive := h.draft(g.peer(), day, keyed("request"))
		redrive.Record.RedriveOf = first.Header.ID[:]
		if id, err := h.Submit(t.Context(), redrive, nil); err != nil || id != nil {
			t.Errorf("a redrive: %v, %v", id, err)
		}
		if id, err := h.Submit(t.Context(), h.draft(g.peer(), day, keyed("request")), nil); err != nil || id == nil || *id != redrive.Header.ID {
			t.Errorf("the key belongs to %v, %v, want the redrive", id, err)
		}
		time.Sleep(2 * time.Hour)
		if _, err := h.Submit(t.Context(), h.draft(g.peer(), day, keyed("other")), nil); !errors.Is(err, ErrKeyConflict) {
			t.Errorf("after its period, while its task lives: %v", err)
		}
		h.cancel(redrive.Header.ID, false, cancelled)
		time.Sleep(20 * time.Minute)
		if id, err := h.Submit(t.Context(), h.draft(g.peer(), day, keyed("other")), nil); err != nil || id != nil {
			t.Errorf("after its period: %v, %v", id, err)
		}
	})
}

// I6, I14: whatever the wall clock does, while the node runs and over a restart,
// the same key is the same task, for seven days of running.
func TestIdempotencyKeySurvivesClockJumps(t *testing.T) {
	for _, years := range []int{10, -10} {
		t.Run(fmt.Sprint(years), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { keyUnderClocks(t, years) }) })
	}
}

func keyUnderClocks(t *testing.T, years int) {
	m := clock.NewManual(time.Now())
	h := newHome(t, Config{})
	h.time = m.Clock()
	h.start()
	defer func() { h.stop() }()
	g := newTarget(t)
	submit := func() proto.TaskID {
		t.Helper()
		d := h.draft(g.peer(), time.Hour, func(r *proto.Record) { r.IdempotencyKey, r.RequestDigest = "key", []byte("request") })
		id, err := h.Submit(t.Context(), d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if id != nil {
			return *id
		}
		return d.Header.ID
	}
	pass := func(d time.Duration) {
		for ; d > 0; d -= time.Minute {
			m.Advance(time.Minute)
			time.Sleep(time.Minute)
		}
	}
	first := submit()
	pass(2 * time.Hour) // its task has ended
	for range 3 {
		m.SetWall(m.Clock().Now().AddDate(years, 0, 0))
		pass(time.Hour)
		if submit() != first {
			t.Fatal("after a jump: another task")
		}
		h.stop()
		h.disk = h.disk.Reopen()
		m.SetWall(m.Clock().Now().AddDate(years, 0, 0))
		h.start()
		pass(time.Hour)
		if submit() != first {
			t.Fatal("after a jump over a restart: another task")
		}
	}
	pass(7*day - 9*time.Hour)
	if submit() != first {
		t.Error("another task before its period")
	}
	pass(2 * time.Hour)
	if submit() == first {
		t.Error("the same task after its period")
	}
}

// At the limit of keys a task with a new key is refused as FULL and leaves nothing
// behind; one with a known key is found, one without a key is accepted, and an unused
// reservation is released.
func TestKeyLimit(t *testing.T) {
	inBubble(t, Config{Keys: idempotency.Limits{Max: 3}, MaxPending: 3}, func(t *testing.T, h *home) {
		synctest.Wait() // a key made while they are counted is counted twice
		g := newTarget(t)
		keyed := func(key string) *Draft {
			return h.draft(g.peer(), day, func(r *proto.Record) { r.IdempotencyKey, r.RequestDigest = key, []byte("request") })
		}
		a := keyed("a")
		first, errs := h.SubmitMany(t.Context(), []*Draft{a, keyed("b"), h.draft(g.peer(), day, nil), keyed("c")})
		if errs[0] != nil || errs[1] != nil || errs[2] != nil || first[0] != nil || !errors.Is(errs[3], ErrFull) {
			t.Fatalf("%v: the last one is one task too many", errs)
		}
		if n := h.Outbox.keys.Count(); n != 2 {
			t.Errorf("%d keys, want 2: the third task was refused", n)
		}
		h.cfg.Keys.Max, h.cfg.MaxPending = 2, 100
		for range 2 {
			h.crash()
			synctest.Wait()
			if _, err := h.Submit(t.Context(), keyed("c"), nil); !errors.Is(err, ErrFull) {
				t.Errorf("a third key: %v", err)
			}
			if id, err := h.Submit(t.Context(), keyed("a"), nil); err != nil || id == nil || *id != a.Header.ID {
				t.Errorf("a known key: %v, %v", id, err)
			}
			if n := outstanding(&h.seqs, g.peer()); n != 3 {
				t.Errorf("%d sequences outstanding, want 3", n)
			}
		}
		redrive := keyed("b")
		redrive.Record.RedriveOf = a.Header.ID[:]
		if id, err := h.Submit(t.Context(), redrive, nil); err != nil || id != nil {
			t.Errorf("a redrive: %v, %v", id, err)
		}
		if _, err := h.Submit(t.Context(), h.draft(g.peer(), day, nil), nil); err != nil || h.Outbox.keys.Count() != 2 {
			t.Errorf("without a key: %v; %d keys", err, h.Outbox.keys.Count())
		}
	})
}
