package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/config"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
)

// A node whose disk failed is reopened automatically, with increasing pauses; a changed configuration
// reopens the node at once; other errors stop it.
func TestKeepOpensAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := newTestApp()
		d := &daemon{w: w, log: slog.New(slog.DiscardHandler)}
		start := time.Now()
		var at []time.Duration
		broken := errors.New("the key is gone")
		err := d.supervise(t.Context(), func() error {
			at = append(at, time.Since(start).Round(time.Second))
			switch len(at) {
			case 1, 2, 4:
				return fmt.Errorf("node: %w", store.ErrFailed)
			case 3:
				return errReload
			case 5:
				return fmt.Errorf("write the audit: %w", audit.ErrFailed)
			case 6:
				return fmt.Errorf("listen: %w", &os.PathError{Op: "bind", Path: "node.sock", Err: syscall.ENOSPC})
			case 7:
				return fmt.Errorf("open node: load keys: %w", &os.PathError{Op: "read", Path: "node.key", Err: syscall.EIO})
			}
			return broken
		})
		want := []time.Duration{0, time.Second, 3 * time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second, 31 * time.Second, 63 * time.Second}
		if !errors.Is(err, broken) || !slices.Equal(at, want) {
			t.Errorf("opened at %v, want %v; error %v", at, want, err)
		}
	})
}

func TestKeepStopsWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := newTestApp()
		d := &daemon{w: w, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if err := d.supervise(ctx, func() error { return store.ErrFailed }); err != nil {
			t.Errorf("stopped while waiting: %v", err)
		}
	})
}

