package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/balefire/balefire/handler"
)

// Discard reads the body to its end and succeeds without output. The
// benchmarks use it.
type Discard struct{}

// Run implements [handler.Handler].
func (Discard) Run(ctx context.Context, r *handler.Run) *handler.Result {
	return copyBody(ctx, io.Discard, r)
}

// Echo returns the body as its output.
type Echo struct {
	MaxOutput int64 // bytes; default 10 MiB
	CutOutput bool  // output beyond it is dropped; default: the run fails permanently
}

// Run implements [handler.Handler].
func (e Echo) Run(ctx context.Context, r *handler.Run) *handler.Result {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out := NewOutput(r, OutputConfig{Max: e.MaxOutput, Cut: e.CutOutput, Stop: stop})
	res := copyBody(ctx, out, r)
	out.Into(res)
	return res
}

// Hash returns the SHA-256 of the body in hex, as sha256sum prints it.
type Hash struct{}

// Run implements [handler.Handler].
func (Hash) Run(ctx context.Context, r *handler.Run) *handler.Result {
	d := sha256.New()
	res := copyBody(ctx, d, r)
	if res.Outcome == handler.Success {
		out := NewOutput(r, OutputConfig{})
		out.Write(hex.AppendEncode(nil, d.Sum(nil)))
		out.Into(res)
	}
	return res
}

// copyBody copies the body to w until its end or the context's.
func copyBody(ctx context.Context, w io.Writer, r *handler.Run) *handler.Result {
	n, err := io.Copy(w, handler.ContextReader(ctx, r.Body))
	switch {
	case err == nil:
		return &handler.Result{Outcome: handler.Success}
	case ctx.Err() != nil:
		return &handler.Result{Outcome: handler.Stopped(context.Cause(ctx)), Code: -1, Reason: context.Cause(ctx).Error()}
	}
	return &handler.Result{Outcome: handler.Retry, Code: -1, Reason: fmt.Sprintf("read body at byte %d: %v", n, err)}
}
