package executor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// A fullAudit writes nothing while it has an error.
type fullAudit struct {
	Audit
	err error
}

func (a *fullAudit) Append(ctx context.Context, e audit.Entry) (uint64, error) {
	if a.err != nil {
		return 0, a.err
	}
	return a.Audit.Append(ctx, e)
}

// TestEndIsWrittenLater checks that the end of a run that the audit did not take is written with
// the next one (I19), and that no start that failed counts as a run without an end: either would
// make each next start of the node read the audit from there on.
func TestEndIsWrittenLater(t *testing.T) {
	dir := t.TempDir()
	j, err := audit.Open(filepath.Join(dir, audit.DirName), audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	a := &fullAudit{Audit: j}
	x := &Executor{cfg: Config{Dir: dir, Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)}, runs: newRunLog(a, dir)}
	x.runs.every = 10
	start := func(attempt int) (uint64, error) {
		return x.runs.start(t.Context(), audit.Entry{Boot: 1, Action: "command.start", Attempt: attempt})
	}
	end := func(run uint64, attempt int) error {
		return x.runs.end(t.Context(), run, audit.Entry{Boot: 1, Action: "command.end", Attempt: attempt})
	}
	first, err := start(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, a.err = range []error{errors.New("no space left on device"), audit.ErrFailed} {
		if _, err := start(2); !errors.Is(err, a.err) {
			t.Errorf("a start: %v", err)
		}
	}
	if err := end(first, 1); !errors.Is(err, a.err) {
		t.Errorf("the end: %v", err)
	}
	if len(x.runs.open) != 1 {
		t.Errorf("%d runs have no end, want 1", len(x.runs.open))
	}
	a.err = nil
	for i := range 40 {
		run, err := start(10 + i)
		if err := errors.Join(err, end(run, 10+i)); err != nil {
			t.Fatal(err)
		}
	}
	open, last, err := x.openRuns(0)
	if err != nil || len(open) != 0 || len(x.runs.open) != 0 || last != 2+2*40 {
		t.Errorf("%d and %d runs have no end in %d lines: %v", len(open), len(x.runs.open), last, err)
	}
	if x.runs.load() < 60 {
		t.Errorf("the next start reads the audit from line %d of %d", x.runs.load(), last)
	}
}

// A filler is a handler whose run and probe leave no space for the audit.
type filler struct{ audit *fullAudit }

func (f filler) Run(context.Context, *handler.Run) *handler.Result {
	f.audit.err = errors.New("no space left on device")
	return &handler.Result{Outcome: handler.Success}
}

func (f filler) Probe(ctx context.Context, r *handler.Run) handler.ProbeResult {
	f.Run(ctx, r)
	return handler.Done
}

// TestEndIsNeverWritten checks that the end of a run, and of a probe, that cannot be written
// until the node stops is logged, and that the next start writes a crash in its place, once (I19).
func TestEndIsNeverWritten(t *testing.T) {
	for name, run := range map[string]func(context.Context, worker, *handler.Run){
		"a run":   func(ctx context.Context, w worker, r *handler.Run) { w.Run(ctx, r) },
		"a probe": func(ctx context.Context, w worker, r *handler.Run) { prober{w, w.handler.(filler)}.Probe(ctx, r) },
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			dir := t.TempDir()
			folder := filepath.Join(dir, audit.DirName)
			for boot := range uint64(3) {
				j, err := audit.Open(folder, audit.Config{})
				if err != nil {
					t.Fatal(err)
				}
				a := &fullAudit{Audit: j}
				cfg := Config{Dir: dir, Boot: boot + 1, Clock: clock.System(), Logger: slog.New(slog.NewTextHandler(&log, nil))}
				x := &Executor{parts: Parts{Audit: a}, cfg: cfg, interrupted: map[cutRun]int{}, runs: newRunLog(a, dir), quotas: newQuotas(func() (free, reserve int64, ok bool) { return 0, 0, false })}
				if err := x.closeRuns(t.Context()); err != nil {
					t.Fatal(err)
				}
				if boot == 0 {
					run(t.Context(), worker{exec: x, typ: handlerType{audited: true}, handler: filler{a}}, &handler.Run{ID: proto.TaskID{1}, Content: &proto.Content{Kind: "fill"}, Attempt: 1})
				}
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if n := strings.Count(log.String(), "the end of a command could not be written"); n != 1 {
				t.Errorf("it was logged %d times:\n%s", n, &log)
			}
			var lines []string
			if err := audit.Scan(folder, func(r audit.Record) error {
				lines = append(lines, r.Action+" "+r.Detail["kind"]+" "+r.Detail["boot"])
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if want := []string{"command.start fill ", "command.crash fill 1"}; !slices.Equal(lines, want) {
				t.Errorf("the audit has %q, want %q", lines, want)
			}
		})
	}
}
