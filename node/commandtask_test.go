package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// shell is a handler that runs a program with the task's arguments.
func shell(extra func(*wire.HandlerSpec)) wire.HandlerSpec {
	s := wire.HandlerSpec{Kind: "run", Exec: []string{"/usr/bin/env"}, Args: true, AllowFlags: true, Allow: []string{"peer:a"}, OnCrash: "retry"}
	if extra != nil {
		extra(&s)
	}
	return s
}

func (l *testNode) submit(t *testing.T, r wire.Request) string {
	t.Helper()
	s, err := l.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s.ID
}

// waitEnd waits for the end of a task and fails the test when it is not want.
func (l *testNode) waitEnd(t *testing.T, id, want string) wire.Task {
	t.Helper()
	task, err := l.Views.Wait(withTimeout(t, testTimeout), id)
	if err != nil || task.State != want {
		why, _ := l.Explainer.Why(context.Background(), id)
		t.Fatalf("task is %s (%s), want %s: %v; %+v", task.State, task.Reason, want, err, why)
	}
	return task
}

// eventually polls until ok returns true.
func eventually(t *testing.T, ok func() bool, message func() string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(testTimeout)
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			t.Fatal(message())
		}
	}
}

// A clock that is behind does not end a run: the duration of a run is not measured by
// the wall clock.
func TestClockSetBackStopsNoRun(t *testing.T) {
	var by atomic.Int64
	a, b := pair(t, func(name string, c *Config) {
		if name == "b" {
			c.Clock = clock.WithOffset(clock.System(), func() time.Duration { return time.Duration(by.Load()) })
		}
	})
	if err := b.Handlers.Add(t.Context(), shell(func(s *wire.HandlerSpec) { s.Timeout = "1m" })); err != nil {
		t.Fatal(err)
	}
	by.Store(int64(-2 * time.Minute))
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sleep", "0.1"}, Retries: 1})
	a.waitEnd(t, id, "SUCCESS")
}

func TestCommandRunsWithItsArguments(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", `echo "$BALEFIRE_TASK_ID $BALEFIRE_ATTEMPT"; cat`}, Body: []byte("the body")})
	task := a.waitEnd(t, id, "SUCCESS")
	r, _, err := a.Views.Result(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if want := id + " 1\nthe body"; string(out) != want || err != nil {
		t.Errorf("result %q, %v, want %q", out, err, want)
	}
	if len(task.History) != 1 || task.ExitCode == nil || *task.ExitCode != 0 {
		t.Errorf("history %+v, exit %v", task.History, task.ExitCode)
	}
}

// The exit code of a handler decides the end: 65 fails permanently, 75 and others are
// retried until the attempts are used up. The reason, the attempts and stderr arrive at
// the home (I11).
func TestExitCodesDecideTheEnd(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	for kind, timeout := range map[string]string{"run": "10m", "slow": "100ms"} {
		if err := b.Handlers.Add(t.Context(), shell(func(s *wire.HandlerSpec) { s.Kind, s.MaxAttempts, s.Timeout = kind, 2, timeout })); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, kind, script, want string
		exit                     int32
		attempts                 int
		stderr                   string
	}{
		{"65 fails permanently", "run", "echo no >&2; exit 65", "FAILED", 65, 1, "no\n"},
		{"75 is retried", "run", "echo later >&2; exit 75", "DEAD_LETTER", 75, 2, "later\n"},
		{"any other is retried", "run", "exit 3", "DEAD_LETTER", 3, 2, ""},
		{"a signal is retried", "run", "echo killed >&2; kill -9 $$", "DEAD_LETTER", -1, 2, "killed\n"},
		{"the last attempt ran out of time", "slow", "sleep 600", "TIMEOUT", -1, 2, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := a.submit(t, wire.Request{Target: "b", Kind: tt.kind, Args: []string{"sh", "-c", tt.script}})
			task := a.waitEnd(t, id, tt.want)
			if len(task.History) != tt.attempts || task.Cause == "" || task.Reason == "" || task.Stderr != tt.stderr {
				t.Errorf("%d attempts, want %d; reason %q; stderr %q, want %q", len(task.History), tt.attempts, task.Reason, task.Stderr, tt.stderr)
			}
			if tt.exit >= 0 && (task.ExitCode == nil || *task.ExitCode != tt.exit) {
				t.Errorf("exit code %v, want %d", task.ExitCode, tt.exit)
			}
		})
	}
}

