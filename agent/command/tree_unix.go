//go:build unix && !linux

package command

import (
	"os"
	"os/exec"
	"syscall"
)

// A tree is a program and its process group.
type tree struct {
	cmd *exec.Cmd
}

// newTree prepares cmd: a session of its own.
func newTree(cmd *exec.Cmd, _ string, _ *account) *tree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &tree{cmd: cmd}
}

func (t *tree) start() error { return t.cmd.Start() }

// await returns when the program has ended.
func (t *tree) await() { _ = t.cmd.Wait() } // an exit code is no error here

func (t *tree) reap() {}

func (t *tree) close() {}

// others counts the group as one process.
func (t *tree) others() int {
	if syscall.Kill(-t.cmd.Process.Pid, 0) == nil {
		return 1
	}
	return 0
}

// signal asks all processes of t to end, or ends them.
func (t *tree) signal(hard bool) {
	sig := syscall.SIGTERM
	if hard {
		sig = syscall.SIGKILL
	}
	_ = syscall.Kill(-t.cmd.Process.Pid, sig) // it may have ended
}

// killed names the signal that ended a program, if one did.
func killed(s *os.ProcessState) string {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal().String()
	}
	return ""
}
