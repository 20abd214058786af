//go:build !unix

package main

import "os"

// reloadSignals is a signal that is never sent: Notify without arguments would relay every signal.
func reloadSignals() []os.Signal { return []os.Signal{neverSignal{}} }

type neverSignal struct{}

func (neverSignal) Signal()        {}
func (neverSignal) String() string { return "never" }

// hasUnread always reports false on these systems.
func hasUnread(*os.File) bool { return false }