func TestRefusedTasksEndOrWait(t *testing.T) {
	a, b := pair(t, nil)
	denied := allow("secret", wire.TypeEcho)
	denied.Allow = []string{"peer:somebody"}
	if err := b.Handlers.Add(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	task := a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "secret"}), "DEAD_LETTER")
	if task.Code != "DENIED" || task.Cause != "refused" {
		t.Errorf("code %q, cause %q", task.Code, task.Cause)
	}

	plain := wire.HandlerSpec{Kind: "plain", Exec: []string{"/usr/bin/env"}, Allow: []string{"peer:a"}}
	if err := b.Handlers.Add(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	task = a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "plain", Args: []string{"x"}}), "DEAD_LETTER")
	if task.Code != "DENIED" || task.Cause != "refused" || task.Attempts != 0 || slices.Contains(task.Receipts, "started") {
		t.Errorf("arguments for a handler without: code %q, cause %q, %d attempts, %v", task.Code, task.Cause, task.Attempts, task.Receipts)
	}

	id := a.submit(t, wire.Request{Target: "b", Kind: "nobody-does-this"})
	var why wire.Blocker
	eventually(t, func() bool {
		why, _ = a.Explainer.Why(t.Context(), id)
		return why.Cause.Refusal == "NO_HANDLER"
	}, func() string { return fmt.Sprintf("why: %+v", why.Cause) })
	if c := why.Cause; c.Peer != "b" || c.Self != "a" || c.Kind != "nobody-does-this" {
		t.Errorf("the cause does not say where which handler is missing, and for whom: %+v", c)
	}
	if got, _ := a.Views.Task(t.Context(), id); got.State != "PENDING" || got.Attempts != 0 {
		t.Errorf("state %s, attempts %d; want it to wait without using up attempts", got.State, got.Attempts)
	}
	if err := b.Handlers.Add(t.Context(), allow("nobody-does-this", wire.TypeDiscard)); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, id, "SUCCESS")
}

func TestSubmitRefusesInvalidRequests(t *testing.T) {
	a, _ := pair(t, nil)
	tests := []struct {
		name string
		r    wire.Request
		want error
		text string
	}{
		{"no target", wire.Request{Kind: "k"}, wire.ErrInvalid, "no target"},
		{"unknown peer", wire.Request{Target: "nobody", Kind: "k"}, wire.ErrNotFound, "known peers: b"},
		{"queue without a valid name", wire.Request{Target: "queue:Build", Kind: "k"}, wire.ErrInvalid, `queue "Build": use`},
		{"mailbox", wire.Request{Target: "agent:codex@b", Kind: "k"}, wire.ErrInvalid, "name or id of a peer"},
		{"topic", wire.Request{Target: "topic:orders", Kind: "k"}, wire.ErrInvalid, "name or id of a peer"},
		{"all", wire.Request{Target: "all", Kind: "k"}, wire.ErrInvalid, "name or id of a peer"},
		{"unknown prefix", wire.Request{Target: "group:b", Kind: "k"}, wire.ErrInvalid, "group: begins no target"},
		{"bad kind", wire.Request{Target: "b", Kind: "No Kind"}, wire.ErrInvalid, "kind"},
		{"TTL too long", wire.Request{Target: "b", Kind: "k", TTL: wire.Duration(31 * 24 * time.Hour)}, wire.ErrInvalid, "ttl"},
		{"too large inline", wire.Request{Target: "b", Kind: "k", Body: make([]byte, 11<<20)}, wire.ErrInvalid, "stream"},
		{"a zero byte", wire.Request{Target: "b", Kind: "k", Args: []string{"a\x00b"}}, wire.ErrInvalid, "zero byte"},
		{"unknown queue", wire.Request{Target: "queue:build", Kind: "k"}, wire.ErrNotFound, "queue set"},
	}
	for _, tt := range tests {
		if _, err := a.Submit(t.Context(), tt.r); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.want, tt.text)
		}
	}
	if st := a.Views.Status(t.Context()); len(st.Outbox) != 0 {
		t.Errorf("the outbox is not empty: %v", st.Outbox)
	}
}

