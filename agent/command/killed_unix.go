//go:build unix

package command

import (
	"os"
	"syscall"
)

// killed names the signal that killed a program, if any.
func killed(s *os.ProcessState) string {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal().String()
	}
	return ""
}
