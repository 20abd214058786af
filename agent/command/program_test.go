package command

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/balefire/balefire/handler"
)

// programs are the roles of the test binary when a handler runs it; its first argument
// selects one.
var programs = map[string]func(args []string) int{
	"argv": func(args []string) int { return printJSON(args) },
	"env": func([]string) int {
		env := make(map[string]string)
		for _, e := range os.Environ() {
			name, value, _ := strings.Cut(e, "=")
			env[name] = value
		}
		return printJSON(env)
	},
	"cat":     func([]string) int { return copyAll(os.Stdout, os.Stdin) },
	"catfile": catFile,
	"exit":    exit,
	"spew":    spew,
	"where": func([]string) int {
		dir, err := os.Getwd()
		fmt.Print(dir)
		return btoi(err != nil)
	},
	"die": func([]string) int {
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	},
	"wait":     func(args []string) int { return wait(args, true) },
	"deaf":     func(args []string) int { return wait(args, false) },
	"probe":    probe,
	"consumed": consumed,
}

const programArg = "balefire-test-program"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == programArg {
		// Not os.Exit: under the race detector it sleeps for a second.
		syscall.Exit(programs[os.Args[2]](os.Args[3:]))
	}
	goleak.VerifyTestMain(m)
}

// program returns the command line that runs the test binary as name.
func program(t testing.TB, name string, args ...string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if programs[name] == nil {
		t.Fatalf("there is no program %s in %v", name, slices.Collect(maps.Keys(programs)))
	}
	return append([]string{self, programArg, name}, args...)
}

func newHandler(t testing.TB, cfg Config) *Handler {
	t.Helper()
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// run calls a handler created from cfg with r.
func run(t testing.TB, cfg Config, r *handler.Run) *handler.Result {
	t.Helper()
	return handler.Call(t.Context(), newHandler(t, cfg), r)
}

func printJSON(v any) int { return btoi(json.NewEncoder(os.Stdout).Encode(v) != nil) }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func copyAll(w io.Writer, r io.Reader) int {
	_, err := io.Copy(w, r)
	return btoi(err != nil)
}

// catFile prints the file named by its argument or by the environment.
func catFile(args []string) int {
	path := os.Getenv("BALEFIRE_BODY_FILE")
	if len(args) > 0 {
		path = args[0]
	}
	f, err := os.Open(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer f.Close()
	if n := copyAll(io.Discard, os.Stdin); n != 0 { // it is empty, not closed or ours
		return n
	}
	return copyAll(os.Stdout, f)
}

func exit(args []string) int {
	fmt.Print("said before the end")
	fmt.Fprint(os.Stderr, "why it ended")
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return 99
	}
	return n
}

// spew writes args[0] bytes to the stream args[1].
func spew(args []string) int {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return 99
	}
	w := os.Stdout
	if args[1] == "stderr" {
		w = os.Stderr
	}
	b := bufio.NewWriterSize(w, 1<<16)
	for i := range n {
		_ = b.WriteByte("0123456789abcdef"[i%16])
	}
	return btoi(b.Flush() != nil)
}

// wait reports to the address args[0] and then sleeps for a long time. Unless it is
// polite it ignores SIGTERM.
func wait(args []string, polite bool) int {
	if !polite {
		signal.Ignore(syscall.SIGTERM)
	}
	if conn := report(args[0]); conn != nil {
		defer conn.Close()
	}
	<-time.After(time.Hour)
	return 0
}

// report tells the test that this process is up.
func report(addr string) net.Conn {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return nil
	}
	fmt.Fprintln(conn, os.Getpid())
	return conn
}

// probe exits as the key requests.
func probe(args []string) int {
	if len(args) != 2 || args[0] != ProbeFlag || os.Getenv("BALEFIRE_IDEMPOTENCY_KEY") != args[1] {
		return 0
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return 1
	}
	return n
}

// consumed reports how its input ended: it must never see EOF on a broken one.
func consumed(args []string) int {
	conn := report(args[0])
	if conn == nil {
		return 1
	}
	n, err := io.Copy(io.Discard, os.Stdin)
	fmt.Fprintln(conn, n, err)
	return 0
}

// A rendezvous is where processes report to the test.
type rendezvous struct {
	listener *net.TCPListener
}

// testTimeout bounds how long a test waits for an event: it catches hangs and does not
// measure speed.
const testTimeout = 2 * time.Minute

func newRendezvous(t testing.TB) *rendezvous {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &rendezvous{l}
}

func (m *rendezvous) addr() string { return m.listener.Addr().String() }

// A guest is a process that has reported.
type guest struct {
	pid  int
	conn net.Conn
}

// await waits for n processes.
func (m *rendezvous) await(t testing.TB, n int) []guest {
	t.Helper()
	var guests []guest
	for range n {
		conn, err := m.listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
			t.Fatal(err)
		}
		g := guest{conn: conn}
		if _, err := fmt.Fscanln(conn, &g.pid); err != nil {
			t.Fatal(err)
		}
		guests = append(guests, g)
	}
	return guests
}

// ended waits until the process has exited, which closes its connection.
func (g guest) ended(t testing.TB) {
	t.Helper()
	if _, err := io.Copy(io.Discard, g.conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("process %d: %v", g.pid, err)
	}
}
