package executor

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
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