// SIGHUP reloads the configuration: some settings change at once, the others reopen the
// node, and an invalid configuration changes nothing.
func TestReload(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.yaml")
	base := "net: {listen: [/ip4/127.0.0.1/tcp/0]}\nstore: {segment: 4MiB}\n"
	write := func(more string) {
		if err := os.WriteFile(file, []byte(base+more), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	w, _, _ := newTestApp()
	told := make(logLines, 1000)
	w.err, w.flags.paths.Dir = told, dir
	l, p, err := w.config()
	if err != nil {
		t.Fatal(err)
	}
	notified := notifySocket(t)
	t.Setenv("NOTIFY_SOCKET", notified.LocalAddr().String())
	wantTold := func(want ...string) {
		t.Helper()
		for _, w := range want {
			got := read(t, notified)
			for strings.HasPrefix(got, "STATUS=") { // progress of the store
				got = read(t, notified)
			}
			if !strings.HasPrefix(got, w+"\nSTATUS=") {
				t.Errorf("the service manager was told %q, want %s and a status", got, w)
			}
		}
	}
	d := newDaemon(w, l, p)
	ctx, cancel := context.WithCancel(t.Context())
	hup, done := make(chan os.Signal), make(chan error, 1)
	go func() { done <- d.supervise(ctx, func() error { return d.runOnce(ctx, hup) }) }()
	c := client.New(p.Socket)
	defer c.Close()
	slots := func() int {
		s, err := c.Status(t.Context())
		for err != nil && t.Context().Err() == nil {
			s, err = c.Status(t.Context())
		}
		return s.Slots
	}
	before := slots()
	wantTold("READY=1")

	write("log: {level: debug}\n")
	hup <- reloadSignals()[0]
	told.await(t, `"changed_fields":["log.level"]`)
	write("limts: {}\n")
	hup <- reloadSignals()[0]
	told.await(t, "the old one stays")
	if !d.log.Enabled(ctx, slog.LevelDebug) {
		t.Error("the level did not change")
	}
	write(fmt.Sprintf("log: {level: debug}\nlimits: {slots: %d}\n", before+3))
	hup <- reloadSignals()[0]
	told.await(t, `"changed_fields":["limits.slots"]`)
	wantTold("RELOADING=1", "READY=1") // for the level; nothing for the invalid configuration
	wantTold("RELOADING=1", "READY=1") // reopening a node does not stop the service
	if got := slots(); got != before+3 {
		t.Errorf("%d slots, want %d", got, before+3)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	base = fmt.Sprintf("net: {listen: [/ip4/127.0.0.1/tcp/%d]}\nstore: {segment: 4MiB}\n", taken.Addr().(*net.TCPAddr).Port)
	write("") // valid, but another program has the port
	hup <- reloadSignals()[0]
	told.await(t, "the old one is used")
	wantTold("RELOADING=1", "READY=1")
	if got := slots(); got != before+3 {
		t.Errorf("with the old configuration again: %d slots, want %d", got, before+3)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the daemon returned %v", err)
	}
	wantTold("STOPPING=1")
}

// The watchdog of the service manager is notified again and again.
func TestWatchdogIsFed(t *testing.T) {
	notified := notifySocket(t)
	t.Setenv("NOTIFY_SOCKET", notified.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", "")
	w, _, _ := newTestApp()
	d := &daemon{w: w, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); d.watchdog(ctx) }()
	for range 3 {
		if got := read(t, notified); got != "WATCHDOG=1" {
			t.Errorf("the service manager was told %q", got)
		}
	}
	cancel()
	<-done
	t.Setenv("WATCHDOG_USEC", "")
	d.watchdog(t.Context()) // without a watchdog it returns at once
}

// TestImageHasLabels checks that both images, of a binary and of the sources, say what they are.
func TestImageHasLabels(t *testing.T) {
	b, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, label := range []string{"title", "description", "source", "licenses", "version"} {
		if n := strings.Count(string(b), "org.opencontainers.image."+label+"="); n != 2 {
			t.Errorf("%d of two images have the label %s", n, label)
		}
	}
}

// The shipped unit keeps its sandbox and its watchdog. The drop-in for run_as replaces what it
// must, and nothing else.
func TestUnitKeepsItsSandbox(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/balefire.service")
	if err != nil {
		t.Fatal(err)
	}
	dropIn, err := os.ReadFile("../../packaging/systemd/run-as.conf")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(unit), "\n")
	replaced := map[string]bool{"CapabilityBoundingSet=": true, "AmbientCapabilities=": true, "StateDirectoryMode=0700": true}
	for _, want := range []string{
		"Type=notify", "WatchdogSec=60", "User=balefire", "UMask=0027", "NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=read-only",
		"PrivateTmp=yes", "PrivateDevices=yes", "ProtectKernelTunables=yes", "ProtectKernelModules=yes", "ProtectKernelLogs=yes", "ProtectControlGroups=yes",
		"ProtectClock=yes", "ProtectHostname=yes", "RestrictNamespaces=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes", "LockPersonality=yes", "RemoveIPC=yes",
		"CapabilityBoundingSet=", "AmbientCapabilities=", "SystemCallArchitectures=native", "SystemCallFilter=@system-service", "SystemCallErrorNumber=EPERM",
		"RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
		"StateDirectoryMode=0700", "RuntimeDirectoryMode=0750", "TimeoutStartSec=infinity", "ExecStart=/usr/local/bin/balefire-node run",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("the unit does not contain %s", want)
		}
		setting, _, _ := strings.Cut(want, "=")
		if again := strings.Contains("\n"+string(dropIn), "\n"+setting+"="); again != replaced[want] {
			t.Errorf("the drop-in for run_as replaces %s: %v", setting, again)
		}
	}
	if strings.Contains(string(unit), "\nMemoryDenyWriteExecute") {
		t.Error("programs that compile while they run cannot be handlers")
	}
}

// The unit for laptops drains the node before each sleep and takes it back afterwards, with
// commands that exist. A failure, such as a node that does not run, stops neither.
func TestUnitBeforeSleep(t *testing.T) {
	unit, err := os.ReadFile("../../packaging/systemd/balefire-sleep.service")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(unit), "\n")
	for _, want := range []string{"Before=sleep.target", "StopWhenUnneeded=yes", "Type=oneshot", "RemainAfterExit=yes", "WantedBy=sleep.target"} {
		if !slices.Contains(lines, want) {
			t.Errorf("the unit does not contain %s", want)
		}
	}
	w, _, _ := newTestApp()
	for key, flag := range map[string]string{"ExecStart": "wait", "ExecStop": "off"} {
		at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, key+"=-/usr/local/bin/balefire-node ") })
		if at < 0 {
			t.Errorf("no %s of balefire-node whose failure is ignored", key)
			continue
		}
		c, rest, err := newRoot(w).Find(strings.Fields(lines[at])[1:])
		if err == nil {
			err = c.ParseFlags(rest)
		}
		if err != nil || c.Name() != "drain" || c.Flags().NArg() > 0 || !c.Flags().Changed(flag) {
			t.Errorf("%s runs %q: %v", key, lines[at], err)
		}
	}
	if doc, err := os.ReadFile("../../docs/operations.md"); err != nil || !strings.Contains(string(doc), "```ini\n"+string(unit)+"```\n") {
		t.Errorf("the page of operations shows another unit: %v", err)
	}
}

