//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A T is the part of [testing.TB] that a lab uses.
type T interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// A Lab owns the networks of one test. Everything is built and changed from the test's own
// goroutine.
type Lab struct {
	t      T
	prefix string // prefix of the names of all its namespaces
	names  map[string]bool
}

// family is the prefix of the namespaces of every lab. The id and the start time of the
// process follow it.
const family = "balefire-lab-"

var labs atomic.Int64

// New returns an empty lab, which is removed when the test ends. It also removes the labs
// of processes that are gone.
func New(t T) *Lab {
	t.Helper()
	l := &Lab{t: t, names: map[string]bool{}}
	l.check(sweep())
	started, err := startOf(os.Getpid())
	l.check(err)
	l.prefix = fmt.Sprintf("%s%d-%s-%d-", family, os.Getpid(), started, labs.Add(1))
	return l
}

// check fails the test if a step has failed.
func (l *Lab) check(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("lab: %v", err)
	}
}

// A namespace is a network namespace.
type namespace struct {
	lab  *Lab
	name string // of the namespace
}

// where is the folder in which iproute2 keeps the names of namespaces.
const where = "/var/run/netns"

// newNamespace creates an isolated network namespace.
func (l *Lab) newNamespace(name string) namespace {
	l.t.Helper()
	if l.names[name] {
		l.t.Fatalf("lab: there is a %s already", name)
	}
	l.names[name] = true
	s := namespace{l, l.prefix + name}
	l.check(run("ip", "netns", "add", s.name))
	l.t.Cleanup(func() { l.check(remove(s.name)) })
	l.check(s.Do(func() error { // no second path around what is cut
		return errors.Join(sysctl("ipv6/conf/all/disable_ipv6", "1"), sysctl("ipv6/conf/default/disable_ipv6", "1"))
	}))
	s.ip("link", "set", "lo", "up")
	return s
}

// ip runs a command of iproute2 on the namespace.
func (s namespace) ip(args ...string) {
	s.lab.t.Helper()
	s.lab.check(run(append([]string{"ip", "-n", s.name}, args...)...))
}

// Within returns the command prefix that runs a program in the network.
func (s namespace) Within() []string { return []string{"ip", "netns", "exec", s.name} }

// Command returns a process that will run in the network.
func (s namespace) Command(argv ...string) *exec.Cmd {
	argv = append(s.Within(), argv...)
	return exec.Command(argv[0], argv[1:]...)
}

// Do calls f on a thread that is in the network: sockets that it opens stay there. f must
// not start processes, or goroutines that open sockets.
func (s namespace) Do(f func() error) error {
	done := make(chan error)
	go func() { done <- s.visit(f) }()
	if err := <-done; err != nil {
		return fmt.Errorf("in %s: %w", s.name, err)
	}
	return nil
}

// visit enters the network, calls f and returns. The thread must live on: the kernel kills
// child processes with a parent-death signal when their thread ends.
func (s namespace) visit(f func() error) (err error) {
	there, err := os.Open(filepath.Join(where, s.name))
	if err != nil {
		return err
	}
	defer there.Close()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network %s: %w; this needs root", s.name, err)
	}
	defer func() {
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("leave the network %s: %w", s.name, back))
			return // no one else may run on this thread
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// sysctl writes a setting of the network of the calling thread.
func sysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
}

// run runs a program; its output is part of the error.
func run(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("%w: install iproute2", err)
	case err != nil:
		return fmt.Errorf("%s: %w: %s (a lab needs root)", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// remove deletes a namespace and kills the processes in it.
func remove(name string) error {
	out, err := exec.Command("ip", "netns", "pids", name).Output()
	if err != nil {
		return fmt.Errorf("ip netns pids %s: %w", name, err)
	}
	for line := range strings.Lines(string(out)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err == nil && pid != os.Getpid() { // one of our threads may just be leaving it
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	return run("ip", "netns", "del", name)
}

// sweep removes the namespaces of labs whose process is gone.
func sweep() error {
	entries, err := os.ReadDir(where)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, started, ok := owner(e.Name())
		if !ok {
			continue
		}
		if now, err := startOf(pid); err == nil && now == started {
			continue
		}
		// Another run may sweep at the same time.
		if err := remove(e.Name()); err != nil {
			if _, gone := os.Stat(filepath.Join(where, e.Name())); gone == nil {
				return err
			}
		}
	}
	return nil
}

// owner parses the process from the name of a namespace.
func owner(name string) (pid int, started string, ok bool) {
	rest, ok := strings.CutPrefix(name, family)
	parts := strings.SplitN(rest, "-", 3)
	if !ok || len(parts) != 3 {
		return 0, "", false
	}
	pid, err := strconv.Atoi(parts[0])
	return pid, parts[1], err == nil
}

// startOf returns when a process started, in ticks since boot: together with the id it
// identifies a process uniquely.
func startOf(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field, in parentheses, may contain anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields[19], nil
}
