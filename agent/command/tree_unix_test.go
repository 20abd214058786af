//go:build unix

package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
)

func init() {
	programs["family"] = family
	programs["host"] = host
	programs["orphan"] = orphan
}

// family starts four processes that detach in four ways, and then waits or, depending on
// args[1], exits. All report to args[0].
func family(args []string) int {
	for _, how := range []struct {
		mode string
		attr *syscall.SysProcAttr
	}{
		{"wait", nil},
		{"deaf", &syscall.SysProcAttr{Setpgid: true}}, // its own group, like a shell's job
		{"wait", &syscall.SysProcAttr{Setsid: true}},  // its own session, like a daemon
		{"orphan", nil}, // its parent exits at once
	} {
		if how.attr != nil && how.attr.Setsid && runtime.GOOS != "linux" {
			how.attr = nil // only on Linux is it certain to be found
		}
		cmd := exec.Command(os.Args[0], programArg, how.mode, args[0])
		cmd.SysProcAttr = how.attr
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if conn := report(args[0]); conn != nil && args[1] == "ends" {
		var b [1]byte
		_, _ = conn.Read(b[:]) // until all have reported to the test
		return 0
	}
	<-time.After(time.Hour)
	return 0
}

// orphan leaves behind a process in another session whose parent has exited, like a
// daemon.
func orphan(args []string) int {
	cmd := exec.Command(os.Args[0], programArg, "deaf", args[0])
	if runtime.GOOS == "linux" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	return btoi(cmd.Start() != nil)
}

// host is a node that runs a family.
func host(args []string) int {
	h, err := New(Config{Exec: []string{os.Args[0], programArg, "family", args[0], "waits"}, Node: args[1]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	handler.Call(context.Background(), h, &handler.Run{ID: testTask})
	return 0
}

// allExited fails the test for each guest whose process still exists. An unreaped zombie
// counts as exited: it runs nothing.
func allExited(t *testing.T, guests []guest) {
	t.Helper()
	for _, g := range guests {
		if running(g.pid) {
			t.Errorf("process %d of %d is still there when Run has returned", g.pid, len(guests))
		}
	}
}

// S34, S35: once a run has ended, in whatever way, none of its processes is left.
func TestNoProcessIsLeft(t *testing.T) {
	tests := []struct {
		name string
		how  string
		stop func(cancel context.CancelFunc, leader guest) // once all have reported
		want handler.Outcome
	}{
		{"cancelled", "waits", func(cancel context.CancelFunc, _ guest) { cancel() }, handler.Cancelled},
		{"its leader exited normally", "ends", func(_ context.CancelFunc, l guest) { _ = l.conn.Close() }, handler.Success},
		{"its leader was killed", "waits", func(_ context.CancelFunc, l guest) { _ = syscall.Kill(l.pid, syscall.SIGKILL) }, handler.Crashed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newRendezvous(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			leader := make(chan int, 1)
			h := newHandler(t, Config{
				Exec: program(t, "family", m.addr(), tt.how), Grace: 100 * time.Millisecond,
				onStart: func(pid int) { leader <- pid },
			})
			results := make(chan *handler.Result, 1)
			go func() { results <- handler.Call(ctx, h, &handler.Run{ID: testTask}) }()
			guests := m.await(t, 5)
			pid := <-leader
			for _, g := range guests {
				if g.pid == pid {
					tt.stop(cancel, g)
				}
			}
			res := <-results
			allExited(t, guests)
			if res.Outcome != tt.want {
				t.Errorf("result = %+v, want %v", res, tt.want)
			}
		})
	}
}

func TestGentleStopIsTriedFirst(t *testing.T) {
	for _, tt := range []struct {
		mode  string
		grace time.Duration // of the polite one: more than it needs on any machine
		want  syscall.Signal
	}{{"wait", testTimeout, syscall.SIGTERM}, {"deaf", 200 * time.Millisecond, syscall.SIGKILL}} {
		m := newRendezvous(t)
		j := &job{argv: program(t, tt.mode, m.addr()), env: os.Environ(), marker: newMarker(), grace: tt.grace,
			stdout: &tail{max: 100}, stderr: &tail{max: 100}}
		ctx, cancel := context.WithCancel(t.Context())
		ends := make(chan exitInfo, 1)
		go func() {
			end, err := j.run(ctx)
			if err != nil {
				t.Error(err)
			}
			ends <- end
		}()
		m.await(t, 1)
		cancel()
		end := <-ends
		if got := end.state.Sys().(syscall.WaitStatus).Signal(); got != tt.want {
			t.Errorf("%s was ended by %v, want %v", tt.mode, got, tt.want)
		}
	}
}

// S34: a hard cancel does not wait for a program that ignores SIGTERM.
func TestHardCancelHasNoGrace(t *testing.T) {
	m := newRendezvous(t)
	h := newHandler(t, Config{Exec: program(t, "deaf", m.addr()), Grace: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	kill := make(chan struct{})
	results := make(chan *handler.Result, 1)
	go func() { results <- handler.Call(ctx, h, &handler.Run{Kill: kill}) }()
	guests := m.await(t, 1)
	cancel()
	select {
	case res := <-results:
		t.Fatalf("a program that ignores SIGTERM ended: %+v", res)
	case <-time.After(50 * time.Millisecond): // it is in its grace period now
	}
	close(kill)
	select {
	case res := <-results:
		if res.Outcome != handler.Cancelled {
			t.Errorf("result = %+v, want cancelled", res)
		}
	case <-time.After(testTimeout):
		t.Fatal("it was given its grace period")
	}
	allExited(t, guests)
}
