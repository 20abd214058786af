package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	points "github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

// open serves the API server of n on a socket and returns an HTTP client for it.
func open(t *testing.T, n *node.Node, cfg Config) (c *http.Client, stop func() error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- New(n, cfg).Serve(ctx, l) }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-ended
			tr.CloseIdleConnections()
		}
		return result
	}
	t.Cleanup(func() { _ = stop() })
	return &http.Client{Transport: tr}, stop
}

// TestSocket checks the permissions of the socket, and that it is removed with its node.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "here", "node.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|SocketMode {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if l.Addr().String() != path {
		t.Errorf("address %s", l.Addr())
	}
	dir, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(dir) != 1 {
		t.Errorf("files next to the socket: %v, %v", dir, err)
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("a second node: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket was not removed: %v", err)
	}
}

// TestASocketLeftBehind checks that the socket of a killed node is replaced, and
// that the old owner, if it still exists, does not remove the new one.
func TestASocketLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.sock")
	dead, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.(*socket).UnixListener.Close(); err != nil { // killed: nothing is removed
		t.Fatal(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the new node's socket was removed: %v", err)
	}
	if err := errors.Join(conn.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}

func TestNoPlaceForASocket(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(file, []byte("keep me"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file:                              "not a socket",
		dir:                               "not a socket",
		filepath.Join(file, "s"):          "not a directory",
		"/tmp/" + strings.Repeat("x", 99): "too long",
	} {
		if l, err := Listen(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", path, l, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep me" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// TestNoOtherListener checks that the API server, which has no authentication, is never
// exposed to a network.
func TestNoOtherListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := New(nodetest.Open(t, nil), Config{}).Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "only on unix sockets") {
		t.Errorf("err = %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}

// TestPprofIsOnTheSocket checks that the socket serves profiles, and that other
// routes do not change.
func TestPprofIsOnTheSocket(t *testing.T) {
	c, _ := open(t, nodetest.Open(t, nil), Config{})
	for path, status := range map[string]int{"/debug/pprof/": 200, "/debug/pprof/heap": 200, "/debug/pprof/cmdline": 200, "/v1/status": 200, "/v2": 404} {
		res, err := c.Get("http://node" + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != status {
			t.Errorf("%s: %d, %v", path, res.StatusCode, err)
		}
	}
}

// TestTooMuchIsAnsweredWhileItIsSent checks that a client that sends 11 MB, or an endless
// body, receives a problem instead of a broken connection.
func TestTooMuchIsAnsweredWhileItIsSent(t *testing.T) {
	c, _ := open(t, nodetest.Open(t, nil), Config{Payload: 1 << 20})
	big := `{"target":"l","kind":"k","text":"` + strings.Repeat("x", 11<<20) + `"}`
	for name, body := range map[string]io.Reader{"known size": strings.NewReader(big), "unknown size": io.MultiReader(strings.NewReader(big))} {
		res, err := c.Post("http://node/v1/tasks", jsonType, body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if p := problemOfBody(t, res, string(b)); p.Status != 413 || !strings.Contains(p.Fix, "stream") {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestRefusedBodyIsReadToItsEnd checks that a client that waited for 100 Continue, is then
// refused within its body and reads no answer before it has sent everything receives the
// problem instead of a broken connection.
func TestRefusedBodyIsReadToItsEnd(t *testing.T) {
	n := nodetest.Open(t, func(cfg *node.Config) { cfg.Store.MaxBlob = 1 << 20 })
	c, _ := open(t, n, Config{})
	conn, answers := dialAPI(t, c)
	body := make([]byte, 9<<20)
	_, _ = rand.Read(body) // a smaller one, compressed, would not be refused
	fmt.Fprintf(conn, "POST /v1/tasks?target=here&kind=k HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	if res, err := http.ReadResponse(answers, nil); err != nil || res.StatusCode != http.StatusContinue {
		t.Fatalf("%+v, %v", res, err)
	}
	if sent, err := conn.Write(body); err != nil {
		t.Errorf("after %d of %d bytes: %v", sent, len(body), err)
	}
	expectProblem(t, answers, wire.CodeTooLarge)
}

// dialAPI connects to the server of c, for what an HTTP client does not do, for a minute.
func dialAPI(t *testing.T, c *http.Client) (conn net.Conn, answers *bufio.Reader) {
	t.Helper()
	conn, err := c.Transport.(*http.Transport).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn, bufio.NewReader(conn)
}

// expectProblem reads an answer that must be a problem with this code.
func expectProblem(t *testing.T, answers *bufio.Reader, want wire.Code) {
	t.Helper()
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	if p := problemOfBody(t, res, string(b)); p.Code != want {
		t.Errorf("%+v", p)
	}
}

// TestRefusedBeforeItsBody checks that a client that waits for an answer before it sends its
// body, or the rest of it, is answered.
func TestRefusedBeforeItsBody(t *testing.T) {
	c, _ := open(t, nodetest.Open(t, nil), Config{Payload: 1 << 20})
	for name, tt := range map[string]struct {
		head string
		body int
		want wire.Code
	}{
		"no target":          {"POST /v1/tasks?kind=k HTTP/1.1\r\nHost: node\r\nContent-Length: 9000000\r\nExpect: 100-continue\r\n\r\n", 0, wire.CodeInvalid},
		"no target, chunked": {"POST /v1/tasks?kind=k HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n", 0, wire.CodeInvalid},
		"too large":          {"POST /v1/tasks HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: 11000000\r\n\r\n", 4096, wire.CodeTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			conn, answers := dialAPI(t, c)
			if _, err := conn.Write(append([]byte(tt.head), make([]byte, tt.body)...)); err != nil {
				t.Fatal(err)
			}
			expectProblem(t, answers, tt.want)
		})
	}
}

// TestAStopLetsRequestsEnd checks that a stop waits for requests in progress, but not
// longer than the grace period.
func TestAStopLetsRequestsEnd(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprintf("the sender ends %v", ends), func(t *testing.T) {
			n := newNode(t, nil)
			grace := 300 * time.Millisecond
			if ends {
				grace = time.Minute // only catches hangs
			}
			var log bytes.Buffer
			c, stop := open(t, n, Config{Grace: grace, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			r, w := io.Pipe()
			type end struct {
				code int
				err  error
			}
			got := make(chan end, 1)
			go func() {
				res, err := c.Post("http://node/v1/tasks?target=here&kind=later", "application/octet-stream", r)
				if err != nil {
					got <- end{0, err}
					return
				}
				got <- end{res.StatusCode, res.Body.Close()}
			}()
			if _, err := w.Write(make([]byte, 1<<20)); err != nil { // more than a socket buffers: the server is reading it
				t.Fatal(err)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			if ends {
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-stopped; err != nil {
				t.Errorf("stop: %v", err)
			}
			if !ends {
				_ = w.CloseWithError(io.ErrClosedPipe)
			}
			if e := <-got; ends && (e.code != 202 || e.err != nil) || !ends && e.err == nil {
				t.Errorf("the request ended with %d, %v", e.code, e.err)
			}
			if taken := len(tasks(t, n, wire.Query{Role: wire.RoleHome})) == 1; taken != ends {
				t.Errorf("a task was accepted: %v", taken)
			}
			if cut := strings.Contains(log.String(), "aborted"); cut == ends {
				t.Errorf("log: %s", &log)
			}
		})
	}
}

// TestNothingIsLeftRunning checks I15 for the API server: after its stop none of its
// goroutines runs.
func TestNothingIsLeftRunning(t *testing.T) {
	n := newNode(t, nil)
	id := submitted(t, n, wire.Request{Target: "here", Kind: "later"})
	c, stop := open(t, n, Config{})
	done := make(chan error, 20)
	for range 20 {
		go func() {
			res, err := c.Get("http://node/v1/tasks/" + id + "/wait?timeout=10m")
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				err = res.Body.Close()
				if res.StatusCode != http.StatusServiceUnavailable {
					err = fmt.Errorf("status %d", res.StatusCode)
				}
			}
			done <- err
		}()
	}
	nodetest.AwaitRequests(t, n, 20)
	if len(serving()) < 20 {
		t.Errorf("only %d goroutines serve", len(serving()))
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for range 20 {
		if err := <-done; err != nil {
			t.Errorf("the caller that waited when the node stopped got %v", err)
		}
	}
	c.CloseIdleConnections()
	deadline := time.Now().Add(time.Minute)
	for len(serving()) > 0 && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if left := serving(); len(left) > 0 {
		t.Errorf("%d goroutines are left\n%s", len(left), strings.Join(left, "\n\n"))
	}
}

// serving returns the stacks of the goroutines of HTTP servers and clients.
func serving() (stacks []string) {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "net/http.") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// TestAPanicIsAProblem checks that a panic returns a problem, and is logged with its stack.
func TestAPanicIsAProblem(t *testing.T) {
	n := newNode(t, func(cfg *node.Config) {
		cfg.Fail = func(point string) error {
			if point == points.PointSealed {
				panic("index out of range")
			}
			return nil
		}
	})
	var log bytes.Buffer
	c, stop := open(t, n, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	res, err := c.Post("http://node/v1/tasks", jsonType, strings.NewReader(selfTask))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if p := problemOfBody(t, res, string(b)); p.Status != 500 || p.Code != wire.CodeInternal {
		t.Errorf("%+v", p)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "TestAPanicIsAProblem") {
		t.Errorf("log: %s", &log)
	}
}

// TestMetrics checks the conventions of Prometheus, and that no label contains a value
// chosen by a client: neither an id nor a method.
func TestMetrics(t *testing.T) {
	n := newNode(t, nil)
	id := submitted(t, n, wire.Request{Target: "here", Kind: "later"})
	h := New(n, Config{}).Handler()
	New(n, Config{}) // a second server of the same node uses the same metrics
	for _, r := range []string{"GET /v1/tasks/" + id, "GET /v1/tasks/" + id + "/cancel", "BREW /coffee", "POST /v1/tasks"} {
		method, path, _ := strings.Cut(r, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		h.ServeHTTP(discard{http.Header{}}, req)
	}
	problems, err := testutil.GatherAndLint(n.Registry())
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	want := `
		# HELP balefire_http_requests_total Requests answered; a rejected GET of a write-only route has route none and code 405.
		# TYPE balefire_http_requests_total counter
		balefire_http_requests_total{code="200",method="GET",route="GET /v1/tasks/{id}"} 1
		balefire_http_requests_total{code="404",method="other",route="none"} 1
		balefire_http_requests_total{code="405",method="GET",route="none"} 1
		balefire_http_requests_total{code="422",method="POST",route="POST /v1/tasks"} 1
	`
	if err := testutil.GatherAndCompare(n.Registry(), strings.NewReader(want), "balefire_http_requests_total"); err != nil {
		t.Error(err)
	}
	doc, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile("`(balefire_http_[a-z_]+)`").FindAllStringSubmatch(string(doc), -1) {
		if count, err := testutil.GatherAndCount(n.Registry(), name[1]); err != nil || count == 0 {
			t.Errorf("%s is documented and there is no such metric, %v", name[1], err)
		}
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header       { return d.header }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
