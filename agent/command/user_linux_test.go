package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// The user ids of these tests, for which no machine has an account.
const nodeUser, taskUser, otherUser = 64201, 64202, 64203

func init() { programs["run-as-node"] = runAsNode }

// A runAsReport is the report of a node that ran a program as another user.
type runAsReport struct {
	May    string // error of MayRunAs
	Output string
	Err    string
	Stop   string // outcome of a stopped run
	Alive  bool   // whether one of its processes was left
	Swept  bool   // the folder of the run was removed
}

// runAsScript prints what the program can do: its user, its capabilities, and what it can
// read of its body, of the node's secret and of another run's folder. It leaves files
// behind that only it may remove.
const runAsScript = `id -u; id -g; id -G; grep CapEff /proc/self/status; grep CapInh /proc/self/status; grep CapAmb /proc/self/status; pwd; cat "$BALEFIRE_BODY_FILE"
cat "$1" 2>/dev/null || echo no secret; cat "$2"/w/* 2>/dev/null || echo no other run; ls "$2" >/dev/null 2>&1 || echo no list
mkdir -m 700 sub && echo mine > sub/file && chmod 500 sub; echo $HOME`

// runAsNode is a node with no privileges except its capabilities: it runs a program as
// another user, in the folder args[0].
func runAsNode(args []string) int {
	base := args[0]
	var out runAsReport
	user := fmt.Sprintf("%d:%d", taskUser, taskUser)
	if err := MayRunAs(user, base); err != nil {
		out.May = err.Error()
		return printJSON(out)
	}
	secret, other, dir := filepath.Join(base, "node.key"), filepath.Join(base, "other"), filepath.Join(base, "run")
	must := func(err error) {
		if err != nil {
			out.Err += err.Error() + "\n"
		}
	}
	must(os.WriteFile(secret, []byte("the key"), 0o600))
	must(os.Mkdir(other, 0o700))
	third := &account{uid: otherUser, gid: otherUser}
	theirs, err := third.makeFolder(other)
	must(err)
	must(third.runAs(func() error { return os.WriteFile(filepath.Join(theirs, "body"), []byte("theirs"), 0o644) }))
	must(os.Mkdir(dir, 0o700))
	h, err := New(Config{RunAs: user, Exec: []string{"sh", "-c", runAsScript, "sh", secret, other}, PassBody: PassFile, Env: []string{"PATH", "HOME"}})
	must(err)
	res := h.Run(context.Background(), &handler.Run{ID: testTask, Dir: dir, Body: strings.NewReader("the body\n")})
	out.Output, out.Err = string(res.Output), out.Err+res.Reason+res.Stderr
	must(RemoveAll(dir))
	_, err = os.Lstat(dir)
	out.Swept = os.IsNotExist(err)
	must(RemoveAll(other))

	must(os.Mkdir(dir, 0o700))
	h, err = New(Config{RunAs: user, Exec: []string{"sh", "-c", "trap '' TERM; (trap '' TERM; setsid sleep 1000 & echo $!); sleep 1000"}, Grace: 50 * time.Millisecond})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		over := time.After(testTimeout)
		for countSleepers() < 2 { // then both ignore SIGTERM
			select {
			case <-tick.C:
			case <-over:
				return
			}
		}
	}()
	res = h.Run(ctx, &handler.Run{ID: sleeperTask, Dir: dir})
	out.Stop = res.Outcome.String() + " " + res.Reason
	must(third.runAs(func() error { return nil }))
	_ = (&account{uid: taskUser, gid: taskUser}).runAs(func() error {
		out.Alive = len(processes(func(pid int) bool { return hasEnv(pid, []byte("BALEFIRE_TASK_ID="+sleeperTask.String())) })) > 0
		return nil
	})
	return printJSON(out)
}

// sleeperTask is the task whose programs do not stop on their own.
var sleeperTask = proto.TaskID{0: 1, 15: 0x99}

// countSleepers counts its sleeps.
func countSleepers() (n int) {
	_ = (&account{uid: taskUser, gid: taskUser}).runAs(func() error {
		n = len(processes(func(pid int) bool {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return err == nil && string(name) == "sleep\n" && hasEnv(pid, []byte("BALEFIRE_TASK_ID="+sleeperTask.String()))
		}))
		return nil
	})
	return n
}

// asNode runs the program run-as-node as a user that has only these capabilities and
// cannot gain others, like the service unit does.
func asNode(t *testing.T, caps ...uintptr) (out runAsReport) {
	t.Helper()
	top, err := os.MkdirTemp("", "run-as-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	self, binary, base := program(t, "run-as-node"), filepath.Join(top, "node"), filepath.Join(top, "base")
	copyProgram(t, self[0], binary)
	for _, err := range []error{os.Chmod(top, 0o755), os.Mkdir(base, 0o711), os.Chown(base, nodeUser, nodeUser)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(binary, append(self[1:], base)...)
	var outputDone, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &outputDone, &diag, base
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nodeUser, Gid: nodeUser}, AmbientCaps: caps}
	ran := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine: no other loses capabilities
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			ran <- err
			return
		}
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if c != unix.CAP_SETUID && c != unix.CAP_SETGID {
				_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // an older kernel knows fewer
			}
		}
		ran <- cmd.Run()
	}()
	if err := <-ran; err != nil {
		t.Fatalf("%v: %s", err, diag.String())
	}
	if err := json.Unmarshal(outputDone.Bytes(), &out); err != nil {
		t.Fatalf("%v: %s", err, outputDone.String())
	}
	return out
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
}

