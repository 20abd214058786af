package pebble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// recentFor is how long a background error explains a wait.
const recentFor = 10 * time.Second

// A monitor receives Pebble's log and events. It remembers what went wrong.
type monitor struct {
	log   *slog.Logger
	fatal chan struct{} // closed when Pebble would have terminated the process

	mu           sync.Mutex
	failure      error
	background   error     // the last background error
	backgroundAt time.Time // of behind
	loggedAt     time.Time // when behind was last logged
}

var errNoReason = errors.New("the disk is slow, full or gone")

func newMonitor(log *slog.Logger) *monitor {
	return &monitor{log: log.With("engine", "pebble"), fatal: make(chan struct{})}
}

// Infof implements [pebble.Logger].
func (w *monitor) Infof(format string, args ...any) { w.log.Debug(fmt.Sprintf(format, args...)) }

// Errorf implements [pebble.Logger].
func (w *monitor) Errorf(format string, args ...any) { w.log.Error(fmt.Sprintf(format, args...)) }

// Fatalf implements [pebble.Logger]: the store cannot continue. Pebble relies on
// it not to return, but the process does more than run this store: Fatalf ends
// only the goroutine and makes every later commit fail. The rest is up to the
// callers.
func (w *monitor) Fatalf(format string, args ...any) {
	err := fmt.Errorf("pebble gave up: %s", fmt.Sprintf(format, args...))
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = fmt.Errorf("pebble gave up: %w", cause)
		}
	}
	w.fail(err)
	runtime.Goexit()
}

// fail stops the engine: no commit returns nil from now on.
func (w *monitor) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log.Error(err.Error())
	if w.failure == nil {
		w.failure = err
		close(w.fatal)
	}
}

// failed returns why Pebble gave up, nil if it did not.
func (w *monitor) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

// trouble returns a recent error, if any.
func (w *monitor) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure != nil {
		return w.failure
	}
	if w.background != nil && time.Since(w.backgroundAt) < recentFor {
		return w.background
	}
	return nil
}

// why returns the reason for a wait.
func (w *monitor) why() error { return cmp.Or(w.trouble(), errNoReason) }

// noteBackground records a background error. On a full disk there are thousands
// per second: one in ten seconds is logged.
func (w *monitor) noteBackground(err error) {
	now := time.Now()
	w.mu.Lock()
	w.background, w.backgroundAt = err, now
	tell := now.Sub(w.loggedAt) >= recentFor
	if tell {
		w.loggedAt = now
	}
	w.mu.Unlock()
	if tell {
		w.log.Error("background work failed; will retry", "err", err)
	}
}

// context returns a context that is canceled when Pebble has given up.
func (w *monitor) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-w.fatal:
			cancel(w.failed())
		case <-stop:
		}
	})
	return ctx, func() { close(stop); wg.Wait(); cancel(nil) }
}

func (w *monitor) listener() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: w.noteBackground,
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			w.log.Error("damaged data", "path", i.Path, "details", i.Details)
		},
		DiskSlow:        func(i pebble.DiskSlowInfo) { w.log.Warn("the disk is slow", "info", i.String()) },
		WriteStallBegin: func(i pebble.WriteStallBeginInfo) { w.log.Warn("writers wait for the disk", "reason", i.Reason) },
	}
}
