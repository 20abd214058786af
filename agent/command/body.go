package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/agent"
	"github.com/balefire/balefire/handler"
)

// saveBody writes the body into a folder of the run, for the account alone, and returns
// its path. Without disk space for all of it nothing is written.
func saveBody(ctx context.Context, r *handler.Run, dir string, a *account) (path string, err error) {
	if dir == "" {
		return "", errors.New("save body: the run has no folder")
	}
	w := &bodyWriter{quota: r.BodyQuota}
	defer w.release()
	if err := w.reserve(r.BodySize); err != nil {
		return "", err
	}
	err = a.runAs(func() error {
		w.file, err = os.CreateTemp(dir, "body-*")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("save body: %w", err)
	}
	if r.Body != nil {
		src := &sourceReader{r: handler.ContextReader(ctx, r.Body)}
		if _, err = io.Copy(w, src); src.err != nil {
			err = fmt.Errorf("%w: %w", errBody, src.err)
		}
	}
	if err := errors.Join(err, w.file.Close()); err != nil {
		return "", fmt.Errorf("save body: %w", errors.Join(err, a.runAs(func() error { return os.Remove(w.file.Name()) })))
	}
	return filepath.Abs(w.file.Name())
}

// A bodyWriter writes a body to a file within its quota.
type bodyWriter struct {
	file  *os.File
	quota handler.Quota // nil: no limit
	left  int64         // reserved, not written yet
}

// reserve makes sure that n bytes are reserved.
func (w *bodyWriter) reserve(n int64) error {
	if w.quota == nil || n <= w.left {
		return nil
	}
	if !w.quota.Reserve(n - w.left) {
		return fmt.Errorf("%w: the disk has no space above its reserve for a file with the body, %d bytes", agent.ErrNoSpace, n)
	}
	w.left = n
	return nil
}

// Write implements [io.Writer].
func (w *bodyWriter) Write(p []byte) (int, error) {
	if err := w.reserve(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := w.file.Write(p)
	w.settle(int64(n), int64(n))
	return n, err
}

// release returns what was reserved and not written.
func (w *bodyWriter) release() { w.settle(w.left, 0) }

func (w *bodyWriter) settle(taken, written int64) {
	if w.quota != nil {
		w.quota.Settle(taken, written)
		w.left -= taken
	}
}
