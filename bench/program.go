package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// linkFlags are those of the Makefile, but for the version.
const linkFlags = "-funcalign 16 -s -w"

// program builds the program as `make build` does, once in a run, and returns its path.
func (p *plan) program() (string, error) {
	out := filepath.Join(p.dir, "balefire-node")
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", linkFlags, "-o", out, "./cmd/balefire-node")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %.500s", err, msg)
	}
	return out, nil
}

// idleProgram returns the resident memory of the program in a new mesh of its own, some time
// after a command of its own, or after its start. A child of the benchmarks is no measure of
// that: NATS and the rest of this program are in its memory.
func (p *plan) idleProgram(engine string, command ...string) (resident int64, err error) {
	program, err := p.program()
	if err != nil {
		return 0, err
	}
	dir, err := p.folder()
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	do := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{"--dir", filepath.Join(dir, "n")}, args...)...)
		cmd.Env = append(os.Environ(), "BALEFIRE_STORE_ENGINE="+engine)
		return cmd
	}
	ask := func(args ...string) error {
		if msg, err := do(args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %.500s", args, err, msg)
		}
		return nil
	}
	if err := ask("init", "--name", "idle", "--new-mesh", "--listen", "127.0.0.1:0"); err != nil {
		return 0, err
	}
	node := do("run", "--log-level", "error")
	node.Stderr = os.Stderr
	if err := node.Start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, node.Process.Signal(syscall.SIGTERM), node.Wait()) }()
	time.Sleep(idleFor)
	if len(command) > 0 {
		if err := ask(command...); err != nil {
			return 0, err
		}
		time.Sleep(idleFor)
	}
	return rss("/proc/" + strconv.Itoa(node.Process.Pid) + "/status"), nil
}
