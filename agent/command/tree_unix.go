//go:build unix && !linux

package command

import (
	"os/exec"
	"syscall"
)

// A processTree is a program and its process group.
type processTree struct {
	cmd *exec.Cmd
}

// newProcessTree prepares cmd: with a session of its own.
func newProcessTree(cmd *exec.Cmd, _ string, _ *account) *processTree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &processTree{cmd: cmd}
}

func (t *processTree) start() error { return t.cmd.Start() }

// await returns when the program has ended.
func (t *processTree) await() { _ = t.cmd.Wait() } // an exit code is not an error here

func (t *processTree) reap() {}

func (t *processTree) close() {}

// countOthers counts the group as one process.
func (t *processTree) countOthers() int {
	if syscall.Kill(-t.cmd.Process.Pid, 0) == nil {
		return 1
	}
	return 0
}

// signal asks all processes of t to exit, or kills them.
func (t *processTree) signal(hard bool) {
	sig := syscall.SIGTERM
	if hard {
		sig = syscall.SIGKILL
	}
	_ = syscall.Kill(-t.cmd.Process.Pid, sig) // it may have ended
}
