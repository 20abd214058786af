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
	// ExitNotDone is the answer no; 0 is yes and everything else "unknown". A
	// program that does not know about probes does not exit with this code.
	ExitNotDone = 10

	probeTimeout = time.Minute
)

// Probe implements [handler.Prober]: it runs Exec… --check KEY. If the program
// cannot answer the result is handler.Unknown, and handler.NotAsked if this machine
// cannot start it now.
func (h *Handler) Probe(ctx context.Context, r *handler.Run) handler.ProbeResult {
	key := r.Key()
	if key == "" || checkText(key) != nil || isFlag(key, "windows") {
		return handler.Unknown
	}
	program, err := find(h.cfg.Exec[0])
	if err != nil {
		return handler.NotAsked
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	mark := newMarker()
	j := &job{
		argv: slices.Concat([]string{program}, h.cfg.Exec[1:], []string{ProbeFlag, key}),
		dir:  h.cfg.Dir, marker: mark, grace: h.cfg.Grace, stdout: io.Discard, stderr: io.Discard,
	}
	if _, err := h.runAsUser(j, ""); err != nil {
		return handler.NotAsked
	}
	j.env = h.environ(r, map[string]string{"BALEFIRE_RUN": mark, "BALEFIRE_IDEMPOTENCY_KEY": key}, j.account)
	end, err := j.run(ctx)
	if err != nil && notStarted(err).Outcome == handler.Unready {
		return handler.NotAsked
	}
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
