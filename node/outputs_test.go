package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Output beyond its limit fails the task at once with that reason, also at home; with
// on_overflow cut the task succeeds with truncated output. The same holds for the owner of a
// task of a queue and for its home.
func TestTooLargeOutput(t *testing.T) {
	a, b := pair(t, nil)
	for kind, overflow := range map[string]string{"strict": "", "head": "cut"} {
		if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: kind, Exec: []string{"head", "-c", "3000000", "/dev/zero"}, Allow: []string{"peer:a"}, MaxOutput: 1 << 20, OnOverflow: overflow}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Queues.Set(t.Context(), "q", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	rejected, cut := proto.TaskRejected.Name(), proto.TaskOutputCut.Name()
	for _, tt := range []struct {
		target, kind, state, cause string
		max                        int64
		size                       uint64
	}{
		{"b", "strict", "FAILED", rejected, 0, 1 << 20},
		{"b", "strict", "FAILED", rejected, 5000, 5000},
		{"b", "head", "SUCCESS", cut, 0, 1 << 20},
		{"queue:q", "strict", "FAILED", rejected, 0, 1 << 20},
		{"queue:q", "strict", "FAILED", rejected, 5000, 5000},
		{"queue:q", "head", "SUCCESS", cut, 0, 1 << 20},
	} {
		task := a.waitEnd(t, a.submit(t, wire.Request{Target: tt.target, Kind: tt.kind, MaxResult: tt.max}), tt.state)
		if task.Cause != tt.cause || task.Reason == "" || !task.Truncated || task.ResultSize != tt.size || len(task.History) != 1 {
			t.Errorf("%s of %s %d: %s %q, truncated %v, %d bytes, %d attempts", tt.kind, tt.target, tt.max, task.Cause, task.Reason, task.Truncated, task.ResultSize, len(task.History))
		}
		reported := false
		for _, e := range task.Events {
			reported = reported || e.State == tt.state && e.Cause == tt.cause && e.Detail != ""
		}
		if !reported {
			t.Errorf("no event has %s: %+v", tt.cause, task.Events)
		}
	}
}

// A kind whose program is missing is not offered, and its tasks wait at home; when the
// program is there they run without having used up an attempt.
func TestKindWithoutProgramIsNotOffered(t *testing.T) {
	a, b := pair(t, nil)
	program := filepath.Join(t.TempDir(), "prog")
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "late", Exec: []string{program}, Allow: []string{"peer:a"}, MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	if kinds := b.kinds(); len(kinds) != 0 {
		t.Errorf("%v are offered", kinds)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "late"})
	var why wire.Blocker
	eventually(t, func() bool {
		why, _ = a.Explainer.Why(t.Context(), id)
		return why.Cause.Code == wire.NoteRefusedProgram
	}, func() string { return fmt.Sprintf("why: %+v", why.Cause) })
	if why.Cause.Peer != "b" || why.Cause.Refusal != "CANNOT_START" {
		t.Errorf("the cause is %+v", why.Cause)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho here\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.Handlers.Check()
	if task := a.waitEnd(t, id, "SUCCESS"); task.Attempts != 1 || len(task.History) != 1 {
		t.Errorf("%d attempts, history %+v", task.Attempts, task.History)
	}
	if kinds := b.kinds(); len(kinds) != 1 {
		t.Errorf("%v are offered", kinds)
	}
}

// Why states that a task waits for disk space as long as it does: after a run was stopped for
// lack of it, and between all later tries, also at the home of a queue.
func TestWhyOfATaskWithoutSpaceForItsOutput(t *testing.T) {
	const stopped, waits = "NO_ROOM: the disk is at its reserve", "NO_ROOM: stopped when the disk reached its reserve"
	for _, target := range []string{"n0", "queue:build"} {
		t.Run(target, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 1, time.Second)
				defer c.close()
				home, runs, space := c.nodes[0], new(atomic.Int64), new(atomic.Bool)
				spec := inbox.Spec{Kind: "big", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, MaxAttempts: 1}
				spec.Handler = handler.Func(func(context.Context, *handler.Run) *handler.Result { // as the executor does
					switch {
					case runs.Add(1) == 1:
						return &handler.Result{Outcome: handler.NoSpace, Reason: stopped}
					case !space.Load():
						return &handler.Result{Outcome: handler.Unready, Code: -1, Reason: waits}
					}
					return &handler.Result{Outcome: handler.Success}
				})
				if err := home.node.inbox.Register(spec); err != nil {
					t.Fatal(err)
				}
				home.node.gossip.Describe()
				time.Sleep(10 * time.Second)
				id := home.mustSubmit(wire.Request{Target: target, Kind: "big"})
				time.Sleep(500 * time.Millisecond)
				for range 600 {
					synctest.Wait() // not while it runs
					n, want := runs.Load(), stopped
					if n > 1 {
						want = waits
					}
					if why, err := home.node.Explainer.Why(t.Context(), id); err != nil || n == 0 || !strings.Contains(why.Cause.Detail, want) {
						t.Fatalf("after %d runs: %+v, %v", n, why, err)
					}
					time.Sleep(time.Second)
				}
				space.Store(true)
				home.waitState(id, "SUCCESS", 10*time.Minute)
				if n := runs.Load(); n < 4 {
					t.Errorf("%d runs", n)
				}
			})
		})
	}
}

// Why states that a task runs from the call of its handler on, before its start is on disk,
// and at the moment when a retry is due it states why the last try failed until the next one
// starts: the task never waits for a slot of its kind, which has no limit.
func TestWhyAtTheMomentOfARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, time.Second)
		defer c.close()
		home, self := c.nodes[0], make(chan string, 1)
		explain := home.node.Explainer // the last try may run while the node stops
		spec := inbox.Spec{Kind: "big", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry}
		spec.Handler = handler.Func(func(ctx context.Context, _ *handler.Run) *handler.Result {
			id := <-self
			self <- id
			why, err := explain.Why(ctx, id)
			if ctx.Err() == nil && (err != nil || why.Cause.Code != wire.NoteRuns) {
				t.Errorf("while it runs: %+v, %v", why, err)
			}
			return &handler.Result{Outcome: handler.Unready, Code: -1, Reason: "NO_ROOM"}
		})
		if err := home.node.inbox.Register(spec); err != nil {
			t.Fatal(err)
		}
		home.node.gossip.Describe()
		time.Sleep(10 * time.Second)
		id := home.mustSubmit(wire.Request{Target: "n0", Kind: "big"})
		self <- id
		for range 100 {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			why, err := home.node.Explainer.Why(t.Context(), id)
			if err != nil || why.Next == nil {
				t.Fatalf("between two tries: %+v, %v", why, err)
			}
			time.Sleep(time.Until(*why.Next))
			why, err = home.node.Explainer.Why(t.Context(), id)
			if err != nil || why.Cause.Code != wire.NoteRuns && (why.Cause.Code != wire.NoteRetryWaits || why.Cause.Detail != "NO_ROOM") {
				t.Errorf("when it is due: %+v, %v", why, err)
			}
		}
	})
}
