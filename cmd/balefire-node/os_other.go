//go:build !unix

package main

import "os"

// reloadSignals is a signal that never comes: Notify without one would take all.
func reloadSignals() []os.Signal { return []os.Signal{never{}} }

type never struct{}

func (never) Signal()        {}
func (never) String() string { return "never" }

// unread is not known here.
func unread(*os.File) bool { return false }
