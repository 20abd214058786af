package command

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/balefire/balefire/handler"
)

const (
	// ProbeFlag asks a program whether the work behind a key was done.
	ProbeFlag = "--check"
	// ExitNotDone is its answer no; 0 is yes and everything else "unknown". It
	// is none of the codes that a program which knows nothing of probes ends with.
	ExitNotDone = 10

	probeTimeout = time.Minute
)

// Probe implements [handler.Prober]: it runs Exec… --check KEY. Whatever keeps
// the program from answering is [handler.Unknown].
func (h *Handler) Probe(ctx context.Context, r *handler.Run) handler.ProbeResult {
	key := r.Key()
	if key == "" || checkText(key) != nil || isFlag(key, "windows") {
		return handler.Unknown
	}
	program, err := find(h.cfg.Exec[0])
	if err != nil {
		return handler.Unknown
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	mark := newMarker()
	j := &job{
		argv: slices.Concat([]string{program}, h.cfg.Exec[1:], []string{ProbeFlag, key}),
		dir:  h.cfg.Dir, marker: mark, grace: h.cfg.Grace, stdout: io.Discard, stderr: io.Discard,
	}
	if _, err := h.runAsUser(j, ""); err != nil {
		return handler.Unknown
	}
	j.env = h.environ(r, map[string]string{"BALEFIRE_RUN": mark, "BALEFIRE_IDEMPOTENCY_KEY": key}, j.account)
	end, err := j.run(ctx)
	if err != nil || end.cause != nil || end.remaining > 0 || killed(end.state) != "" {
		return handler.Unknown
	}
	switch end.state.ExitCode() {
	case 0:
		return handler.Done
	case ExitNotDone:
		return handler.NotDone
	}
	return handler.Unknown
}
