//go:build unix && !linux

package command

import "syscall"

func running(pid int) bool { return syscall.Kill(pid, 0) == nil }
