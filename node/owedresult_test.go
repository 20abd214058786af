package node

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/receive"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/wire"
)

// A task that is sent again after its expiry, because the first answer was lost, is not
// answered with EXPIRED while its result is still being delivered, even if the inbox has
// forgotten it: the home would end the task and refuse the result (I3).
func TestOwedResultPreventsExpiry(t *testing.T) {
	t.Parallel()
	var slept atomic.Int64
	log := new(logBuffer)
	a, b := pair(t, func(name string, c *Config) {
		if name == "b" {
			c.Clock = clock.WithSuspend(clock.System(), func() time.Duration { return time.Duration(slept.Load()) })
			c.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
	})
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(t.TempDir(), "gate")
	ref := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "until test -e " + gate + "; do sleep 0.05; done"}, TTL: wire.Duration(time.Hour)})
	id, err := proto.ParseTaskID(ref)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return inCustody(b) == 1 }, func() string { return "it was not accepted" })
	st, err := a.outbox.Stored(id)
	if err != nil {
		t.Fatal(err)
	}
	a.halt()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := func() bool { return b.outbox.HasPendingResult(id) && log.count("task.ended", ref) == 1 } // also in the inbox
	eventually(t, ended, func() string { return "it has not ended" })
	env := st.GetEnvelope()
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		t.Fatal(err)
	}
	b.inbox.Settle(h.Origin, h.Seq)
	eventually(t, func() bool { _, err := b.inbox.Get(id); return err != nil }, func() string { return "it is still in the inbox" })
	slept.Store(int64(2 * time.Hour))
	payload, err := proto.Encode(nil, &proto.Envelope{Header: env.Header, Body: env.Body, Slot: env.Slot, Path: env.Path, Index: env.Index})
	if err != nil {
		t.Fatal(err)
	}
	parts := b.frames.Parts
	parts.Ahead = func(proto.PeerID) time.Duration { return 0 } // only this node slept
	frames := receive.New(parts)
	again := func() proto.Code {
		_, err := frames.Task(h.Origin, &proto.Message{Type: proto.TypeData, Payload: payload, Signature: env.Signature})
		ce, ok := errors.AsType[*identity.CheckError](err)
		if !ok {
			t.Fatalf("the result is not refused: %v", err)
		}
		return ce.Code
	}
	if got := again(); got != proto.CodeDuplicate {
		t.Errorf("while its result is pending the answer is %v", got)
	}
	a = start(t, a.cfg)
	eventually(t, func() bool { return !b.outbox.HasPendingResult(id) }, func() string { return "the result is still pending" })
	if got := again(); got != proto.CodeExpired {
		t.Errorf("afterwards the answer is %v", got)
	}
	a.waitEnd(t, ref, "SUCCESS")
}

// An unsureEngine reports a commit of a task as failed. It is on disk, but only the next start
// sees it.
type unsureEngine struct {
	*mem.Engine
	on   atomic.Bool
	late []store.Op
}

func (e *unsureEngine) Commit(ops []store.Op) error {
	task := func(op store.Op) bool { return op.Bucket == store.PendingTasks || op.Bucket == store.Inbox }
	if !e.on.Load() || !slices.ContainsFunc(ops, task) {
		return e.Engine.Commit(ops)
	}
	for _, op := range ops {
		op.Key, op.Val = slices.Clone(op.Key), slices.Clone(op.Val)
		e.late = append(e.late, op)
	}
	return errors.New("the disk did not answer")
}

// nextStart returns the engine that the next start finds.
func (e *unsureEngine) nextStart(t *testing.T) *mem.Engine {
	t.Helper()
	next := e.Engine.Reopen()
	if err := next.Commit(e.late); err != nil {
		t.Fatal(err)
	}
	return next
}

// The body of a task whose commit failed is kept, also by a sweep before the node is closed:
// the commit may be on disk after all, and then the task is sent after the next start (I1).
func TestBodySurvivesFailedCommit(t *testing.T) {
	engine := mem.New()
	a, b := pair(t, nil)
	cfg := testConfig(t, filepath.Join(t.TempDir(), "c"))
	cfg.Simulated.Engine = engine
	join(t, a, cfg, "c")
	unsure := &unsureEngine{Engine: engine.Reopen()}
	cfg.Simulated.Engine = unsure
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- n.outbox.Run(context.Background()) }()
	spec := allow("sum", wire.TypeSHA256)
	spec.Allow = []string{"role:send"}
	if err := b.Handlers.Add(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 100_000)
	rand.Read(body) // incompressible, so that it does not fit in the record
	unsure.on.Store(true)
	s, err := n.Submit(t.Context(), wire.Request{Target: "b", Kind: "sum", Body: body})
	if !errors.Is(err, store.ErrFailed) {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := <-done; !errors.Is(err, store.ErrFailed) {
		t.Fatalf("the outbox ended with %v", err)
	}
	if err := n.transfers.Sweep(t.Context()); !errors.Is(err, store.ErrFailed) {
		t.Errorf("a sweep after it: %v", err)
	}
	n.Close()
	cfg.Simulated.Engine = unsure.nextStart(t)
	c := start(t, cfg)
	page, err := c.Views.Tasks(wire.Query{})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("%d tasks, %v", len(page.Items), err)
	}
	c.waitEnd(t, page.Items[0].ID, "SUCCESS")
}

// A task whose commit failed is not answered: it may be here after the next start, and its
// home would take a refusal as proof that it is not (I3).
func TestTaskOfAFailedCommitIsNotAnswered(t *testing.T) {
	engine := mem.New()
	a, _ := pair(t, nil)
	cfg := testConfig(t, filepath.Join(t.TempDir(), "c"))
	cfg.Simulated.Engine = engine
	join(t, a, cfg, "c")
	open := func(e store.Engine) *Node {
		t.Helper()
		cfg.Simulated.Engine = e
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	unsure := &unsureEngine{Engine: engine.Reopen()}
	c := open(unsure)
	defer c.Close()
	if err := c.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	task := a.task(t, c, time.Hour)
	unsure.on.Store(true)
	if ans, err := (receiver{c}).Receive(t.Context(), a.keys.Peer(), []*proto.Message{task}); !errors.Is(err, store.ErrFailed) {
		t.Errorf("answered with %v, %v", ans.Refusals, err)
	}
	if err := c.Handlers.Remove(t.Context(), "sum"); err != nil {
		t.Fatal(err)
	}
	if ans, err := (receiver{c}).Receive(t.Context(), a.keys.Peer(), []*proto.Message{task}); !errors.Is(err, store.ErrFailed) {
		t.Errorf("sent again, answered with %v, %v", ans.Refusals, err)
	}
	c.Close()
	again := open(unsure.nextStart(t))
	defer again.Close()
	if tasks, _, err := again.inbox.List(backlog.Span{}, 10, nil); err != nil || len(tasks) != 1 {
		t.Errorf("after the next start %d tasks are here: %v", len(tasks), err)
	}
}
