//go:build !failpoint

package main

import "github.com/balefire/balefire/clock"

// failpoint is for builds with the tag failpoint alone: a node that people run
// cannot be told to stop in the middle.
func failpoint(*app) func(string) error { return nil }

// timeOf returns the machine's own clock: only a build for tests has wrong ones.
func timeOf(w *app) clock.Clock { return w.clock }
