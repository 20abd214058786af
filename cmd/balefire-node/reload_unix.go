//go:build unix

package main

import (
	"os"
	"syscall"
)

// reloadSignals ask a running node to read its configuration again.
func reloadSignals() []os.Signal { return []os.Signal{syscall.SIGHUP} }
