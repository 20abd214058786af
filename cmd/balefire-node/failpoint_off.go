//go:build !failpoint

package main

// failpoint is for builds with the tag failpoint alone: a node that people run
// cannot be told to stop in the middle.
func failpoint(*world) func(string) error { return nil }
