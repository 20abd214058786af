//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// probeVariable makes this test binary a handler that reports what it may do: all of it, or
// a single system call, which may kill the process.
const probeVariable = "E2E_PROBE"

// A probeRequest is the body of a task for the probe.
type probeRequest struct {
	Paths  []string // files and folders to open
	Socket string   // of the node
	Node   int      // its process
}

// A probeReport is its result. Outcomes are done, the name of an error, or killedBySIGSYS.
type probeReport struct {
	Paths map[string]string // outcome of opening each path
	Is    map[string]string // its user, lines of /proc/self/status, and what it can do to the node
	Calls map[string]string // outcome of each of probeCalls
}

const killedBySIGSYS = "killed by SIGSYS"

// probeCalls are system calls, each made by a process of its own.
var probeCalls = map[string]func() error{
	"getppid": func() error { return call(unix.SYS_GETPPID) },
	"ptrace":  func() error { return call(unix.SYS_PTRACE, unix.PTRACE_TRACEME) },
	"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"packet socket": func() error {
		_, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	},
	"set-user-ID file": func() error {
		if err := os.WriteFile("file", nil, 0o600); err != nil {
			return err
		}
		return unix.Chmod("file", unix.S_ISUID|0o700)
	},
	"call of another ABI": func() error { return call(unix.SYS_GETPPID | 1<<30) }, // x32
}

func call(number uintptr, args ...uintptr) error {
	args = append(args, 0, 0, 0)
	if _, _, err := unix.RawSyscall(number, args[0], args[1], args[2]); err != 0 {
		return err
	}
	return nil
}

func runProbe(what string) int {
	if what != "all" {
		fmt.Print(outcome(probeCalls[what]()))
		return 0
	}
	var ask probeRequest
	if err := json.NewDecoder(os.Stdin).Decode(&ask); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 65
	}
	got := probeReport{Paths: map[string]string{}, Is: map[string]string{}, Calls: map[string]string{}}
	for _, path := range ask.Paths {
		got.Paths[path] = tryOpen(path)
	}
	got.describe(ask)
	for name := range probeCalls {
		got.Calls[name] = inProcess(name)
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// describe fills in what the process is, and what it can do to the node.
func (r *probeReport) describe(ask probeRequest) {
	groups, err := os.Getgroups()
	r.Is["user"] = fmt.Sprint(os.Getuid(), os.Getgid(), groups)
	if err != nil {
		r.Is["user"] = err.Error()
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		r.Is["status"] = err.Error()
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		r.Is[key] = strings.TrimSpace(value)
	}
	c, err := net.Dial("unix", ask.Socket)
	if err == nil {
		c.Close()
	}
	r.Is["connect to socket"] = outcome(err)
	r.Is["environment"] = tryOpen(fmt.Sprintf("/proc/%d/environ", ask.Node))
	r.Is["signal to the node"] = outcome(syscall.Kill(ask.Node, 0))
	for what, uid := range map[string]uintptr{"become the node": nodeUser, "become root": 0} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with this goroutine
			done <- call(unix.SYS_SETRESUID, uid, uid, uid)
		}()
		r.Is[what] = outcome(<-done)
	}
}

func tryOpen(path string) string {
	f, err := os.Open(path)
	if err == nil {
		f.Close()
	}
	return outcome(err)
}

// inProcess makes a call in a process of its own.
func inProcess(name string) string {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{probeVariable + "=" + name}
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGSYS {
			return killedBySIGSYS
		}
	}
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// outcome names the error of a system call.
func outcome(err error) string {
	if err == nil {
		return "done"
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(number)
	}
	return err.Error()
}