// needsRoot skips a test that must become another user if it may not. With CI=true it fails.
func needsRoot(t *testing.T) {
	t.Helper()
	const why = "only root can become another user: run the tests as root"
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// A handler that runs as another user has no capability of the node and reads its own
// body, but neither the node's key nor the files of other runs. It is stopped like any
// other, and its leftovers are removed.
func TestRunAsAnotherUser(t *testing.T) {
	needsRoot(t)
	out := asNode(t, unix.CAP_SETUID, unix.CAP_SETGID)
	lines := strings.Split(strings.TrimSpace(out.Output), "\n")
	id, none := fmt.Sprint(taskUser), strings.Repeat("0", 16)
	want := []string{id, id, id, "CapEff:\t" + none, "CapInh:\t" + none, "CapAmb:\t" + none, "", "the body", "no secret", "no other run", "no list", "/"}
	if out.May != "" || out.Err != "" || len(lines) != len(want) {
		t.Fatalf("may %q, error %q, said %q", out.May, out.Err, lines)
	}
	for i, line := range want {
		if i != 6 && lines[i] != line {
			t.Errorf("line %d is %q, want %q", i, lines[i], line)
		}
	}
	if !strings.HasSuffix(lines[6], "/run/"+privateFolder) {
		t.Errorf("it runs in %s", lines[6])
	}
	if !out.Swept {
		t.Error("its leftovers were not removed")
	}
	if !strings.HasPrefix(out.Stop, "cancelled") || out.Alive {
		t.Errorf("stopped, it was %q, and a process is left: %v", out.Stop, out.Alive)
	}
	if out := asNode(t); !strings.Contains(out.May, "CAP_SETUID") || !strings.Contains(out.May, "run-as.conf") {
		t.Errorf("without the capabilities: %q", out.May)
	}
}

// A program of the node's own user that takes rights from the folders it leaves does not
// keep them from being removed, and no folder behind a link changes.
func TestLockedFoldersAreRemoved(t *testing.T) {
	var node *account // the own user of the test
	if os.Geteuid() == 0 {
		node = &account{uid: nodeUser, gid: nodeUser} // root may remove everything
	}
	top, err := os.MkdirTemp("", "locked-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	run, outside := filepath.Join(top, "run"), filepath.Join(top, "outside")
	if node != nil {
		if err := os.Chown(top, nodeUser, nodeUser); err != nil {
			t.Fatal(err)
		}
	}
	for _, locked := range []string{"deep/locked", "."} {
		for _, mode := range []os.FileMode{0o555, 0} {
			dir := filepath.Join(run, locked)
			err := node.runAs(func() error {
				return errors.Join(os.MkdirAll(filepath.Join(dir, "sub"), 0o700), os.MkdirAll(outside, 0o700), os.Chmod(outside, 0o500),
					os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link")), os.Chmod(dir, mode))
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := node.runAs(func() error { return RemoveAll(run) }); err != nil {
				t.Errorf("%s of mode %v: %v", locked, mode, err)
			}
			if _, err := os.Lstat(run); !os.IsNotExist(err) {
				t.Fatalf("%s of mode %v is left: %v", locked, mode, err)
			}
			if info, err := os.Stat(outside); err != nil || info.Mode().Perm() != 0o500 {
				t.Errorf("the folder behind a link is %v, %v", info, err)
			}
		}
	}
}

// A user with the rights of the node or more, or one that does not exist, is refused.
func TestRunAsIsRefused(t *testing.T) {
	self := os.Geteuid()
	for runAs, want := range map[string]string{
		"root":                                 "root",
		"0:0":                                  "root",
		fmt.Sprint(taskUser, ":0"):             "root",
		fmt.Sprint(taskUser):                   "write UID:GID",
		"no-such-user":                         "there is no user",
		fmt.Sprint(taskUser, ":-1"):            "there is no group",
		fmt.Sprint(taskUser, ":no-such-group"): "there is no group",
		fmt.Sprintf("%d:%d", self, taskUser):   map[bool]string{true: "root", false: "own user"}[self == 0],
		fmt.Sprintf("%d:%d", -1, taskUser):     "there is no user",
	} {
		if err := MayRunAs(strings.ReplaceAll(runAs, " ", ""), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", runAs, err, want)
		}
	}
	if self != 0 {
		if err := MayRunAs(fmt.Sprintf("%d:%d", taskUser, taskUser), ""); err == nil || !strings.Contains(err.Error(), "CAP_SETUID") {
			t.Errorf("without capabilities: %v", err)
		}
	}
}

// The error for a folder that the user cannot reach names it and states what to do.
func TestRunAsNeedsAReachableFolder(t *testing.T) {
	needsRoot(t)
	dir := filepath.Join(t.TempDir(), "closed", "run")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := MayRunAs(fmt.Sprintf("%d:%d", taskUser, taskUser), dir); err == nil || !strings.Contains(err.Error(), "0711") {
		t.Errorf("the folder counts as reachable: %v", err)
	}
}
