//go:build !failpoint

package main

import "github.com/balefire/balefire/clock"

// failpoint is set only in builds with the tag failpoint: a production node cannot be told
// to crash.
func failpoint(*app) func(string) error { return nil }

// timeOf returns the machine's own clock: only test builds can have a wrong one.
func timeOf(w *app) clock.Clock { return w.clock }
