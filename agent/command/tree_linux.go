package command

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A processTree is a program and all processes that came from it: its session, and
// those that left it but carry its mark in their environment.
type processTree struct {
	cmd       *exec.Cmd
	account   *account // nil: the node's own
	marker    []byte   // BALEFIRE_RUN=…
	startTime uint64   // when the program started, in ticks since boot

	// seen are its processes and when they started. One that is ending has no
	// environment any more while it still holds its files, and is known by this alone.
	seen map[int]uint64
}

// newProcessTree prepares cmd: a session of its own, so that it has no terminal and
// every job of a shell is found, and death with this process.
func newProcessTree(cmd *exec.Cmd, mark string, as *account) *processTree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Credential: as.credential()}
	return &processTree{cmd: cmd, account: as, marker: []byte("BALEFIRE_RUN=" + mark), seen: make(map[int]uint64)}
}

func (t *processTree) start() error {
	dropAmbient()
	if err := t.cmd.Start(); err != nil {
		return err
	}
	if s, ok := readStat(t.cmd.Process.Pid); ok {
		t.startTime = s.startTime
	}
	return nil
}

// await returns when the program has ended, and leaves it as a zombie that
// keeps its number.
func (t *processTree) await() {
	for {
		err := unix.Waitid(unix.P_PID, t.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}

// reap takes the program's state.
func (t *processTree) reap() { _ = t.cmd.Wait() } // an exit code is no error here

func (t *processTree) close() {}

// countOthers counts the processes that are left besides the program.
func (t *processTree) countOthers() (n int) {
	_ = t.account.runAs(func() error { n = len(t.members()); return nil }) // it became the account before
	return n
}

// signal asks all processes of t to end, or ends them.
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

// members lists the living processes of t but the program itself. A process
// that ends while we look may have left a child where we had looked already,
// so an empty list counts only when nothing ended meanwhile.
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

// maxLooks bounds how often members looks on a machine where something always ends.
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

// signalIf sends sig to pid if it still is a process that belongs: the handle
// is taken first, so the number cannot come to mean another one in between.
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

// A stat is what /proc says about a process.
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

// parseStat reads the fields behind the name, which may hold anything.
func parseStat(b []byte) (s stat, ok bool) {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return s, false
	}
	var errs [4]error
	s.parent, errs[3] = strconv.Atoi(string(f[1]))
	s.group, errs[0] = strconv.Atoi(string(f[2]))
	s.session, errs[1] = strconv.Atoi(string(f[3]))
	s.startTime, errs[2] = strconv.ParseUint(string(f[19]), 10, 64)
	s.dead = f[0][0] == 'Z' || f[0][0] == 'X'
	return s, errs == [4]error{}
}

// hasEnv reports whether pid was started with entry in its environment.
func hasEnv(pid int, entry []byte) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
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

// killed names the signal that ended a program, if one did.
func killed(s *os.ProcessState) string {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal().String()
	}
	return ""
}
