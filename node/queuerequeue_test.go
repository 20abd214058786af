package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/submit/redrive"
	"github.com/balefire/balefire/wire"
)

// A task that is moved to another queue is not lost (I11) when the process dies at any
// step: the next start creates its one successor without being asked, and a repeated
// call returns it, also by the idempotency key of the first request.
func TestMovedTaskSurvivesACrash(t *testing.T) {
	t.Parallel()
	died := errors.New("died")
	for _, point := range []string{redrive.PointMoving, redrive.PointRedriven} {
		t.Run(point, func(t *testing.T) {
			var dying atomic.Bool
			cfg := testConfig(t, filepath.Join(t.TempDir(), "a"))
			cfg.Fail = func(at string) error {
				if at == point && dying.Load() {
					return died
				}
				return nil
			}
			if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
				t.Fatal(err)
			}
			a := start(t, cfg)
			for name, paused := range map[string]bool{"day": true, "night": true} {
				if _, err := a.Queues.Set(t.Context(), name, wire.QueueSettings{Home: "here", Paused: &paused}); err != nil {
					t.Fatal(err)
				}
			}
			r := wire.Request{Target: "queue:day", Kind: "run", Body: []byte("x"), Key: "k"}
			id := a.submit(t, r)
			dying.Store(true)
			if s, err := a.Redriver.Move(t.Context(), id, "night"); !errors.Is(err, died) {
				t.Fatalf("the failpoint was not reached: %+v, %v", s, err)
			}
			a.halt()
			dying.Store(false)
			a = start(t, a.cfg)
			var old wire.Task
			eventually(t, func() bool { old, _ = a.Views.Task(t.Context(), id); return old.RedrivenAs != "" }, func() string { return "no successor: " + old.State })
			if task, err := a.Views.Task(t.Context(), old.RedrivenAs); err != nil || task.Target != "queue:night" || old.State != "CANCELLED" {
				t.Errorf("the old task is %s, the target of the new one is %s: %v", old.State, task.Target, err)
			}
			if s, err := a.Submit(t.Context(), r); err != nil || !s.Known || s.ID != old.RedrivenAs {
				t.Errorf("submit with the key of the first request: %+v, %v, want %s", s, err, old.RedrivenAs)
			}
			if s, err := a.Redriver.Move(t.Context(), id, "night"); err != nil || s.ID != old.RedrivenAs {
				t.Errorf("a repeated call: %+v, %v, want %s", s, err, old.RedrivenAs)
			}
			if open, err := a.outbox.Moves(); err != nil || len(open) > 0 {
				t.Errorf("moves that remain: %v, %v", open, err)
			}
		})
	}
}

// No caller has to wait for a task that is moved to another queue: it moves once it is
// CANCELLED, even if its caller is gone (I11). A cancellation in the meantime takes
// effect.
func TestMovedTaskNeedsNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Hour)
		defer c.close()
		c.onlyNode(2, 2)
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "night", wire.QueueSettings{Home: "here", Paused: new(true)}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 2)
		time.Sleep(5 * time.Second)
		c.Cut(0, 2)
		c.Cut(2, 0)
		for _, id := range ids { // they run on n2, which is cut off
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			if s, err := c.nodes[1].node.Redriver.Move(ctx, id, "night"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("moved at once: %+v, %v", s, err)
			}
			cancel()
		}
		if _, err := c.nodes[1].node.Redriver.Move(t.Context(), ids[0], "build"); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("to yet another queue: %v", err)
		}
		if _, err := c.nodes[1].node.Cancel(t.Context(), ids[1], false, ""); err != nil {
			t.Fatal(err)
		}
		c.Heal()
		var old wire.Task
		c.await(5*time.Minute, "the successor", func() bool { old, _ = c.nodes[1].node.Views.Task(t.Context(), ids[0]); return old.RedrivenAs != "" })
		if task, err := c.nodes[1].node.Views.Task(t.Context(), old.RedrivenAs); err != nil || task.Target != "queue:night" {
			t.Errorf("the target of the new task is %s: %v", task.Target, err)
		}
		c.await(5*time.Minute, "the end of the cancelled one", func() bool { old, _ = c.nodes[1].node.Views.Task(t.Context(), ids[1]); return old.State == "CANCELLED" })
		time.Sleep(10 * time.Second)
		if old, _ = c.nodes[1].node.Views.Task(t.Context(), ids[1]); old.RedrivenAs != "" {
			t.Errorf("a cancelled task got the successor %s", old.RedrivenAs)
		}
	})
}

// A task that is moved to another queue before it is due is not due earlier there, whether a
// delay or a time was given.
func TestMovedTaskKeepsItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		a := c.nodes[0].node
		if _, err := a.Queues.Set(t.Context(), "night", wire.QueueSettings{Home: "here"}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"delay", "time"} {
			r := wire.Request{Target: "queue:build", Kind: "build", Delay: wire.Duration(time.Hour)}
			if name == "time" {
				r.Delay, r.At = 0, time.Now().Add(time.Hour)
			}
			old, err := a.Submit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			s, err := a.Redriver.Move(t.Context(), old.ID, "night")
			if err != nil || s.Due == nil || !s.Due.Equal(*old.Due) {
				t.Fatalf("%s: the moved task is due at %v, the old one at %v: %v", name, s.Due, old.Due, err)
			}
			time.Sleep(time.Until(*s.Due) - time.Second)
			if n := c.startsOf(s.ID); n != 0 {
				t.Errorf("%s: it ran before it was due", name)
			}
			c.waitAll(0, []string{s.ID}, time.Minute)
		}
	})
}
