package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// serve starts the API server of n on a socket and returns a client for it and a function
// that stops it.
func serve(t *testing.T, n *node.Node) (c *client.Client, stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.sock")
	l, err := api.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.New(n, api.Config{Logger: slog.New(slog.DiscardHandler)}).Serve(ctx, l) }()
	c = client.New(path)
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		c.Close()
	}
	t.Cleanup(stop)
	return c, stop
}

// canned serves given answers on a socket, and returns a client for them and a function that
// stops the server.
func canned(t *testing.T, answers map[string]any) (c *client.Client, n *clienttest.Node, stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.sock")
	n = clienttest.New(answers)
	stop = clienttest.Serve(t, n, path)
	c = client.New(path)
	t.Cleanup(c.Close)
	return c, n, stop
}

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const taskID = "01a1f84f-fb79-727b-b679-7a95fb475002"

// A method is one call of a method of the client.
type method struct {
	name, request string
	answer        any // of the node
	do            func(context.Context, *client.Client) (any, error)
}

// page returns the answer to a request for a list.
func page[T any](items ...T) wire.Page[T] { return wire.Page[T]{Items: items} }

// TestEveryMethod calls each method once over a real socket, and checks the request and
// that the answer arrives unchanged.
func TestEveryMethod(t *testing.T) {
	tried := map[string]bool{"Close": true, "Events": true} // see TestEvents
	c, n, _ := canned(t, nil)
	for _, m := range methods() {
		t.Run(m.name, func(t *testing.T) {
			tried[m.name] = true
			n.Answer("/", m.answer)
			got, err := m.do(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if requests := strings.Join(n.Requests(), "; "); requests != m.request {
				t.Errorf("the node was asked %q, want %q", requests, m.request)
			}
			want := reflect.ValueOf(m.answer)
			if rv := reflect.ValueOf(got); rv.Kind() == reflect.Slice && want.Kind() == reflect.Struct {
				want = want.FieldByName("Items")
			}
			if got != nil && (want.IsZero() || !reflect.DeepEqual(got, want.Interface())) {
				t.Errorf("the answer arrived as %+v, want %+v", got, want)
			}
		})
	}
	for m := range reflect.TypeFor[*client.Client]().Methods() {
		if !tried[m.Name] {
			t.Errorf("method %s is not covered", m.Name)
		}
	}
}

// TestEveryMethodIsARoute sends the same requests to a real node: it has each route, and
// finds each document and query valid, whether or not it can do what they ask for.
func TestEveryMethodIsARoute(t *testing.T) {
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	c, _ := serve(t, n)
	done := 0
	for _, m := range methods() {
		_, err := m.do(t.Context(), c)
		if err == nil {
			done++
			continue
		}
		p, ok := errors.AsType[*wire.Problem](err)
		if !ok || p.Unrouted() || p.Code == wire.CodeMethod || p.Code == wire.CodeType || p.Status == http.StatusBadRequest || len(p.Errors) > 0 || p.Status == http.StatusInternalServerError {
			t.Errorf("%s: %+v, %v", m.name, p, err)
		}
	}
	if done < 25 {
		t.Errorf("the node did only %d of the requests", done)
	}
}

// TestARequestCrossesTheSocketWhole checks that no field of a request is lost or changed
// on the way, inline, in a batch and with a stream.
func TestARequestCrossesTheSocketWhole(t *testing.T) {
	var got []wire.Request
	c, _, _ := canned(t, map[string]any{
		"POST /v1/tasks": func(r *http.Request) any {
			var req wire.Request
			var err error
			if r.Header.Get("Content-Type") == "application/octet-stream" {
				if req, err = wire.RequestOfQuery(r.URL.Query()); err == nil {
					req.Body, err = io.ReadAll(r.Body)
				}
			} else {
				err = json.NewDecoder(r.Body).Decode(&req)
			}
			got = append(got, req)
			if err != nil {
				return err
			}
			return testSubmitted
		},
		"POST /v1/tasks/batch": func(r *http.Request) any {
			return acceptAll(r, func(req wire.Request) error { got = append(got, req); return nil })
		},
	})
	full := wire.Request{
		Target: "laptop", Kind: "shell", Class: "critical", Mode: "at_most_once", TTL: wire.Duration(90 * time.Minute), Delay: wire.Duration(1500 * time.Millisecond),
		Key: "a key, \"quoted\" & ünï", Order: "o", OnDead: "block", Args: []string{"-a", "", "two words", "a,b"}, Body: []byte{0, 1, 0xff},
		Type: "application/x-thing", Labels: map[string]string{"a": "b=c", "d": ""}, Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Retries: 9,
		MaxResult: 1 << 40, Require: []string{"gpu=yes", "a,b"}, Prefer: []string{"fast", "two words"},
	}
	for f := range reflect.TypeFor[wire.Request]().Fields() {
		if v := reflect.ValueOf(full).FieldByIndex(f.Index); v.IsZero() && f.Name != "Stream" && f.Name != "At" { // both below
			t.Errorf("field %s is not covered", f.Name)
		}
	}
	later := wire.Request{Target: "laptop", Kind: "shell", At: start.Add(1234567 * time.Nanosecond), Class: "normal", Mode: "at_least_once"}
	if _, err := c.Submit(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	if _, errs := c.SubmitMany(t.Context(), []wire.Request{full, later}); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	streamed := full
	streamed.Body, streamed.Stream = nil, strings.NewReader("a stream")
	if _, err := c.Submit(t.Context(), streamed); err != nil {
		t.Fatal(err)
	}
	streamed.Body, streamed.Stream = []byte("a stream"), nil // as it arrives
	if want := []wire.Request{full, full, later, streamed}; !reflect.DeepEqual(got, want) {
		t.Errorf("requests\n%+v, want\n%+v", got, want)
	}
}

// acceptAll answers a batch like a node that accepts the tasks for which accept returns nil.
func acceptAll(r *http.Request, accept func(wire.Request) error) any {
	var b wire.Batch
	for dec := json.NewDecoder(r.Body); ; {
		var req wire.Request
		switch err := dec.Decode(&req); {
		case err == io.EOF:
			return b
		case err != nil:
			return err
		}
		item := wire.BatchItem{Status: http.StatusAccepted, Task: &testSubmitted}
		if err := accept(req); err != nil {
			p := api.ProblemOf(err)
			item = wire.BatchItem{Status: p.Status, Problem: p}
		}
		b.Items = append(b.Items, item)
	}
}

// TestLargeStream sends more bytes than a JSON document may have.
func TestLargeStream(t *testing.T) {
	const size = 96 << 20
	sent, received, n := sha256.New(), sha256.New(), int64(0)
	c, _, _ := canned(t, map[string]any{"POST /v1/tasks": func(r *http.Request) any {
		var err error
		if n, err = io.Copy(received, r.Body); err != nil {
			return err
		}
		return testSubmitted
	}})
	src := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
	if _, err := c.Submit(t.Context(), wire.Request{Target: "laptop", Kind: "ingest", Stream: src}); err != nil {
		t.Fatal(err)
	}
	if n != size || !bytes.Equal(received.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d bytes arrived with the digest %x, want %d with %x", n, received.Sum(nil), size, sent.Sum(nil))
	}
}

// TestInterruptedStreamIsNoTask checks that a partial body is never accepted as a
// complete one.
func TestInterruptedStreamIsNoTask(t *testing.T) {
	n, _ := realNode(t)
	c, stop := serve(t, n)
	boom := errors.New("the disk of the sender is gone")
	body := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), iotest.ErrReader(boom))
	if _, err := c.Submit(t.Context(), wire.Request{Target: "here", Kind: "sum", Stream: body}); !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
	stop()
	if tasks, err := n.Views.Tasks(wire.Query{}); err != nil || len(tasks.Items) > 0 {
		t.Errorf("a partial body became a task: %+v, %v", tasks.Items, err)
	}
}

