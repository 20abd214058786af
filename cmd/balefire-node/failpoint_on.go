//go:build failpoint

package main

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/clock"
)

// failpoint kills the process at the n-th visit of the point that BALEFIRE_FAILPOINT names
// (POINT or POINT:N), like a power cut: nothing is closed, nothing is flushed. With
// POINT:N:error the visit fails instead.
func failpoint(w *app) func(string) error {
	name, rest, _ := strings.Cut(w.env("BALEFIRE_FAILPOINT"), ":")
	if name == "" {
		return nil
	}
	count, how, _ := strings.Cut(rest, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 {
		n = 1
	}
	var visits atomic.Int64
	return func(point string) error {
		if point != name || visits.Add(1) != n {
			return nil
		}
		if how == "error" {
			return errFailpoint
		}
		return die()
	}
}

// timeOf returns a clock that is wrong by the duration in the file that BALEFIRE_CLOCK_FILE
// names. A change of the file takes effect within pollInterval.
func timeOf(w *app) clock.Clock {
	path := w.env("BALEFIRE_CLOCK_FILE")
	if path == "" {
		return w.clock
	}
	var looked, by atomic.Int64
	looked.Store(-int64(pollInterval))
	return clock.WithOffset(w.clock, func() time.Duration {
		now, last := int64(w.clock.Mono()), looked.Load()
		if now-last >= int64(pollInterval) && looked.CompareAndSwap(last, now) {
			if b, err := os.ReadFile(path); err == nil {
				if d, err := time.ParseDuration(strings.TrimSpace(string(b))); err == nil {
					by.Store(int64(d))
				}
			}
		}
		return time.Duration(by.Load())
	})
}

const pollInterval = 50 * time.Millisecond

var errFailpoint = errors.New("failpoint: injected failure")

// die sends the process a signal that it cannot catch, and never returns.
func die() error {
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		return err
	}
	select {}
}
