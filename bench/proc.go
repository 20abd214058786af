package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A proc is a child process, seen from the parent.
type proc struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// spawn starts this program again as a child. slow is added to each of its fsyncs.
func spawn(name string, slow time.Duration) (*proc, error) { return spawnBy(name, slowed(slow)) }

// spawnBy starts this program as a child of a command that runs another one.
func spawnBy(name string, prefix []string) (*proc, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := append(prefix, self, "-child")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &proc{name: name, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	p.out.Buffer(nil, 1<<20)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// slowed returns the command prefix that adds d to every fsync. It intercepts only those
// system calls.
func slowed(d time.Duration) []string {
	if d == 0 {
		return nil
	}
	return []string{
		"strace", "-f", "--seccomp-bpf", "-qq", "-o", os.DevNull, "-e", "signal=none", "-e", "trace=fsync,fdatasync",
		"-e", fmt.Sprintf("inject=fsync,fdatasync:delay_exit=%d", d.Microseconds()),
	}
}

// ask sends a request and returns the response. Events before the response go to event.
func (p *proc) ask(o request, event func() error) (response, error) {
	fail := func(err error) (response, error) { return response{}, fmt.Errorf("%s: %s: %w", p.name, o.Do, err) }
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		return fail(err)
	}
	var failed error
	for p.out.Scan() {
		var a response
		if err := json.Unmarshal(p.out.Bytes(), &a); err != nil {
			return fail(fmt.Errorf("%w: %.200s", err, p.out.Bytes()))
		}
		switch {
		case a.Event != "" && event != nil:
			failed = errors.Join(failed, event())
		case a.Event != "":
		case a.Error != "":
			return fail(errors.New(a.Error))
		default:
			return a, failed
		}
	}
	return fail(errors.Join(p.out.Err(), io.ErrUnexpectedEOF))
}

// end stops the child and waits for it.
func (p *proc) end() error {
	if p == nil {
		return nil
	}
	if err := errors.Join(p.in.Close(), p.cmd.Wait()); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// kill kills the child with SIGKILL.
func (p *proc) kill() error {
	err := errors.Join(p.cmd.Process.Kill(), p.in.Close())
	_ = p.cmd.Wait() // the error is the signal
	return err
}
