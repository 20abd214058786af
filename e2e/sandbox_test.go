//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// The users of the node and of its handler, for which no machine has an account.
const nodeUser, taskUser = 64301, 64302

// TestRunAsInTheSandboxOfTheUnit runs a node in the sandbox of the shipped service unit with
// the drop-in for run_as: its user, its capabilities, its file modes and its filters of
// system calls. A handler with run_as runs there as its user, who has no capability and
// reads nothing of the node's folder, and it is stopped and cleaned up like any other. A
// handler without run_as reads all of it, and a program outside of the sandbox makes the
// system calls that the filters refuse: so the test sees both.
func TestRunAsInTheSandboxOfTheUnit(t *testing.T) {
	files := []string{"../packaging/systemd/balefire.service", "../packaging/systemd/run-as.conf"}
	u, err := readUnit(files...)
	if err != nil {
		t.Fatal(err)
	}
	top := shortDir(t)
	check(t, os.Chmod(top, 0o755))
	probe := filepath.Join(top, "probe")
	copyBinary(t, "/proc/self/exe", probe)
	user := fmt.Sprintf("%d:%d", taskUser, taskUser)
	kinds := fmt.Sprintf(`  - {kind: other, exec: [%[1]s], run_as: '%[2]s', allow: ['role:send'], env: [%[3]s], max_attempts: 1}
  - {kind: own, exec: [%[1]s], allow: ['role:send'], env: [%[3]s], max_attempts: 1}
  - {kind: nap, exec: [/bin/sh, -c, 'trap "" TERM; mkdir -m 0 closed; sleep 1000'], run_as: '%[2]s', allow: ['role:send']}
`, probe, user, probeVariable)
	m := newMachine(t, "a", true, config{engine: "nutsdb", dir: filepath.Join(top, "lib"), kinds: kinds})
	m.binary = filepath.Join(top, "node")
	copyBinary(t, nodeBinary, m.binary)
	runtimeDir := filepath.Join(top, "run")
	check(t, os.Mkdir(runtimeDir, 0o700))
	for dir, setting := range map[string]string{m.dir: "StateDirectoryMode", runtimeDir: "RuntimeDirectoryMode"} {
		mode, err := u.mode(setting)
		check(t, err)
		check(t, os.Chmod(dir, mode))
		check(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, nodeUser, nodeUser))
		}))
	}
	self, err := os.Executable()
	check(t, err)
	m.Client = client.New(filepath.Join(runtimeDir, "node.sock"))
	m.trace = []string{self}
	m.instead = append([]string{m.binary}, strings.Fields(u["ExecStart"])[1:]...)
	m.start(unitVariable+"="+strings.Join(files, string(filepath.ListSeparator)), probeVariable+"=all",
		"STATE_DIRECTORY="+m.dir, "CONFIGURATION_DIRECTORY="+m.dir, "RUNTIME_DIRECTORY="+runtimeDir)

	handlers, err := m.Handlers(t.Context())
	check(t, err)
	for _, h := range handlers {
		if h.Problem != nil {
			t.Fatalf("the handler %s cannot run: %+v", h.Kind, h.Problem)
		}
	}
	ask := probeRequest{Socket: filepath.Join(runtimeDir, "node.sock"), Node: m.cmd.Process.Pid}
	check(t, filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (d.IsDir() || d.Type().IsRegular()) {
			ask.Paths = append(ask.Paths, path)
		}
		return nil // files of a running node may disappear
	}))
	if !slices.Contains(ask.Paths, filepath.Join(m.dir, "config.yaml")) || !slices.ContainsFunc(ask.Paths, func(path string) bool { return strings.Contains(path, "identity/") }) {
		t.Errorf("the node's folder has no configuration or no keys: %q", ask.Paths)
	}
	other, own := m.probe("other", ask), m.probe("own", ask)
	for _, path := range ask.Paths {
		if other.Paths[path] != "EACCES" || own.Paths[path] == "EACCES" {
			t.Errorf("open %s: %q with run_as, %q without", path, other.Paths[path], own.Paths[path])
		}
	}
	for what, want := range map[string][2]string{ // with run_as, and without
		"user":               {fmt.Sprintf("%[1]d %[1]d []", taskUser), fmt.Sprintf("%[1]d %[1]d []", nodeUser)},
		"CapPrm":             {"0000000000000000", "0000000000000000"},
		"CapEff":             {"0000000000000000", "0000000000000000"},
		"CapInh":             {"0000000000000000", "0000000000000000"},
		"CapAmb":             {"0000000000000000", "0000000000000000"},
		"NoNewPrivs":         {"1", "1"},
		"Seccomp":            {"2", "2"},
		"connect to socket":  {"EACCES", "done"},
		"signal to the node": {"EPERM", "done"},
		"become the node":    {"EPERM", "done"},
		"become root":        {"EPERM", "EPERM"},
		"environment":        {"EACCES", "EACCES"}, // the node has capabilities that the handler has not
	} {
		if got := [2]string{other.Is[what], own.Is[what]}; got != want {
			t.Errorf("%s: %q with run_as and without, want %q", what, got, want)
		}
	}
	outside := probeOutside(t, probe, ask)
	refused := cmp.Or(u["SystemCallErrorNumber"], killedBySIGSYS)
	for call, want := range map[string][2]string{ // in the sandbox, and outside of it
		"getppid":             {"done", "done"},
		"ptrace":              {refused, "done"},
		"set-user-ID file":    {"EPERM", "done"},
		"unshare":             {"EPERM", "EINVAL"}, // not for a process with several threads
		"packet socket":       {"EAFNOSUPPORT", "EPERM"},
		"call of another ABI": {killedBySIGSYS, "ENOSYS"},
	} {
		if got := [2]string{other.Calls[call], outside.Calls[call]}; got != want {
			t.Errorf("%s: %q in the sandbox and outside of it, want %q", call, got, want)
		}
	}
	m.checkStopsAsAnotherUser("nap")
	m.stop()
}