// The same key with the same request returns the same task; another request with that
// key is refused (I6). A test in outbox covers that a redrive keeps the key.
func TestIdempotencyKeys(t *testing.T) {
	a, b := pair(t, nil)
	dir := t.TempDir()
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	count := filepath.Join(dir, "runs")
	r := wire.Request{Target: "b", Kind: "run", Key: "once", Args: []string{"sh", "-c", "echo run >> " + count}}
	first := a.submit(t, r)
	again, err := a.Submit(t.Context(), r)
	if err != nil || again.ID != first || !again.Known {
		t.Errorf("the same request again: %+v, %v, want the first task", again, err)
	}
	other := r
	other.Args = []string{"true"}
	if _, err := a.Submit(t.Context(), other); !errors.Is(err, wire.ErrKeyConflict) {
		t.Errorf("another request with the key: %v", err)
	}
	once := r
	once.Mode = "at_most_once"
	if _, err := a.Submit(t.Context(), once); !errors.Is(err, wire.ErrKeyConflict) {
		t.Errorf("the request with a stronger promise than that of its task: %v", err)
	}
	a.waitEnd(t, first, "SUCCESS")
	if runs, _ := os.ReadFile(count); string(runs) != "run\n" {
		t.Errorf("it ran %q", runs)
	}
}

// A redrive is a new task. Its large body is not sent again to a target that still has it.
func TestRedriveIsANewTask(t *testing.T) {
	a, b := pair(t, nil)
	pinned, flag := filepath.Join(t.TempDir(), "pinned"), filepath.Join(t.TempDir(), "repaired")
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	body := randomBody(400_000) // streamed, and not compressible
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "until test -e " + pinned + "; do sleep 0.01; done; test -e " + flag + " || exit 65; wc -c"}, Body: body})
	tid, err := proto.ParseTaskID(id)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := a.outbox.Get(tid)
	if err != nil {
		t.Fatal(err)
	}
	// The target would remove the body a second after the end of the task: a slow machine may need longer.
	name := rec.GetBodyBlob()
	eventually(t, func() bool { return b.storage.Blobs.Pin(name) }, func() string { return "the body did not arrive" })
	defer b.storage.Blobs.Release(name)
	if err := os.WriteFile(pinned, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, id, "FAILED")
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := a.Redriver.Retry(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	task := a.waitEnd(t, s.ID, "SUCCESS")
	if task.RedriveOf != id || task.ID == id {
		t.Errorf("redrive %+v", task.Marks)
	}
	if old, _ := a.Views.Task(t.Context(), id); old.RedrivenAs != s.ID || old.State != "FAILED" {
		t.Errorf("the first is %s, redriven as %q", old.State, old.RedrivenAs)
	}
	if _, err := a.Redriver.Retry(t.Context(), id); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("a second redrive: %v", err)
	}
	sent, received := metricsOf(t, a.Node)["balefire_body_bytes_total{out}"], metricsOf(t, b.Node)["balefire_body_bytes_total{in}"]
	if want := float64(len(body)); sent != received || sent < want || sent > want+want/100 {
		t.Errorf("%v bytes of bodies were sent and %v received, want little more than %v", sent, received, want)
	}
}

// A redrive of a task for this node itself, or for a peer that was forgotten since,
// keeps its target.
func TestRedriveKnowsItsTarget(t *testing.T) {
	a, b := pair(t, nil)
	s := shell(nil)
	if err := errors.Join(a.Handlers.Add(t.Context(), s), b.Handlers.Add(t.Context(), s)); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"a", "b"} {
		id := a.submit(t, wire.Request{Target: target, Kind: "run", Args: []string{"sh", "-c", "exit 65"}})
		a.waitEnd(t, id, "FAILED")
		if target == "b" {
			b.halt()
			if err := a.Pairing.Forget(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Redriver.Retry(t.Context(), id); !errors.Is(err, wire.ErrNotFound) || !strings.Contains(err.Error(), b.keys.Peer().String()) {
				t.Errorf("redrive for a forgotten peer: %v", err)
			}
			continue
		}
		again, err := a.Redriver.Retry(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		a.waitEnd(t, again.ID, "FAILED")
	}
}

// A task is CANCELLED only after the whole process group is gone.
func TestCancelStopsARun(t *testing.T) {
	t.Parallel()
	for _, hard := range []bool{false, true} {
		a, b := pair(t, nil)
		if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
			t.Fatal(err)
		}
		beat := filepath.Join(t.TempDir(), "beat")
		id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "trap '' TERM; while :; do echo . >> " + beat + "; sleep 0.01; done"}})
		eventually(t, func() bool { fi, err := os.Stat(beat); return err == nil && fi.Size() > 0 }, func() string { return "it did not start" })
		if _, err := a.Cancel(t.Context(), id, hard, "enough"); err != nil {
			t.Fatal(err)
		}
		a.waitEnd(t, id, "CANCELLED")
		before, _ := os.Stat(beat)
		<-time.After(100 * time.Millisecond) // ten iterations of the loop, if it were running
		if after, _ := os.Stat(beat); after.Size() != before.Size() {
			t.Errorf("hard %v: the program still runs after CANCELLED", hard)
		}
		if _, err := a.Cancel(t.Context(), id, hard, "again"); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("cancel of an ended task: %v", err)
		}
	}
}

