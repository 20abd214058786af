//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// testTimeout is how long a test waits for an event: more than twenty times the usual
// duration of the slowest one. It only ends tests that hang.
const testTimeout = 5 * time.Minute

// A machine is a folder with a node, whose process may be running or not.
type machine struct {
	*client.Client
	t     *testing.T
	name  string
	dir   string
	marks string // the file that its handlers write to
	life  int

	binary  string   // of the node
	within  []string // command prefix for all commands and the node
	trace   []string // likewise, only for the node
	instead []string // runs instead of the node
	env     []string // additional environment variables of it

	cmd  *exec.Cmd
	logs string // the log file, not on the disk of the node, which may be full
	log  *os.File
	gone chan struct{} // closed when the process has ended
}

// config is the part of a machine's configuration that tests set.
type config struct {
	engine string
	dir    string // default a new one
	listen []string
	net    string   // YAML below net:, besides listen
	limits string   // YAML below limits:
	store  string   // YAML below store:
	mail   string   // YAML: the section mail
	kinds  string   // YAML below handlers:
	within []string // command prefix for all its processes
	binary string   // binary of the node; default the one under test
}

// newMachine creates a node's folder. The first one of a mesh creates the mesh.
func newMachine(t *testing.T, name string, found bool, c config) *machine {
	t.Helper()
	if c.dir == "" {
		c.dir = filepath.Join(shortDir(t), name)
	}
	m := &machine{t: t, name: name, dir: c.dir, marks: filepath.Join(c.dir, "marks"), Client: client.New(filepath.Join(c.dir, "node.sock")), binary: cmp.Or(c.binary, nodeBinary), within: c.within}
	args := []string{"init", "--name", name}
	if found {
		args = append(args, "--new-mesh")
	}
	m.must(args...)
	if c.listen == nil {
		c.listen = listen(t)
	}
	text := fmt.Sprintf("store:\n  engine: %s\n%s%snet:\n  listen: [%s]\n%slimits:\n  graceful_timeout: 2s\n%shandlers:\n%s%s",
		c.engine, c.store, c.mail, strings.Join(c.listen, ", "), c.net, c.limits, m.markingHandler(), "  - {kind: sum, type: sha256, allow: ['role:send']}\n"+c.kinds)
	if err := os.WriteFile(filepath.Join(m.dir, "config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
	return m
}

// markingHandler is the handler that writes a mark when it starts and when it ends: the
// action, the task, the attempt and the life of the node.
func (m *machine) markingHandler() string { return marking("mark", m.marks, "") }

// marking returns a handler that writes its marks to a file and runs a command between them.
func marking(kind, marks, between string) string {
	script := `echo "S $BALEFIRE_TASK_ID $BALEFIRE_ATTEMPT $E2E_LIFE" >> ` + marks + `; ` + between + `echo "E $BALEFIRE_TASK_ID $BALEFIRE_ATTEMPT $E2E_LIFE" >> ` + marks
	return fmt.Sprintf("  - {kind: %s, exec: [/bin/sh, -c, '%s'], allow: ['role:send'], on_crash: retry, env: [E2E_LIFE]}\n", kind, script)
}

// shortDir returns a folder whose path is short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("BALEFIRE_KEEP") != "" {
			t.Logf("kept %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return dir
}

// listen returns addresses on a port that is free now, the same one at every
// start: peers remember it. Ports lie below the range that the kernel gives to
// outgoing connections, else one of those may hold it before the node does.
func listen(t *testing.T) []string {
	t.Helper()
	for range 1000 {
		port := firstPort + int(nextPort.Add(1))%ports
		if free(port) {
			return []string{fmt.Sprintf("/ip4/127.0.0.1/udp/%d/quic-v1", port), fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", port)}
		}
	}
	t.Fatal("no free port")
	return nil
}

const (
	firstPort = 12000
	ports     = 20000
)

// nextPort starts at a different port in every run, for parallel runs.
var nextPort = func() *atomic.Int64 {
	var n atomic.Int64
	n.Store(int64(os.Getpid() * 257 % ports)) // processes that start one after the other get distant ports
	return &n
}()

// free reports whether a port of loopback is free for both protocols.
func free(port int) bool {
	address := fmt.Sprintf("127.0.0.1:%d", port)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	l.Close()
	c, err := net.ListenPacket("udp", address)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// must runs a command of the node's binary on this machine's folder.
func (m *machine) must(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...)
	if err != nil {
		m.t.Fatalf("%s on %s: %v\n%s", strings.Join(args, " "), m.name, err, out)
	}
	return strings.TrimSpace(out)
}

func (m *machine) command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	argv := slices.Concat(m.within, []string{m.binary, "--dir", m.dir}, args)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := cmd.Run()
	if err != nil {
		return out.String() + complaints.String(), err
	}
	return out.String(), nil
}

// launch starts the process; env are additional environment variables.
func (m *machine) launch(env ...string) {
	m.t.Helper()
	if m.alive() {
		m.t.Fatalf("%s is already running", m.name)
	}
	argv := []string{m.binary, "--dir", m.dir, "run"}
	if m.instead != nil {
		argv = m.instead
	}
	m.run(slices.Concat(m.within, m.trace, argv), append(env, m.env...)...)
}

func (m *machine) run(argv []string, env ...string) {
	m.t.Helper()
	m.life++
	var err error
	if m.logs == "" {
		m.logs = filepath.Join(m.t.TempDir(), "log")
	}
	if m.log, err = os.OpenFile(m.logs, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		m.t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(append(os.Environ(), fmt.Sprintf("E2E_LIFE=%d", m.life), "BALEFIRE_LOG_FORMAT=text"), env...)
	cmd.Stdout, cmd.Stderr = m.log, m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	gone := make(chan struct{})
	m.cmd, m.gone = cmd, gone
	go func() {
		defer close(gone)
		_ = cmd.Wait() // how it ended is asked of ProcessState
	}()
}

// start launches the node and waits until it accepts tasks: it must start without help,
// whatever happened before.
func (m *machine) start(env ...string) {
	m.t.Helper()
	m.launch(env...)
	m.ready()
}

func (m *machine) ready() {
	m.t.Helper()
	m.until("it is ready", func() bool {
		select {
		case <-m.gone:
			m.t.Fatalf("%s exited instead of starting: %v\n%s", m.name, m.cmd.ProcessState, m.tail())
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return m.Ready(ctx) == nil
	})
}

// alive reports whether the process runs.
func (m *machine) alive() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.gone:
		return false
	default:
		return true
	}
}

// kill kills the node without warning, like a power cut.
func (m *machine) kill() {
	if !m.alive() {
		return
	}
	_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) // it may have exited
	m.died()
}

// died waits until the process has exited.
func (m *machine) died() {
	m.t.Helper()
	select {
	case <-m.gone:
	case <-time.After(testTimeout):
		m.t.Errorf("%s does not exit", m.name)
	}
	group := m.cmd.Process.Pid // under a tracer the node is not our child
	m.until("its processes are gone", func() bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) })
	m.Close()
	m.log.Close()
	m.cmd = nil
}

