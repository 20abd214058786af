package command

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
)

func init() {
	programs["wiper"] = func(args []string) int {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		report(args[0])
		<-asked
		return btoi(syscall.Exec("/proc/self/exe", []string{os.Args[0], programArg, "sleeper"}, []string{}) != nil)
	}
	programs["sleeper"] = func([]string) int {
		<-time.After(time.Hour)
		return 0
	}
	if len(os.Args) > 2 && os.Args[2] == "headless" {
		runtime.LockOSThread() // its main function runs in its first thread
	}
	programs["headless"] = func(args []string) int {
		conn := report(args[0])
		go func() {
			<-time.After(time.Hour)
			_ = conn.Close()
		}()
		_, _, err := syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends the thread alone
		return int(err)
	}
	programs["daemon"] = func(args []string) int {
		cmd := exec.Command(os.Args[0], programArg, args[1], args[0])
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if cmd.Start() != nil {
			return 1
		}
		return wait(args, true)
	}
}

// S34: a process in its own session that loses its environment once it was asked to exit,
// as every exiting process does, is not taken for gone.
func TestProcessWithoutEnvironmentIsFound(t *testing.T) {
	m := newRendezvous(t)
	h := newHandler(t, Config{Exec: program(t, "daemon", m.addr(), "wiper"), Grace: 500 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan *handler.Result, 1)
	go func() { results <- handler.Call(ctx, h, &handler.Run{ID: testTask}) }()
	guests := m.await(t, 2)
	cancel()
	if res := <-results; res.Outcome != handler.Cancelled {
		t.Errorf("result = %+v, want cancelled", res)
	}
	allExited(t, guests)
}

// S34: a process whose first thread has ended looks like a zombie, and so does one while
// another of its threads calls exec: neither is taken for gone.
func TestProcessWithoutFirstThreadIsFound(t *testing.T) {
	m := newRendezvous(t)
	h := newHandler(t, Config{Exec: program(t, "daemon", m.addr(), "headless"), Grace: 500 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results := make(chan *handler.Result, 1)
	go func() { results <- handler.Call(ctx, h, &handler.Run{ID: testTask}) }()
	guests := m.await(t, 2)
	zombie := func(g guest) bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", g.pid))
		return strings.Contains(string(b), ") Z ")
	}
	tick, limit := time.NewTicker(time.Millisecond), time.After(testTimeout)
	defer tick.Stop()
	for !slices.ContainsFunc(guests, zombie) {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("no first thread has ended")
		}
	}
	cancel()
	if res := <-results; res.Outcome != handler.Cancelled {
		t.Errorf("result = %+v, want cancelled", res)
	}
	for _, g := range guests {
		g.ended(t)
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}
}

func running(pid int) bool {
	s, ok := readStat(pid)
	return ok && !s.dead
}

// S16: without a free file descriptor nothing is started and no attempt is used up.
func TestNoFileDescriptorsIsUnready(t *testing.T) {
	cfg, r := Config{Exec: program(t, "exit", "0")}, &handler.Run{Dir: t.TempDir()}
	h := newHandler(t, cfg)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	res := handler.Call(t.Context(), h, r)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if res.Outcome != handler.Unready || !strings.Contains(res.Reason, "too many open files") {
		t.Errorf("result = %+v, want unready: too many open files", res)
	}
	if res := handler.Call(t.Context(), h, r); res.Outcome != handler.Success {
		t.Errorf("with file descriptors again: %+v, want success", res)
	}
}

// S35: killing a node also kills its program, and the next start finds and kills the
// processes that the program had started.
func TestKilledNodeLeavesNothingBehind(t *testing.T) {
	m := newRendezvous(t)
	node := newMarker()
	cmd := exec.Command(program(t, "host")[0], programArg, "host", m.addr(), node)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guests := m.await(t, 5)
	started := slices.IndexFunc(guests, func(g guest) bool {
		s, ok := readStat(g.pid)
		return ok && s.parent == cmd.Process.Pid
	})
	if started < 0 {
		t.Fatal("none is a child of the host")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the host exited normally")
	}
	tick, limit := time.NewTicker(time.Millisecond), time.After(testTimeout)
	defer tick.Stop()
	for running(guests[started].pid) { // the kernel kills it with the host
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("the program outlives the host")
		}
	}
	if n, err := Reap(t.Context(), "another node", time.Second); n != 0 || err != nil {
		t.Errorf("another node reaped %d, %v", n, err)
	}
	n, err := Reap(t.Context(), node, 100*time.Millisecond)
	if err != nil || n != 4 {
		t.Errorf("reaped %d, %v, want the four that were left", n, err)
	}
	allExited(t, guests)
	for _, g := range guests {
		g.ended(t)
	}
	if n, err := Reap(t.Context(), node, time.Second); n != 0 || err != nil {
		t.Errorf("reaped %d more, %v", n, err)
	}
	if _, err := Reap(t.Context(), "", 0); err == nil {
		t.Error("reaped for a node without a name")
	}
}

// A program's name may contain anything, even text that looks like the fields after it.
func TestParseStat(t *testing.T) {
	line := "42 (a) Z 1 (b\n) S 7 40 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"
	want := stat{parent: 7, group: 40, session: 41, startTime: 12345}
	if got, ok := parseStat([]byte(line)); !ok || got != want {
		t.Errorf("stat = %+v, %v, want %+v", got, ok, want)
	}
	for _, tt := range []struct {
		state, threads string
		dead           bool
	}{{"S", "1", false}, {"Z", "1", true}, {"X", "0", true}, {"Z", "2", false}} {
		line := "42 (a) " + tt.state + " 7 40 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 " + tt.threads + " 0 12345 1 1"
		if got, ok := parseStat([]byte(line)); !ok || got.dead != tt.dead {
			t.Errorf("state %s, %s threads: %+v, %v", tt.state, tt.threads, got, ok)
		}
	}
	for _, bad := range []string{"", ")", "1 (x) S 1 2", "1 (x) S a b c d e f g h i j k l m n o p q r s t"} {
		if s, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q was read as %+v", bad, s)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) S 7 40 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"))
	f.Add([]byte("42 (a) Z 7 x 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"))
	f.Add([]byte(") "))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := parseStat(b)
		if !ok {
			return
		}
		text := string(b)
		fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
		number := func(i int) int {
			n, err := strconv.Atoi(fields[i])
			if err != nil {
				t.Errorf("%q was read: %v", b, err)
			}
			return n
		}
		start, err := strconv.ParseUint(fields[19], 10, 64)
		want := stat{parent: number(1), group: number(2), session: number(3), startTime: start}
		want.dead = strings.Contains("ZX", fields[0][:1]) && number(17) <= 1
		if err != nil || s != want {
			t.Errorf("%q: %+v, want %+v", b, s, want)
		}
	})
}

func BenchmarkWalk(b *testing.B) {
	for b.Loop() {
		processes(func(pid int) bool { _, ok := readStat(pid); return !ok })
	}
}