// A graceful stop uses up no attempt: the task starts again with the node (S32).
func TestGracefulStopSpendsNoAttempt(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) { c.Limits.GracefulTimeout = 50 * time.Millisecond })
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "if test -e " + dir + "/second; then exit 0; fi; touch " + dir + "/second; sleep 60"}})
	eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "second")); return err == nil }, func() string { return "it did not start" })
	b.halt()
	start(t, b.cfg)
	task := a.waitEnd(t, id, "SUCCESS")
	if task.Attempts != 1 {
		t.Errorf("attempts %d, want 1: the stop uses up none", task.Attempts)
	}
}

func TestPurgeRemovesOnlyEndedTasks(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	done := a.submit(t, wire.Request{Target: "b", Kind: "sum"})
	a.waitEnd(t, done, "SUCCESS")
	waits := a.submit(t, wire.Request{Target: "b", Kind: "sum", Delay: wire.Duration(time.Hour)})
	if p, err := a.Purge(t.Context(), wire.Query{}, true); err != nil || p.Tasks != 1 {
		t.Errorf("dry run: %+v, %v", p, err)
	}
	if _, err := a.Views.Task(t.Context(), done); err != nil {
		t.Errorf("a dry run removed it: %v", err)
	}
	if p, err := a.Purge(t.Context(), wire.Query{}, false); err != nil || p.Tasks != 1 {
		t.Errorf("purge: %+v, %v", p, err)
	}
	if _, err := a.Views.Task(t.Context(), done); !errors.Is(err, wire.ErrNotFound) {
		t.Errorf("purged task: %v", err)
	}
	if _, err := a.Views.Task(t.Context(), waits); err != nil {
		t.Errorf("a waiting task was purged: %v", err)
	}
}

// A key is remembered longer than the record of a finished task: the answer states that
// instead of a wrong state.
func TestKnownTaskWithoutARecord(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	r := wire.Request{Target: "b", Kind: "sum", Key: "monday"}
	first := a.submit(t, r)
	a.waitEnd(t, first, "SUCCESS")
	if _, err := a.Purge(t.Context(), wire.Query{}, false); err != nil {
		t.Fatal(err)
	}
	again, err := a.Submit(t.Context(), r)
	if err != nil || again.ID != first || !again.Known || again.State != "" {
		t.Errorf("the same key again: %+v, %v", again, err)
	}
}

// A task with mode at_most_once starts only once, even if its handler fails with a
// retryable error; the home shows the mode.
func TestAtMostOnceIsStartedOnce(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	r := wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "exit 75"}, Mode: proto.AtMostOnce.Name()}
	id := a.submit(t, r)
	a.waitEnd(t, id, "DEAD_LETTER")
	got, err := a.Views.Task(t.Context(), id)
	if err != nil || got.Mode != "at_most_once" || got.Attempts != 1 {
		t.Errorf("%d attempts in mode %q, %v", got.Attempts, got.Mode, err)
	}
	r.Mode = "sometimes"
	if _, err := a.Submit(t.Context(), r); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("mode 7: %v, want %v", err, wire.ErrInvalid)
	}
}

// A handler that accepts a sender's arguments accepts no flags unless configured, and
// never makes more attempts than it allows.
func TestHandlerBoundsItsSenders(t *testing.T) {
	a, b := pair(t, nil)
	dir := t.TempDir()
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "finder", Exec: []string{"find", dir}, Args: true, Allow: []string{"peer:a"}}); err != nil {
		t.Fatal(err)
	}
	task := a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "finder", Args: []string{"-exec", "touch", "{}/stolen", ";"}}), "DEAD_LETTER")
	if task.Code != "DENIED" || task.Cause != "refused" {
		t.Errorf("a flag for a handler that accepts none: code %q, cause %q", task.Code, task.Cause)
	}
	if _, err := os.Stat(filepath.Join(dir, "stolen")); err == nil {
		t.Error("the sender's program ran")
	}
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "strict", Exec: []string{"false"}, Allow: []string{"peer:a"}, MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	if task := a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "strict", Retries: 1 << 31}), "DEAD_LETTER"); task.Attempts != 1 {
		t.Errorf("%d attempts were made, the handler allows one", task.Attempts)
	}
}
