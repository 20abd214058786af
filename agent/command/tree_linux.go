package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A processTree is a program and all processes that it started: its session, and
// processes that left it but have its marker in their environment.
type processTree struct {
	cmd       *exec.Cmd
	account   *account // nil: the node's own
	marker    []byte   // BALEFIRE_RUN=…
	startTime uint64   // when the program started, in ticks since boot

	// seen holds its processes and their start times. An exiting process no longer
	// has an environment but still holds its files, and is found only by this.
	seen map[int]uint64
}

// newProcessTree prepares cmd: with a session of its own, so that it has no
// terminal and every job of a shell is found, and to die with this process.
func newProcessTree(cmd *exec.Cmd, mark string, as *account) *processTree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: as.credential()}
	return &processTree{cmd: cmd, account: as, marker: []byte("BALEFIRE_RUN=" + mark), seen: make(map[int]uint64)}
}

func (t *processTree) start() error {
	dropInherited()
	if err := t.cmd.Start(); err != nil {
		return err
	}
	if s, ok := readStat(t.cmd.Process.Pid); ok {
		t.startTime = s.startTime
	}
	return nil
}

// await returns when the program has ended, and leaves it as a zombie that keeps
// its PID.
func (t *processTree) await() {
	for {
		err := unix.Waitid(unix.P_PID, t.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// reap collects the program's state.
func (t *processTree) reap() { _ = t.cmd.Wait() } // an exit code is not an error here

func (t *processTree) close() {}

// countOthers counts the remaining processes besides the program.
func (t *processTree) countOthers() (n int) {
	_ = t.account.runAs(func() error { n = len(t.members()); return nil }) // it became the account before
	return n
}

// signal asks all processes of t to exit, or kills them.
func (t *processTree) signal(hard bool) {
	sig := syscall.SIGTERM
	if hard {
		sig = syscall.SIGKILL
	}
	_ = t.account.runAs(func() error { // it became the account before
		_ = syscall.Kill(-t.cmd.Process.Pid, sig) // not reaped: the group is still its own
		for _, pid := range t.members() {
			signalIf(pid, sig, t.has)
		}
		return nil
	})
}

// members lists the living processes of t except the program itself. A process
// that ends during the scan may have left a child that was missed, so an empty
// list counts only if nothing ended meanwhile.
func (t *processTree) members() (list []int) {
	leader := t.cmd.Process.Pid
	for range maxLooks {
		ended := false
		list = processes(func(pid int) bool {
			s, ok := readStat(pid)
			ended = ended || !ok
			return ok && pid != leader && t.owns(pid, s)
		})
		if len(list) > 0 || !ended {
			break
		}
	}
	return list
}

// maxLooks bounds the number of scans on a machine where processes always end.
const maxLooks = 5

// has reports whether pid is a living process of t.
func (t *processTree) has(pid int) bool {
	s, ok := readStat(pid)
	return ok && t.owns(pid, s)
}

func (t *processTree) owns(pid int, s stat) bool {
	if s.dead || s.startTime < t.startTime {
		return false
	}
	leader := t.cmd.Process.Pid
	born, ok := t.seen[pid]
	if ok && born == s.startTime || s.group == leader || s.session == leader || hasEnv(pid, t.marker) {
		t.seen[pid] = s.startTime
		return true
	}
	return false
}

// signalIf sends sig to pid if the process still matches: the handle is opened
// first, so that the PID cannot be reused in between.
func signalIf(pid int, sig syscall.Signal, belongs func(pid int) bool) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	if belongs(pid) {
		_ = p.Signal(sig) // it may have ended
	}
	_ = p.Release()
}

// processes lists the processes of this machine that match.
func processes(match func(pid int) bool) []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var list []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != os.Getpid() && match(pid) {
			list = append(list, pid)
		}
	}
	return list
}

// A stat is the state of a process in /proc.
type stat struct {
	parent, group, session int
	startTime              uint64
	dead                   bool
}

func readStat(pid int) (stat, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, false
	}
	return parseStat(b)
}

// parseStat parses the fields after the name, which may contain anything.
func parseStat(b []byte) (s stat, ok bool) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return s, false
	}
	var errs [5]error
	s.parent, errs[3] = strconv.Atoi(string(f[1]))
	s.group, errs[0] = strconv.Atoi(string(f[2]))
	s.session, errs[1] = strconv.Atoi(string(f[3]))
	s.startTime, errs[2] = strconv.ParseUint(string(f[19]), 10, 64)
	threads, err := strconv.Atoi(string(f[17]))
	errs[4] = err
	// With more threads only the first one has ended, or another is calling exec.
	s.dead = (f[0][0] == 'Z' || f[0][0] == 'X') && threads <= 1
	return s, errs == [5]error{}
}

// hasEnv reports whether pid was started with entry in its environment. If the first thread
// of a process has ended, only the others still have it.
func hasEnv(pid int, entry []byte) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if errors.Is(err, syscall.ESRCH) || err == nil && len(b) == 0 { // before Linux 6.16 it was empty
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none if the process is gone
		for _, t := range threads {
			if b, err = os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/environ", pid, t.Name())); err == nil && len(b) > 0 {
				break
			}
		}
	}
	if err != nil {
		return false
	}
	for e := range bytes.SplitSeq(b, []byte{0}) {
		if bytes.Equal(e, entry) {
			return true
		}
	}
	return false
}
