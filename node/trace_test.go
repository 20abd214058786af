package node

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// validTrace reports whether s is a traceparent of version 00.
var validTrace = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`).MatchString

// A task without a trace context from its caller gets its own, its program receives it,
// and a redrive continues it.
func TestEveryTaskHasATrace(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "run", Exec: []string{"sh", "-c", `printf %s "$TRACEPARENT"; test "$BALEFIRE_IDEMPOTENCY_KEY"`}, Allow: []string{"peer:a"}, MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
	given := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	for _, trace := range []string{"", given} {
		id := a.submit(t, wire.Request{Target: "b", Kind: "run", Trace: trace})
		failed := a.waitEnd(t, id, "DEAD_LETTER")
		if !validTrace(failed.Trace) || trace != "" && failed.Trace != trace {
			t.Errorf("given %q, the task has %q", trace, failed.Trace)
		}
		s, err := a.Redriver.Retry(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if again := a.waitEnd(t, s.ID, "DEAD_LETTER"); again.Trace != failed.Trace {
			t.Errorf("the redrive has the trace %q, its first %q", again.Trace, failed.Trace)
		}
		id = a.submit(t, wire.Request{Target: "b", Kind: "run", Trace: trace, Key: "key" + trace})
		done := a.waitEnd(t, id, "SUCCESS")
		r, _, err := a.Views.Result(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err != nil || string(got) != done.Trace {
			t.Errorf("the program was given %q, %v; the task has %q", got, err, done.Trace)
		}
		if s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "run", Key: "key" + trace}); err != nil || !s.Known {
			t.Errorf("the key again: %+v, %v; a new trace must not make it a different request", s, err)
		}
	}
}

// A traceHandler records the trace context of each start of a task.
type traceHandler struct {
	mu   sync.Mutex
	seen map[string][]string // by task
	work time.Duration
}

func (h *traceHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	h.mu.Lock()
	h.seen[r.ID.String()] = append(h.seen[r.ID.String()], r.Content.GetTraceparent())
	h.mu.Unlock()
	select {
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled, Reason: "stopped"}
	case <-time.After(h.work):
		return &handler.Result{Outcome: handler.Success}
	}
}

func (h *traceHandler) starts(id string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[id]
}

// A task of a shared queue has one trace, its own or that of its caller: at its origin,
// at both homes of a handoff, with the owner that died and with the next one, and in the
// log lines about tasks.
func TestOneTraceThroughAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := make([]lockedBuffer, 4)
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		w := newSimMeshWith(t, 4, 1, link, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			cfg.Logger = slog.New(slog.NewJSONHandler(&logs[s.place], &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		c := newClusterOf(t, w, time.Second)
		defer c.close()
		h := &traceHandler{seen: map[string][]string{}, work: 20 * time.Second}
		serve := func(s *simNode) {
			if err := s.node.inbox.Register(inbox.Spec{Kind: "traced", Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: h}); err != nil {
				t.Fatal(err)
			}
			s.node.gossip.Describe()
		}
		origin, home, next, owner := c.nodes[1], c.nodes[0], c.nodes[2], c.nodes[3]
		serve(owner)
		given := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		ids := []string{
			origin.mustSubmit(wire.Request{Target: "queue:build", Kind: "traced"}),
			origin.mustSubmit(wire.Request{Target: "queue:build", Kind: "traced", Trace: given}),
		}
		want := map[string]string{ids[1]: given}
		c.await(time.Minute, "both to run", func() bool { return len(h.starts(ids[0])) == 1 && len(h.starts(ids[1])) == 1 })
		for _, s := range []*simNode{origin, home} {
			for _, id := range ids {
				task, err := s.node.Views.Task(t.Context(), id)
				if want[id] == "" {
					want[id] = task.Trace
				}
				if err != nil || !validTrace(task.Trace) || task.Trace != want[id] {
					t.Errorf("at %s the trace is %q, want %q; %v", s.name, task.Trace, want[id], err)
				}
			}
		}
		c.handOff(0, 2)
		owner.crash() // while the task runs
		serve(origin)
		for _, id := range ids {
			origin.waitState(id, "SUCCESS", 5*time.Minute)
			if task, err := next.node.Views.Task(t.Context(), id); err != nil || task.Trace != want[id] {
				t.Errorf("at the next home the trace is %q, want %q; %v", task.Trace, want[id], err)
			}
			starts := h.starts(id)
			if len(starts) != 2 || starts[0] != want[id] || starts[1] != want[id] {
				t.Errorf("its starts had the traces %q, want %q twice", starts, want[id])
			}
			for _, s := range []*simNode{origin, next} {
				traces := logs[s.place].tracesOf(t, id)
				if trace := strings.Split(want[id], "-")[1]; len(traces) != 1 || traces[trace] == 0 {
					t.Errorf("the log of %s has the traces %v, want only %s", s.name, traces, trace)
				}
			}
		}
		if want[ids[0]] == want[ids[1]] {
			t.Error("two tasks have the same trace")
		}
	})
}

// A lockedBuffer is a log buffer for concurrent reads and writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// tracesOf counts the lines about changes of a task by trace.
func (b *lockedBuffer) tracesOf(t *testing.T, id string) map[string]int {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]int{}
	for line := range bytes.Lines(b.buf.Bytes()) {
		var l struct {
			Text  string `json:"msg"`
			Task  string `json:"task_id"`
			Trace string `json:"trace_id"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		if l.Task == id && l.Text == "task" {
			all[l.Trace]++
		}
	}
	return all
}
