package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// A failingAudit refuses its first entries.
type failingAudit struct {
	failures int
	written  []string
	writing  func() // called while an entry is written; may be nil
}

func (a *failingAudit) Append(ctx context.Context, e audit.Entry) (uint64, error) {
	if a.failures--; a.failures >= 0 {
		return 0, errors.New("no space left on device")
	}
	a.written = append(a.written, e.Action+" "+e.Detail["outcome"])
	if a.writing != nil {
		a.writing()
	}
	if ctx.Err() != nil {
		return 0, fmt.Errorf("%w: %w", audit.ErrUnknown, ctx.Err())
	}
	return 0, nil
}

// cancelled answers that the run ended before it began.
type cancelled struct{}

func (cancelled) Run(ctx context.Context, _ *handler.Run) *handler.Result {
	return &handler.Result{Outcome: handler.Unready, Reason: ctx.Err().Error()}
}

func (cancelled) Probe(context.Context, *handler.Run) handler.ProbeResult { return handler.Unknown }

// TestCancelledStartHasAnEnd checks that a run and a probe that are cancelled while their
// start is written have an end in the audit (I19).
func TestCancelledStartHasAnEnd(t *testing.T) {
	for name, do := range map[string]func(context.Context, worker){
		"a run": func(ctx context.Context, w worker) { w.Run(ctx, &handler.Run{Content: &proto.Content{}}) },
		"a probe": func(ctx context.Context, w worker) {
			prober{w, cancelled{}}.Probe(ctx, &handler.Run{Content: &proto.Content{}})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		a := &failingAudit{writing: cancel}
		x := &Executor{parts: Parts{Audit: a}, runs: newRunLog(a, t.TempDir()), cfg: Config{Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)}, quotas: newQuotas(func() (free, reserve int64, ok bool) { return 0, 0, false })}
		do(ctx, worker{exec: x, typ: handlerType{audited: true}, handler: cancelled{}})
		if len(a.written) != 2 || !strings.HasPrefix(a.written[1], "command.end") {
			t.Errorf("%s: %q in the audit", name, a.written)
		}
	}
}

type answer func() handler.ProbeResult

func (a answer) Probe(context.Context, *handler.Run) handler.ProbeResult { return a() }

// A probe is asked once its start is in the audit, and has one end there, also if it panics
// (I7, I19): an audit that cannot be written for a moment ends no task.
func TestProbeIsInTheAudit(t *testing.T) {
	for _, tt := range []struct {
		name     string
		failures int
		stop     time.Duration // 0: never
		answer   answer
		want     handler.ProbeResult
		written  []string
	}{
		{"done", 0, 0, func() handler.ProbeResult { return handler.Done }, handler.Done, []string{"command.start ", "command.end done"}},
		{"the audit fails for some seconds", 5, 0, func() handler.ProbeResult { return handler.Done }, handler.Done, []string{"command.start ", "command.end done"}},
		{"the node stops meanwhile", 1000, time.Minute, func() handler.ProbeResult { return handler.Done }, handler.Unknown, nil},
		{"it panics", 0, 0, func() handler.ProbeResult { panic("a fault") }, handler.Unknown, []string{"command.start ", "command.end unknown"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &failingAudit{failures: tt.failures}
				x := &Executor{parts: Parts{Audit: a}, runs: newRunLog(a, t.TempDir()), cfg: Config{Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.stop > 0 {
					time.AfterFunc(tt.stop, cancel)
				}
				found := handler.Unknown
				func() {
					defer func() { _ = recover() }() // as the inbox does
					found = prober{worker{exec: x}, tt.answer}.Probe(ctx, &handler.Run{Content: &proto.Content{}})
				}()
				if found != tt.want || !slices.Equal(a.written, tt.written) {
					t.Errorf("found %v with %q in the audit, want %v with %q", found, a.written, tt.want, tt.written)
				}
			})
		})
	}
}