// The drop-in for run_as only grants two capabilities and lets other users traverse the
// state folder. It states by how much it raises the exposure, as the page of operations does.
func TestDropInForRunAs(t *testing.T) {
	b, err := os.ReadFile("../../packaging/systemd/run-as.conf")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			got = append(got, line)
		}
	}
	want := []string{"[Service]", "CapabilityBoundingSet=CAP_SETUID CAP_SETGID", "AmbientCapabilities=CAP_SETUID CAP_SETGID", "StateDirectoryMode=0711"}
	if !slices.Equal(got, want) {
		t.Errorf("content %q", got)
	}
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	raises := regexp.MustCompile(`raises the exposure[^.]* from ([0-9.]+) to ([0-9.]+[0-9])`)
	stated, measured := raises.FindStringSubmatch(strings.ReplaceAll(string(b), "\n# ", " ")), raises.FindSubmatch(page)
	if stated == nil || measured == nil || stated[1] != string(measured[1]) || stated[2] != string(measured[2]) {
		t.Errorf("it states an exposure of %q, the page %q", stated, measured)
	}
}

// logLines passes on the log, line by line.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// await returns when a line that contains want has been logged.
func (l logLines) await(t *testing.T, want string) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		select {
		case line := <-l:
			if strings.Contains(line, want) {
				return
			}
		case <-limit:
			t.Fatalf("the log does not contain %s", want)
		}
	}
}

