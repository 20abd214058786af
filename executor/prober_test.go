package executor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// A failingAudit refuses its first entries.
type failingAudit struct {
	failures int
	written  []string
}

func (a *failingAudit) Append(_ context.Context, e audit.Entry) (uint64, error) {
	if a.failures--; a.failures >= 0 {
		return 0, errors.New("no space left on device")
	}
	a.written = append(a.written, e.Action+" "+e.Detail["outcome"])
	return 0, nil
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
				x := &Executor{parts: Parts{Audit: a}, cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
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