// stop stops the node gracefully.
func (m *machine) stop() {
	m.t.Helper()
	if !m.alive() {
		return
	}
	m.signal(syscall.SIGTERM)
	m.died()
}

// signal sends s to the node and its wrapper, if they are still running.
func (m *machine) signal(s syscall.Signal) {
	m.t.Helper()
	if m.cmd == nil {
		return
	}
	if err := syscall.Kill(-m.cmd.Process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		m.t.Errorf("signal %s: %v", m.name, err)
	}
}

// pause stops the threads of the node, which has no wrapper, until SIGCONT. Its handlers continue:
// the thread that starts one cannot stop before that has begun.
func (m *machine) pause() {
	m.t.Helper()
	if !m.alive() {
		m.t.Fatalf("%s has exited unexpectedly: %s", m.name, m.tail())
	}
	if err := m.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		m.t.Fatalf("pause %s: %v", m.name, err)
	}
	if err := unix.Waitid(unix.P_PID, m.cmd.Process.Pid, nil, unix.WSTOPPED, nil); err != nil {
		m.t.Fatalf("pause %s: %v: %s", m.name, err, m.tail())
	}
}

// tail returns the end of the node's log.
func (m *machine) tail() string {
	b, err := os.ReadFile(m.logs)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// until polls until ok returns true.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(testTimeout)
	for !ok() {
		select {
		case <-tick.C:
		case <-over:
			m.t.Fatalf("%s: timeout after %s: %s\n%s", m.name, testTimeout, what, m.tail())
		}
	}
}

// pair returns two running machines of one mesh.
func pair(t *testing.T, c config) (a, b *machine) {
	t.Helper()
	return pairOf(t, c, c)
}

func pairOf(t *testing.T, ca, cb config) (a, b *machine) {
	t.Helper()
	a, b = newMachine(t, "a", true, ca), newMachine(t, "b", false, cb)
	a.start()
	b.join(a)
	b.start()
	return a, b
}

// join makes the stopped machine a member of the mesh that other is in.
func (m *machine) join(other *machine) {
	m.t.Helper()
	inv, err := other.Invite(m.t.Context(), wire.InviteOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.must("join", inv.Ticket)
}

// both calls f with two machines in parallel.
func both(f func(m *machine), ms ...*machine) {
	var wg sync.WaitGroup
	for _, m := range ms {
		wg.Go(func() { f(m) })
	}
	wg.Wait()
}
