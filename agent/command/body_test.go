package command

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/balefire/balefire/handler"
)

// A quotaOf has a fixed number of bytes, each of which can be reserved once.
type quotaOf struct{ left, taken, written int64 }

func (q *quotaOf) Reserve(n int64) bool {
	if n > q.left {
		return false
	}
	q.left, q.taken = q.left-n, q.taken+n
	return true
}

func (q *quotaOf) Settle(taken, written int64) {
	q.taken, q.written = q.taken-taken, q.written+written
}

// A body becomes a file only if the disk has space for all of it (I13). Otherwise nothing
// is read, written or started, and no attempt is spent.
func TestBodyFileTakesItsQuota(t *testing.T) {
	cfg := Config{Exec: program(t, "catfile"), PassBody: PassFile}
	for _, tt := range []struct {
		name       string
		size, room int64 // size: as stated
		want       handler.Outcome
		written    int64
	}{
		{"it fits", 100, 100, handler.Success, 100},
		{"it does not fit", 100, 99, handler.Unready, 0},
		{"its size is not stated", 0, 100, handler.Success, 100},
		{"its size is not stated, and it does not fit", 0, 99, handler.Unready, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, dir, body := &quotaOf{left: tt.room}, t.TempDir(), strings.NewReader(strings.Repeat("x", 100))
			res := run(t, cfg, &handler.Run{Dir: dir, Body: body, BodySize: tt.size, BodyQuota: q})
			if res.Outcome != tt.want || q.written != tt.written || q.taken != 0 {
				t.Errorf("%v %q, %d bytes written, %d reserved; want %v, %d, none", res.Outcome, res.Reason, q.written, q.taken, tt.want, tt.written)
			}
			if tt.want == handler.Success {
				return
			}
			left, err := os.ReadDir(dir)
			if !strings.Contains(res.Reason, "NO_ROOM") || len(left) > 0 || err != nil || tt.size > 0 && body.Len() != 100 {
				t.Errorf("%q, %d bytes not read, files %v, %v", res.Reason, body.Len(), left, err)
			}
		})
	}
}

// An endlessBody calls stop soon, and has an end only for a test that fails.
type endlessBody struct {
	stop  func()
	reads int
}

func (b *endlessBody) Read(p []byte) (int, error) {
	switch b.reads++; b.reads {
	case 3:
		b.stop()
	case 100:
		return 0, errors.New("it was read on")
	}
	return len(p), nil
}

// A run that is stopped while its body is written ends at once, as stopped.
func TestStopWhileTheBodyIsWritten(t *testing.T) {
	for cause, want := range map[error]handler.Outcome{handler.ErrCancelled: handler.Cancelled, handler.ErrTimeout: handler.Timeout} {
		ctx, cancel := context.WithCancelCause(t.Context())
		body, q, dir := &endlessBody{stop: func() { cancel(cause) }}, &quotaOf{left: 1 << 30}, t.TempDir()
		r := &handler.Run{Dir: dir, Body: body, BodySize: 1 << 29, BodyQuota: q}
		res := handler.Call(ctx, newHandler(t, Config{Exec: program(t, "catfile"), PassBody: PassFile}), r)
		if res.Outcome != want || body.reads > 3 || q.taken != 0 {
			t.Errorf("%v: %v %q after %d reads, %d bytes reserved", cause, res.Outcome, res.Reason, body.reads, q.taken)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%v: %v is left, %v", cause, left, err)
		}
	}
}