func notifySocket(t *testing.T) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func read(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// TestStartingNodeSaysSo checks S50: while a large store opens, the node is alive and
// not ready, it answers every other request with its progress, and wait waits.
func TestStartingNodeSaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if _, err := pairing.Init(pairing.InitOptions{Dir: dir, Name: "solo", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("net: {listen: [/ip4/127.0.0.1/tcp/0]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, _, _ := newTestApp()
	w.err, w.flags.paths.Dir = make(logLines, 1000), dir
	l, p, err := w.config()
	if err != nil {
		t.Fatal(err)
	}
	d, begun, read := newDaemon(w, l, p), make(chan struct{}), make(chan struct{})
	d.open = func(cfg node.Config) (*node.Node, error) {
		cfg.Opening("12 of 40 MiB of the store are read")
		close(begun)
		<-read
		return node.New(cfg)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.runOnce(ctx, nil) }()
	<-begun
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"health", exitOK, ""},
		{"health --ready", exitRefused, "12 of 40 MiB"},
		{"status", exitRefused, "the node is starting: 12 of 40 MiB of the store are read"},
		{"send laptop ping", exitRefused, "nothing was accepted"},
		{"wait --for ready --timeout 2s", exitTimeout, "the node is starting"},
		{"wait --for peer=laptop --timeout 2s", exitTimeout, "the node is starting"},
	} {
		if code, says := asked(t, dir, tt.args); code != tt.code || !strings.Contains(says, tt.says) {
			t.Errorf("%s: exit code %d, want %d; message %q, want %q", tt.args, code, tt.code, says, tt.says)
		}
	}
	close(read)
	if code, says := asked(t, dir, "wait --for ready --timeout 1m"); code != exitOK {
		t.Errorf("the node does not become ready: %s", says)
	}
	if code, says := asked(t, dir, "status"); code != exitOK {
		t.Errorf("status of the ready node: %s", says)
	}
	cancel()
	if err := dropCanceled(<-done); err != nil {
		t.Error(err)
	}
}

// asked runs a command on the node in dir and returns its exit code and its error message.
func asked(t *testing.T, dir, args string) (code int, says string) {
	t.Helper()
	w, _, complaints := newTestApp()
	code = execute(t.Context(), w, append([]string{"--dir", dir}, strings.Fields(args)...))
	return code, complaints.String()
}

// --log-level takes precedence over the environment, and is named in the error if it is
// invalid.
func TestLogLevel(t *testing.T) {
	for _, environ := range []string{"BALEFIRE_LOG_LEVEL=debug", "BALEFIRE_LOG_LEVEL=warn"} {
		w, _, _ := newTestApp()
		w.environ = append(w.environ, environ)
		if err := w.setLevel("info"); err != nil {
			t.Fatal(err)
		}
		l, err := config.Load(config.Source{Environ: w.environ})
		if err != nil || l.Log.Level != "info" {
			t.Errorf("with %s the level is %q, %v", environ, l.Log.Level, err)
		}
	}
	w, _, _ := newTestApp()
	err := w.setLevel("foo")
	if err == nil || !strings.Contains(err.Error(), "--log-level") || exitCode(t.Context(), err) != exitUsage {
		t.Errorf("foo: %v", err)
	}
}

// A duration in the log has a unit, in JSON too.
func TestLogSpansHaveUnits(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		w, _, errs := newTestApp()
		style := &logStyle{w: w}
		style.set(config.Log{Format: format})
		style.logger().Info("later", "wait", 30*time.Second)
		if !strings.Contains(errs.String(), "30s") {
			t.Errorf("%s: %s", format, errs)
		}
	}
}

// Lines that libraries write with the standard logger are lines of the node's log, at
// debug.
func TestLibrariesWriteIntoTheLog(t *testing.T) {
	t.Cleanup(func() { logLibraries(slog.New(slog.DiscardHandler)) })
	w, _, errs := newTestApp()
	style := &logStyle{w: w}
	style.set(config.Log{Level: "debug", Format: "json"})
	logLibraries(style.logger())
	log.Print("[zeroconf] no suitable IPv4 interface")
	var line struct{ Level, Msg string }
	if err := json.Unmarshal(errs.Bytes(), &line); err != nil || line.Level != "DEBUG" || !strings.Contains(line.Msg, "zeroconf") {
		t.Errorf("%v: %s", err, errs)
	}
}

// TestWaitSaysWhatWasSo checks that a wait that times out during a request reports the last
// known state, and not the interrupted request.
func TestWaitSaysWhatWasSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			whys []string // of the requests before the interrupted one
			want string
		}{
			{[]string{"it is QUEUED", "it is RUNNING"}, "wait for task=1: timeout after 1m0s: it is RUNNING"},
			{nil, "wait for task=1: timeout after 1m0s: the node has not answered yet"},
		} {
			w, _, _ := newTestApp()
			w.flags.timeout = time.Minute
			whys := c.whys
			err := w.waitUntil(t.Context(), nil, "task=1", func(ctx context.Context, _ *client.Client) (bool, string, error) {
				if len(whys) == 0 {
					<-ctx.Done()
					return false, "it is ", fmt.Errorf("ask: %w", ctx.Err())
				}
				why := whys[0]
				whys = whys[1:]
				return false, why, nil
			})
			if err == nil || err.Error() != c.want {
				t.Errorf("error %q, want %q", err, c.want)
			}
			if code := exitCode(t.Context(), err); code != exitTimeout {
				t.Errorf("exit code %d", code)
			}
		}
	})
}