// TestARefusedStreamIsNotSent checks that a client asks before it sends a large body.
func TestARefusedStreamIsNotSent(t *testing.T) {
	c, _ := real(t)
	read := 0
	src := readFunc(func(p []byte) (int, error) { read += len(p); return len(p), nil }) // endless
	_, err := c.Submit(t.Context(), wire.Request{Target: "desktop", Kind: "ingest", Stream: src})
	if !errors.Is(err, wire.ErrNotFound) || read > 1<<20 {
		t.Errorf("err = %v after %d bytes", err, read)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// TestErrorsCrossTheSocket checks that errors.Is works through the socket, and that a
// problem contains a fix.
func TestErrorsCrossTheSocket(t *testing.T) {
	c, n, _ := canned(t, nil)
	all := []error{wire.ErrNotFound, wire.ErrInvalid, wire.ErrRefused, wire.ErrKeyConflict, wire.ErrFull, wire.ErrDenied, wire.ErrDraining}
	for _, want := range all {
		failure := fmt.Errorf("show it: %w: because", want)
		n.Fail(failure)
		_, err := c.Task(t.Context(), taskID)
		p, ok := errors.AsType[*wire.Problem](err)
		if !ok || p.Detail != failure.Error() || p.Fix == "" {
			t.Errorf("%v arrived as %#v", want, err)
		}
		for _, e := range all {
			if errors.Is(err, e) != (e == want) {
				t.Errorf("%v arrived, and errors.Is(err, %v) is %v", want, e, errors.Is(err, e))
			}
		}
	}
}

// TestManyInBatches checks that more tasks than fit in a batch arrive in order, and
// that an invalid task does not affect others.
func TestManyInBatches(t *testing.T) {
	var orders []string
	c, n, _ := canned(t, map[string]any{"POST /v1/tasks/batch": func(r *http.Request) any {
		return acceptAll(r, func(req wire.Request) error {
			if req.Key == "bad" {
				return wire.ErrKeyConflict
			}
			orders = append(orders, req.Order)
			return nil
		})
	}})
	rs := make([]wire.Request, 2100)
	for i := range rs {
		rs[i] = wire.Request{Target: "laptop", Kind: "shell", Order: fmt.Sprint(i)}
	}
	rs[7].Key, rs[9].Stream = "bad", strings.NewReader("x")
	out, errs := c.SubmitMany(t.Context(), rs)
	for i, err := range errs {
		switch want := i == 7 || i == 9; {
		case (err != nil) != want:
			t.Fatalf("task %d: %v", i, err)
		case !want && out[i].ID == "":
			t.Fatalf("task %d has no id", i)
		}
	}
	if !errors.Is(errs[7], wire.ErrKeyConflict) || !errors.Is(errs[9], wire.ErrInvalid) {
		t.Errorf("errors %v, %v", errs[7], errs[9])
	}
	if requests := n.Requests(); len(requests) != 4 {
		t.Errorf("%d batches, want 4", len(requests))
	}
	var want []string
	for i := range rs {
		if i != 7 && i != 9 {
			want = append(want, fmt.Sprint(i))
		}
	}
	if !slices.Equal(orders, want) {
		t.Errorf("the tasks arrived in the order %q", orders)
	}
}

// TestBatchesKeepBelowTheLimit checks that large tasks are distributed over batches by
// size.
func TestBatchesKeepBelowTheLimit(t *testing.T) {
	var sizes []int
	c, _, _ := canned(t, map[string]any{"POST /v1/tasks/batch": func(r *http.Request) any {
		sizes = append(sizes, 0)
		return acceptAll(r, func(wire.Request) error { sizes[len(sizes)-1]++; return nil })
	}})
	rs := make([]wire.Request, 5)
	for i := range rs {
		rs[i] = wire.Request{Target: "laptop", Kind: "shell", Body: make([]byte, 3<<20)}
	}
	_, errs := c.SubmitMany(t.Context(), rs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(sizes, []int{2, 2, 1}) {
		t.Errorf("batches of %d tasks", sizes)
	}
}

// TestNodeDown checks that a node that is not running has an error of its own.
func TestNodeDown(t *testing.T) {
	dir := t.TempDir()
	deserted := filepath.Join(dir, "deserted.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: deserted, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "never.sock"), deserted} {
		_, err := client.New(path).Status(t.Context())
		if !errors.Is(err, client.ErrNodeDown) || !strings.Contains(err.Error(), "balefire-node run") {
			t.Errorf("%s: %v", path, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.New(deserted).Status(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestForeignServer checks that an answer from another program is reported as such.
func TestForeignServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/status":
			http.Error(w, "<html>nginx</html>", 502)
		case "/v1/store":
			http.Redirect(w, r, "/v1/status", 301)
		default:
			_, _ = io.WriteString(w, "{")
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-ended })
	c := client.New(path)
	for name, ask := range map[string]func() error{
		"502":      func() error { _, err := c.Status(t.Context()); return err },
		"redirect": func() error { _, err := c.StoreStats(t.Context()); return err },
		"not json": func() error { _, err := c.Peers(t.Context()); return err },
	} {
		if err := ask(); err == nil || errors.Is(err, client.ErrNodeDown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInvalidNames checks that a missing name never results in another route.
func TestInvalidNames(t *testing.T) {
	c, n, _ := canned(t, nil)
	for _, name := range []string{"", ".", ".."} {
		if err := c.Forget(t.Context(), name); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("forget %q: %v", name, err)
		}
		if err := c.RemoveHandler(t.Context(), name); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	if requests := n.Requests(); requests != nil {
		t.Errorf("the node was asked %q", requests)
	}
}

// TestWait checks that Wait returns when the task ends, or when the context is done, with
// the last state of the task.
func TestWait(t *testing.T) {
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	c, _ := serve(t, n)
	s, err := c.Submit(t.Context(), wire.Request{Target: "here", Kind: "later"}) // without a handler it waits
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Wait(ctx, s.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	if err := c.AddHandler(t.Context(), wire.HandlerSpec{Kind: "later", Type: wire.TypeEcho, Allow: []string{"peer:here"}}); err != nil {
		t.Fatal(err)
	}
	if task, err := c.Wait(t.Context(), s.ID); err != nil || task.State != "SUCCESS" {
		t.Errorf("%s, %v", task.State, err)
	}

	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	var requests atomic.Int32
	c, _, _ = canned(t, map[string]any{"GET /v1/tasks/{id}/wait": func(r *http.Request) any {
		if requests.Add(1) == 2 {
			cancel()
			<-r.Context().Done()
		}
		return clienttest.Status{Code: http.StatusAccepted, Value: wire.Task{ID: taskID, State: "RUNNING"}}
	}})
	if task, err := c.Wait(ctx, taskID); task.State != "RUNNING" || !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled wait returned %+v, %v", task, err)
	}
}

// TestWaitTellsOneState checks that nothing of an earlier state is in the one that Wait returns.
func TestWaitTellsOneState(t *testing.T) {
	var asked atomic.Bool
	ended := wire.Task{ID: taskID, State: "SUCCESS"}
	c, _, _ := canned(t, map[string]any{"GET /v1/tasks/{id}/wait": func(*http.Request) any {
		if asked.Swap(true) {
			return ended
		}
		return clienttest.Status{Code: http.StatusAccepted, Value: wire.Task{ID: taskID, State: "RETRYING", Ending: wire.Ending{Reason: "it failed", Stderr: "why"}}}
	}})
	if task, err := c.Wait(t.Context(), taskID); err != nil || !reflect.DeepEqual(task, ended) {
		t.Errorf("%+v, %v", task, err)
	}
}

// TestAStopEndsWaiting checks that a node can stop while a caller waits, and that the
// caller gets an error; the long form, for an idle machine, also checks that it is prompt.
func TestAStopEndsWaiting(t *testing.T) {
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	c, stop := serve(t, n)
	s, err := c.Submit(t.Context(), wire.Request{Target: "here", Kind: "later"})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.Wait(context.Background(), s.ID)
		got <- err
	}()
	nodetest.AwaitRequests(t, n, 1)
	begin := time.Now()
	stop()
	if err := <-got; !errors.Is(err, wire.ErrDraining) {
		t.Errorf("the waiting caller got %v", err)
	}
	if took := time.Since(begin); os.Getenv("BALEFIRE_LONG") != "" && took > 4*time.Second {
		t.Errorf("the stop took %s", took)
	}
}

// TestEvents checks that events arrive as they occur, that the numbers show a gap, and
// that a stop of the node is distinguished from the end of the caller's context.
func TestEvents(t *testing.T) {
	line := func(v any) string { b, _ := json.Marshal(v); return string(b) + "\n" }
	c, n, stop := canned(t, map[string]any{"GET /v1/events": lines(line(happened(4)) + line(wire.Missed{Missed: 2}) + line(happened(7)))})
	var got []wire.NodeEvent
	var last error
	for e, err := range c.Events(t.Context(), 3) {
		if last = err; err != nil {
			break
		}
		if got = append(got, e); len(got) == 2 {
			stop()
		}
	}
	if !errors.Is(last, wire.ErrDraining) {
		t.Errorf("after the stop: %v", last)
	}
	if want := []wire.NodeEvent{happened(4), happened(7)}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if requests := n.Requests(); !slices.Equal(requests, []string{"GET /v1/events?after=3"}) {
		t.Errorf("the node was asked %q", requests)
	}
	last = nil
	for _, last = range c.Events(t.Context(), 7) {
	}
	if !errors.Is(last, client.ErrNodeDown) {
		t.Errorf("without a node: %v", last)
	}
}

// TestFollowingEndsWithItsCaller checks that following returns the error of the caller's
// context.
func TestFollowingEndsWithItsCaller(t *testing.T) {
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	c, _ := serve(t, n)
	nodetest.Happen(t, n, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := 0
	for _, err := range c.Events(ctx, 0) {
		if seen++; seen == 2 && !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
		cancel()
	}
	if seen != 2 {
		t.Errorf("it yielded %d times", seen)
	}
}

// TestResult checks that a result arrives unchanged, with its task,
// and that a partial result is an error.
func TestResult(t *testing.T) {
	output := strings.Repeat("line\n", 100_000)
	sum := sha256.Sum256([]byte(output))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	cut := 0
	c, _, _ := canned(t, map[string]any{"GET /v1/tasks/{id}/result": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, v := range map[string]string{"Content-Type": "text/plain", "Content-Length": fmt.Sprint(len(output)), "ETag": `"` + digest + `"`, "Balefire-State": "SUCCESS"} {
			w.Header().Set(name, v)
		}
		if _, err := io.WriteString(w, output[:len(output)-cut]); err != nil || cut > 0 {
			panic(http.ErrAbortHandler)
		}
	})})
	r, task, err := c.Result(t.Context(), taskID)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || string(b) != output {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if task.State != "SUCCESS" || task.ResultSize != 500_000 || task.ResultHash != digest || task.ResultType != "text/plain" || task.Truncated {
		t.Errorf("task %+v", task)
	}
	cut = 7
	r, _, err = c.Result(t.Context(), taskID)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a truncated result was read as %d bytes, %v", len(b), err)
	}
	_ = r.Close()
}