// probe has the node run its handler of a kind and returns what the handler reports.
func (m *machine) probe(kind string, ask probeRequest) (got probeReport) {
	m.t.Helper()
	body, err := json.Marshal(ask)
	check(m.t, err)
	s, err := m.Submit(m.t.Context(), wire.Request{Target: m.name, Kind: kind, Body: body})
	check(m.t, err)
	ctx, cancel := context.WithTimeout(m.t.Context(), testTimeout)
	defer cancel()
	task, err := m.Wait(ctx, s.ID)
	check(m.t, err)
	if task.State != "SUCCESS" {
		m.t.Fatalf("%s: %s, %s: %s", kind, task.State, task.Reason, m.tail())
	}
	r, _, err := m.Result(m.t.Context(), s.ID)
	check(m.t, err)
	defer r.Close()
	check(m.t, json.NewDecoder(r).Decode(&got))
	return got
}

// probeOutside runs the probe outside of any sandbox, as the user of the handler.
func probeOutside(t *testing.T, program string, ask probeRequest) (got probeReport) {
	t.Helper()
	body, err := json.Marshal(ask)
	check(t, err)
	cmd := exec.Command(program)
	cmd.Dir = shortDir(t)
	check(t, os.Chown(cmd.Dir, taskUser, taskUser))
	cmd.Env, cmd.Stdin, cmd.Stderr = []string{probeVariable + "=all"}, bytes.NewReader(body), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: taskUser, Gid: taskUser}}
	out, err := cmd.Output()
	check(t, err)
	check(t, json.Unmarshal(out, &got))
	return got
}

// checkStopsAsAnotherUser checks that a handler of the other user that ignores SIGTERM is
// stopped when its task is cancelled, and that its folder is removed although it is closed.
func (m *machine) checkStopsAsAnotherUser(kind string) {
	m.t.Helper()
	runs := filepath.Join(m.dir, "run")
	s, err := m.Submit(m.t.Context(), wire.Request{Target: m.name, Kind: kind})
	check(m.t, err)
	m.until("the handler has made its folder", func() bool {
		found, err := filepath.Glob(filepath.Join(runs, "*", "*", "closed"))
		return err == nil && len(found) == 1
	})
	if processesOf(m.t, taskUser) == 0 {
		m.t.Error("the handler does not run as its user")
	}
	_, err = m.Cancel(m.t.Context(), s.ID, true, "enough")
	check(m.t, err)
	ctx, cancel := context.WithTimeout(m.t.Context(), testTimeout)
	defer cancel()
	if task, err := m.Wait(ctx, s.ID); err != nil || task.State != "CANCELLED" {
		m.t.Errorf("it ended as %s, %v", task.State, err)
	}
	m.until("its processes and its folder are gone", func() bool {
		left, err := os.ReadDir(runs)
		return err == nil && len(left) == 0 && processesOf(m.t, taskUser) == 0
	})
}

// processesOf counts the processes of a user.
func processesOf(t *testing.T, uid uint32) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	check(t, err)
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // it has exited
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == uid {
			n++
		}
	}
	return n
}

// copyBinary copies a program to where every user may run it.
func copyBinary(t *testing.T, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	check(t, err)
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	check(t, err)
	_, err = io.Copy(dst, src)
	check(t, errors.Join(err, dst.Close()))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
