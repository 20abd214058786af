package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/balefire/balefire/handler"
)

const (
	// pollEvery is the poll interval for a run that is being stopped.
	pollEvery = 10 * time.Millisecond
	// killWait is how long SIGKILL may take. A process that hangs in the kernel
	// takes longer and is reported.
	killWait = 10 * time.Second
)

// A job is one start of a program.
type job struct {
	argv    []string
	env     []string
	dir     string
	marker  string    // value of BALEFIRE_RUN
	account *account  // nil: the node's own
	stdin   io.Reader // nil: nothing
	stdout  io.Writer
	stderr  io.Writer
	grace   time.Duration
	kill    <-chan struct{} // closed: no grace
	onStart func(pid int)
}

// exitInfo describes how a job ended.
type exitInfo struct {
	state     *os.ProcessState
	cause     error // why it was stopped; nil if it ended by itself
	remaining int   // processes that could not be killed
}

// errBody stops a program whose body cannot be read to its end: it must not
// mistake a part for the whole (I9).
var errBody = errors.New("read body")

// run starts the program, waits for it and all processes that it started, and
// stops them when ctx ends. An error means that it was never started.
func (j *job) run(ctx context.Context) (exitInfo, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if ctx.Err() != nil {
		return exitInfo{cause: context.Cause(ctx)}, nil
	}
	cmd := exec.Command(j.argv[0], j.argv[1:]...)
	cmd.Env, cmd.Dir = j.env, j.dir
	p, err := openPipes(cmd, j.stdin != nil)
	if err != nil {
		return exitInfo{}, fmt.Errorf("open pipes: %w", err)
	}
	t := newProcessTree(cmd, j.marker, j.account)
	exited, stopped, reaped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	if err := start(t, exited, stopped, reaped); err != nil {
		p.close()
		return exitInfo{}, fmt.Errorf("start %s: %w", j.argv[0], err)
	}
	p.started()
	if j.onStart != nil {
		j.onStart(cmd.Process.Pid)
	}
	stdinDone := p.feed(j.stdin, func(err error) { stop(fmt.Errorf("%w: %w", errBody, err)) }, stopped)
	outputDone := p.collect(j.stdout, j.stderr)

	end := exitInfo{cause: await(ctx, exited)}
	end.remaining = stopAll(t, exited, j.grace, j.kill)
	close(stopped)
	if end.remaining == 0 {
		<-reaped
		end.state = cmd.ProcessState
	}
	p.drain(stdinDone, outputDone)
	t.close()
	return end, nil
}

// start starts the program on a thread of its own, since Linux ends it with the
// thread that started it. It closes exited when the program has ended. The
// program is reaped only after stopped is closed, when its group is no longer
// signaled: until then no other process can get its PID. If it cannot be killed,
// this goroutine stays until it exits.
func start(t *processTree, exited chan<- struct{}, stopped <-chan struct{}, reaped chan<- struct{}) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := t.start()
		started <- err
		if err != nil {
			return
		}
		t.await()
		close(exited)
		<-stopped
		t.reap()
		close(reaped)
	}()
	return <-started
}

// await returns nil when the program has ended, or the cause when ctx is done.
func await(ctx context.Context, exited <-chan struct{}) error {
	select {
	case <-exited:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-exited: // at the same moment: the program's end counts
		return nil
	default:
		return context.Cause(ctx)
	}
}

// stopAll stops the remaining processes of t, first gently, then by force, and
// returns how many are left.
func stopAll(t *processTree, exited <-chan struct{}, grace time.Duration, now <-chan struct{}) int {
	if alive(t, exited) == 0 {
		return 0
	}
	t.signal(false)
	if waitExit(t, exited, grace, true, now) == 0 {
		return 0
	}
	return waitExit(t, exited, killWait, false, nil)
}

// waitExit waits up to d until nothing of t is left. If gentle is false, or once
// now is closed, it kills meanwhile.
func waitExit(t *processTree, exited <-chan struct{}, d time.Duration, gentle bool, now <-chan struct{}) int {
	over := time.NewTimer(d)
	defer over.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if !gentle {
			t.signal(true)
		}
		n := alive(t, exited)
		if n == 0 {
			return 0
		}
		select {
		case <-tick.C:
		case <-now:
			gentle, now = false, nil
		case <-over.C:
			return n
		}
	}
}

// alive counts the processes of t: the program itself and all others.
func alive(t *processTree, exited <-chan struct{}) int {
	select {
	case <-exited:
		return t.countOthers()
	default:
		return 1 + t.countOthers()
	}
}

// result converts an end to a result. err means that the program was never
// started.
func (e exitInfo) result(err error) *handler.Result {
	switch {
	case err != nil:
		return notStarted(err)
	case e.remaining > 0:
		return &handler.Result{Outcome: handler.Crashed, Code: -1, Reason: fmt.Sprintf("%d processes of the run could not be killed", e.remaining)}
	case errors.Is(e.cause, errBody):
		return &handler.Result{Outcome: handler.Retry, Code: code(e.state), Reason: e.cause.Error()}
	case e.cause != nil:
		return &handler.Result{Outcome: handler.Stopped(e.cause), Code: code(e.state), Reason: "stopped: " + e.cause.Error()}
	case killed(e.state) != "":
		return &handler.Result{Outcome: handler.Crashed, Code: code(e.state), Reason: "killed by signal: " + killed(e.state)}
	}
	return exitResult(code(e.state))
}

// notStarted returns the result of a run whose program was not started. Only the
// task's own input, too many arguments for the system or an unreadable body,
// makes it a failed attempt; a problem of this machine is not the task's fault.
func notStarted(err error) *handler.Result {
	res := &handler.Result{Outcome: handler.Unready, Code: -1, Reason: err.Error()}
	if errors.Is(err, syscall.E2BIG) || errors.Is(err, errBody) {
		res.Outcome = handler.Retry
	}
	return res
}

// exitResult returns the result for an exit code.
func exitResult(code int) *handler.Result {
	res := &handler.Result{Outcome: handler.Retry, Code: code}
	switch code {
	case 0:
		res.Outcome = handler.Success
		return res
	case ExitFail:
		res.Outcome = handler.Fail
	}
	res.Reason = fmt.Sprintf("exit code %d", code)
	return res
}

func code(s *os.ProcessState) int {
	if s == nil {
		return -1
	}
	return s.ExitCode()
}
