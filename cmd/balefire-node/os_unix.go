//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// reloadSignals ask a running node to read its configuration again.
func reloadSignals() []os.Signal { return []os.Signal{syscall.SIGHUP} }

// hasUnread reports whether something waits in f that nobody has read.
func hasUnread(f *os.File) bool {
	ask := map[string]uint{"linux": 0x541b, "darwin": 0x4004667f}[runtime.GOOS] // FIONREAD
	n, err := unix.IoctlGetInt(int(f.Fd()), ask)
	return err == nil && n > 0
}
