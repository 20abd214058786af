package client_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/apitest"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// serve starts the API server of n on a socket and returns a client for it and a function
// that stops it.
func serve(t *testing.T, n api.Node) (c *client.Client, stop func()) {
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

// TestEveryMethod calls each method once over a real socket and checks the resulting
// call of the node.
func TestEveryMethod(t *testing.T) {
	n := apitest.New()
	c, _ := serve(t, n)
	ctx, id := t.Context(), apitest.ID
	q := wire.Query{
		States: []string{"PENDING", "SENT"}, Role: "home", Peer: "p & q", Kind: "k",
		Label: "a=b c", Before: apitest.Start, After: apitest.Start.Add(-time.Hour), Cursor: "x/y+z", Limit: 7,
	}
	const chosen = "states=PENDING+SENT role=home peer=p & q kind=k label=a=b c cursor=x/y+z before=2026-11-20T12:00:00Z after=2026-11-20T11:00:00Z limit=7"
	tests := []struct {
		name, call string
		do         func() (any, error)
	}{
		{"Submit", "Submit laptop shell", func() (any, error) { return c.Submit(ctx, wire.Request{Target: "laptop", Kind: "shell"}) }},
		{"SubmitMany", "SubmitMany 1", func() (any, error) {
			_, errs := c.SubmitMany(ctx, []wire.Request{{Target: "laptop", Kind: "shell"}})
			return nil, errs[0]
		}},
		{"Task", "Task " + id, func() (any, error) { return c.Task(ctx, id) }},
		{"Tasks", "Tasks " + chosen, func() (any, error) { return c.Tasks(ctx, q) }},
		{"DeadLetters", "DeadLetters " + chosen, func() (any, error) { return c.DeadLetters(ctx, q) }},
		{"Wait", "Wait " + id, func() (any, error) { return c.Wait(ctx, id) }},
		{"Result", "Result " + id, func() (any, error) {
			r, _, err := c.Result(ctx, id)
			if err != nil {
				return nil, err
			}
			return nil, r.Close()
		}},
		{"Receipts", "Receipts " + id, func() (any, error) { return c.Receipts(ctx, id) }},
		{"Cancel", "Cancel " + id + ` hard=true "too slow"`, func() (any, error) { return c.Cancel(ctx, id, true, "too slow") }},
		{"Schedules", "Schedules", func() (any, error) { return c.Schedules(ctx) }},
		{"AddSchedule", `AddSchedule {"queue":"build","name":"n","cron":"@daily","kind":"shell"}`, func() (any, error) {
			return c.AddSchedule(ctx, wire.ScheduleSpec{Queue: "build", Name: "n", Cron: "@daily", ScheduledTask: wire.ScheduledTask{Kind: "shell"}})
		}},
		{"RemoveSchedule", "RemoveSchedule a/b n", func() (any, error) { return nil, c.RemoveSchedule(ctx, "a/b", "n") }},
		{"PauseSchedule", "PauseSchedule build n true", func() (any, error) { return c.PauseSchedule(ctx, "build", "n", true) }},
		{"SetClass", "SetClass " + id + " low", func() (any, error) { return c.SetClass(ctx, id, "low") }},
		{"MoveTask", "MoveTask " + id + " to night", func() (any, error) { return c.MoveTask(ctx, id, "night") }},
		{"Progress", "Progress " + id, func() (any, error) { return nil, c.Progress(ctx, id) }},
		{"UnblockLane", `UnblockLane a/b "x y"`, func() (any, error) { return c.UnblockLane(ctx, "a/b", "x y") }},
		{"Retry", "Retry " + id, func() (any, error) { return c.Retry(ctx, id) }},
		{"Purge", "Purge " + strings.Replace(strings.Replace(chosen, "cursor=x/y+z ", "", 1), "limit=7", "limit=0", 1) + " dry=true", func() (any, error) { return c.Purge(ctx, q, true) }},
		{"RetryDead", "Retry " + id, func() (any, error) { return c.RetryDead(ctx, wire.Redrive{IDs: []string{id}}) }},
		{"Peers", "Peers", func() (any, error) { return c.Peers(ctx) }},
		{"Peer", "Peer lap top/ü", func() (any, error) { return c.Peer(ctx, "lap top/ü") }},
		{"Block", "Block laptop", func() (any, error) { return nil, c.Block(ctx, "laptop") }},
		{"Unblock", "Unblock laptop", func() (any, error) { return nil, c.Unblock(ctx, "laptop") }},
		{"Forget", "Forget laptop", func() (any, error) { return nil, c.Forget(ctx, "laptop") }},
		{"Invite", `Invite "n" 1h work+send`, func() (any, error) {
			return c.Invite(ctx, wire.InviteOptions{Name: "n", TTL: wire.Duration(time.Hour), Roles: []string{"work", "send"}})
		}},
		{"Members", "Members", func() (any, error) { return c.Members(ctx) }},
		{"Member", "Member laptop", func() (any, error) { return c.Member(ctx, "laptop") }},
		{"MeshSummary", "MeshSummary", func() (any, error) { return c.MeshSummary(ctx) }},
		{"PruneMembers", "PruneMembers 36h0m0s limit=7 dry=true", func() (any, error) { return c.PruneMembers(ctx, 36*time.Hour, 7, true) }},
		{"Converge", "Converge", func() (any, error) { return c.Converge(ctx) }},
		{"Ping", "Ping lap top/ü", func() (any, error) { return c.Ping(ctx, "lap top/ü") }},
		{"Path", "Path laptop", func() (any, error) { return c.Path(ctx, "laptop") }},
		{"NetCheck", "NetCheck", func() (any, error) { return c.NetCheck(ctx) }},
		{"JoinRequests", "JoinRequests", func() (any, error) { return c.JoinRequests(ctx) }},
		{"Accept", `Accept K7QM-2ZPA-77WD "f" work+send`, func() (any, error) {
			return c.Accept(ctx, "K7QM-2ZPA-77WD", wire.AcceptOptions{Name: "f", Roles: []string{"work", "send"}})
		}},
		{"Rename", `Rename laptop "烽火台"`, func() (any, error) { return nil, c.Rename(ctx, "laptop", "烽火台") }},
		{"Revoke", `Revoke laptop "stolen"`, func() (any, error) { return nil, c.Revoke(ctx, "laptop", "stolen") }},
		{"EventPage", "Events after=3 limit=7 wait=2ms", func() (any, error) { return c.EventPage(ctx, 3, 7, 2*time.Millisecond) }},
		{"Queues", "Queues", func() (any, error) { return c.Queues(ctx) }},
		{"Queue", "Queue a/b ü", func() (any, error) { return c.Queue(ctx, "a/b ü") }},
		{"SetQueue", `SetQueue build {"home":"here","concurrency":0}`, func() (any, error) {
			return c.SetQueue(ctx, "build", wire.QueueSettings{Home: "here", Concurrency: new(0)})
		}},
		{"PauseQueue", `SetQueue build {"paused":true}`, func() (any, error) { return c.PauseQueue(ctx, "build") }},
		{"ResumeQueue", `SetQueue build {"paused":false}`, func() (any, error) { return c.ResumeQueue(ctx, "build") }},
		{"SeizeQueue", "SeizeQueue build from laptop", func() (any, error) { return c.SeizeQueue(ctx, "build", "laptop") }},
		{"HandOffQueue", `HandOffQueue build to ""`, func() (any, error) { return c.HandOffQueue(ctx, "build", "") }},
		{"Drain", "Drain true", func() (any, error) { return c.Drain(ctx, true) }},
		{"RecoverLeases", `RecoverLeases "n2" dry=true`, func() (any, error) { return c.RecoverLeases(ctx, "n2", true) }},
		{"Timeline", `Timeline task="" queue="build"`, func() (any, error) { return c.Timeline(ctx, wire.TimelineQuery{Queue: "build"}) }},
		{"Stop", "Stop handoff=true", func() (any, error) { return nil, c.Stop(ctx, true, time.Minute) }},
		{"Leases", `Leases queue="build" owner="lap top" role="home" limit=7`, func() (any, error) {
			return c.Leases(ctx, wire.LeaseFilter{Queue: "build", Owner: "lap top", Role: wire.RoleHome, Limit: 7})
		}},
		{"ReleaseLease", "ReleaseLease " + id, func() (any, error) { return c.ReleaseLease(ctx, id) }},
		{"LeaseConflicts", "LeaseConflicts", func() (any, error) { return c.LeaseConflicts(ctx) }},
		{"OwnershipEvents", "OwnershipEvents after=1 limit=7", func() (any, error) { return c.OwnershipEvents(ctx, 1, 7) }},
		{"Handlers", "Handlers", func() (any, error) { return c.Handlers(ctx) }},
		{"AddHandler", "AddHandler shell /bin/uname", func() (any, error) {
			return nil, c.AddHandler(ctx, wire.HandlerSpec{Kind: "shell", Exec: []string{"/bin/uname"}, Allow: []string{"peer:laptop"}})
		}},
		{"RemoveHandler", "RemoveHandler shell", func() (any, error) { return nil, c.RemoveHandler(ctx, "shell") }},
		{"Status", "Status", func() (any, error) { return c.Status(ctx) }},
		{"Why", "Why " + id, func() (any, error) { return c.Why(ctx, id) }},
		{"StoreStats", "", func() (any, error) { return c.StoreStats(ctx) }},
		{"Compact", "Compact", func() (any, error) { return nil, c.Compact(ctx) }},
		{"Snapshot", "Snapshot /backup/1", func() (any, error) { return nil, c.Snapshot(ctx, "/backup/1", "") }},
		{"Healthy", "Healthy", func() (any, error) { return nil, c.Healthy(ctx) }},
		{"Ready", "Ready", func() (any, error) { return nil, c.Ready(ctx) }},
		{"Metrics", "", func() (any, error) { return c.Metrics(ctx) }},
		{"OpenAPI", "", func() (any, error) { return c.OpenAPI(ctx) }},
		{"Profile", "", func() (any, error) { return c.Profile(ctx, "goroutine", 0) }},
	}
	tried := map[string]bool{"Close": true, "Events": true} // see TestEvents
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tried[tt.name] = true
			v, err := tt.do()
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(n.Calls(), "; "); got != tt.call {
				t.Errorf("the node was asked %q, want %q", got, tt.call)
			}
			if rv := reflect.ValueOf(v); v != nil && rv.IsZero() {
				t.Errorf("the answer is empty: %#v", v)
			}
		})
	}
	for m := range reflect.TypeFor[*client.Client]().Methods() {
		if !tried[m.Name] {
			t.Errorf("method %s is not covered", m.Name)
		}
	}
}

// TestAnswersArriveUnchanged compares received answers with those of the node.
func TestAnswersArriveUnchanged(t *testing.T) {
	n := apitest.New()
	c, _ := serve(t, n)
	want, _ := n.Task(t.Context(), apitest.ID)
	got, err := c.Task(t.Context(), apitest.ID)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("task\n%+v, want\n%+v (%v)", got, want, err)
	}
	st, err := c.Status(t.Context())
	if err != nil || !reflect.DeepEqual(st, n.Status(t.Context())) {
		t.Errorf("status %+v (%v)", st, err)
	}
}

// TestARequestCrossesTheSocketWhole checks that no field of a request is lost or changed
// on the way, inline, in a batch and with a stream.
func TestARequestCrossesTheSocketWhole(t *testing.T) {
	n := apitest.New()
	c, _ := serve(t, n)
	full := wire.Request{
		Target: "laptop", Kind: "shell", Class: "critical", Mode: "at_most_once", TTL: wire.Duration(90 * time.Minute), Delay: wire.Duration(1500 * time.Millisecond),
		Key: "a key, \"quoted\" & ünï", Order: "o", OnDead: "block", Args: []string{"-a", "", "two words", "a,b"}, Body: []byte{0, 1, 0xff},
		Type: "application/x-thing", Labels: map[string]string{"a": "b=c", "d": ""}, Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Retries: 9,
	}
	later := wire.Request{Target: "laptop", Kind: "shell", At: apitest.Start.Add(1234567 * time.Nanosecond), Class: "normal", Mode: "at_least_once"}
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
	got := n.Requests()
	for i, want := range []wire.Request{full, full, later, streamed} {
		if got[i].Stream != nil {
			got[i].Stream, want.Stream = nil, nil
		}
		if !reflect.DeepEqual(got[i], want) {
			t.Errorf("request %d\n%+v, want\n%+v", i, got[i], want)
		}
	}
	sum := sha256.Sum256([]byte("a stream"))
	if s := n.Streams(); len(s) != 1 || s[0] != (apitest.Streamed{Size: 8, Digest: hex.EncodeToString(sum[:])}) {
		t.Errorf("streams %+v", s)
	}
}

// TestLargeStream sends more bytes than a JSON document may have.
func TestLargeStream(t *testing.T) {
	n := apitest.New()
	c, _ := serve(t, n)
	const size = 96 << 20
	h := sha256.New()
	src := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), h)
	if _, err := c.Submit(t.Context(), wire.Request{Target: "laptop", Kind: "ingest", Stream: src}); err != nil {
		t.Fatal(err)
	}
	if s := n.Streams(); len(s) != 1 || s[0] != (apitest.Streamed{Size: size, Digest: hex.EncodeToString(h.Sum(nil))}) {
		t.Errorf("streams %+v", s)
	}
}

// TestInterruptedStreamIsNoTask checks that a partial body is never accepted as a
// complete one.
func TestInterruptedStreamIsNoTask(t *testing.T) {
	n := apitest.New()
	c, stop := serve(t, n)
	boom := errors.New("the disk of the sender is gone")
	body := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), iotest.ErrReader(boom))
	if _, err := c.Submit(t.Context(), wire.Request{Target: "laptop", Kind: "ingest", Stream: body}); !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
	stop()
	if n.Streams() != nil || n.Requests() != nil {
		t.Errorf("a partial body became a task: %+v", n.Streams())
	}
}

// TestARefusedStreamIsNotSent checks that a client asks before it sends a large body.
func TestARefusedStreamIsNotSent(t *testing.T) {
	n := apitest.New()
	n.Err = fmt.Errorf("%w: no peer called desktop", wire.ErrNotFound)
	c, _ := serve(t, n)
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
	n := apitest.New()
	c, _ := serve(t, n)
	all := []error{wire.ErrNotFound, wire.ErrInvalid, wire.ErrRefused, wire.ErrKeyConflict, wire.ErrFull, wire.ErrDenied, wire.ErrDraining}
	for _, want := range all {
		n.Err = fmt.Errorf("show it: %w: because", want)
		_, err := c.Task(t.Context(), apitest.ID)
		p, ok := errors.AsType[*wire.Problem](err)
		if !ok || p.Detail != n.Err.Error() || p.Fix == "" {
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
	n := apitest.New()
	n.PerItem = func(r wire.Request) error {
		if r.Key == "bad" {
			return wire.ErrKeyConflict
		}
		return nil
	}
	c, _ := serve(t, n)
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
	if calls := n.Calls(); len(calls) != 4 {
		t.Errorf("batches %q", calls)
	}
	for i, r := range n.Requests()[:7] {
		if r.Order != fmt.Sprint(i) {
			t.Errorf("task %d arrived as number %s", i, r.Order)
		}
	}
}

// TestBatchesKeepBelowTheLimit checks that large tasks are distributed over batches by
// size.
func TestBatchesKeepBelowTheLimit(t *testing.T) {
	n := apitest.New()
	c, _ := serve(t, n)
	rs := make([]wire.Request, 5)
	for i := range rs {
		rs[i] = wire.Request{Target: "laptop", Kind: "shell", Body: make([]byte, 3<<20)}
	}
	_, errs := c.SubmitMany(t.Context(), rs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if calls := strings.Join(n.Calls(), " "); calls != "SubmitMany 2 SubmitMany 2 SubmitMany 1" {
		t.Errorf("calls %q", calls)
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
	n := apitest.New()
	c, _ := serve(t, n)
	for _, name := range []string{"", ".", ".."} {
		if err := c.Forget(t.Context(), name); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("forget %q: %v", name, err)
		}
		if err := c.RemoveHandler(t.Context(), name); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("remove %q: %v", name, err)
		}
	}
	if calls := n.Calls(); calls != nil {
		t.Errorf("the node was asked %q", calls)
	}
}

// TestWait checks that Wait returns when the task ends, or when the context is done, with
// the last state of the task.
func TestWait(t *testing.T) {
	n := apitest.New()
	n.Ended = make(chan struct{})
	c, _ := serve(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Wait(ctx, apitest.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	close(n.Ended)
	if task, err := c.Wait(t.Context(), apitest.ID); err != nil || task.State != "SUCCESS" {
		t.Errorf("%s, %v", task.State, err)
	}
}

// TestAStopEndsWaiting checks that a node can stop while a caller waits, and that the
// caller gets an error; the long form, for an idle machine, also checks that it is prompt.
func TestAStopEndsWaiting(t *testing.T) {
	n := apitest.New()
	n.Ended, n.Waits = make(chan struct{}), make(chan string, 1)
	c, stop := serve(t, n)
	got := make(chan error, 1)
	go func() {
		_, err := c.Wait(context.Background(), apitest.ID)
		got <- err
	}()
	<-n.Waits
	start := time.Now()
	stop()
	if err := <-got; !errors.Is(err, wire.ErrDraining) {
		t.Errorf("the waiting caller got %v", err)
	}
	if took := time.Since(start); os.Getenv("BALEFIRE_LONG") != "" && took > 4*time.Second {
		t.Errorf("the stop took %s", took)
	}
}

// TestEvents checks that events arrive as they occur, that the numbers show a gap, and
// that a stop of the node is distinguished from the end of the caller's context.
func TestEvents(t *testing.T) {
	n := apitest.New()
	n.Happens = make(chan wire.EventPage, 2)
	c, stop := serve(t, n)
	n.Happens <- wire.EventPage{Items: []wire.NodeEvent{apitest.Happened(4)}, Next: 4}
	n.Happens <- wire.EventPage{Missed: 2, Items: []wire.NodeEvent{apitest.Happened(7)}, Next: 7}
	var got []wire.NodeEvent
	for e, err := range c.Events(t.Context(), 3) {
		if err != nil {
			if !errors.Is(err, wire.ErrDraining) {
				t.Errorf("after the stop: %v", err)
			}
			break
		}
		if got = append(got, e); len(got) == 2 {
			stop()
		}
	}
	if want := []wire.NodeEvent{apitest.Happened(4), apitest.Happened(7)}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, err := range c.Events(t.Context(), 7) {
		if !errors.Is(err, client.ErrNodeDown) {
			t.Errorf("without a node: %v", err)
		}
	}
}

// TestFollowingEndsWithItsCaller checks that following returns the error of the caller's
// context.
func TestFollowingEndsWithItsCaller(t *testing.T) {
	n := apitest.New()
	n.Happens = make(chan wire.EventPage, 1)
	n.Happens <- wire.EventPage{Items: []wire.NodeEvent{apitest.Happened(1)}, Next: 1}
	c, _ := serve(t, n)
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
	n := apitest.New()
	n.Output = []byte(strings.Repeat("line\n", 100_000))
	c, _ := serve(t, n)
	r, task, err := c.Result(t.Context(), apitest.ID)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || string(b) != string(n.Output) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	sum := sha256.Sum256(n.Output)
	if task.State != "SUCCESS" || task.ResultSize != 500_000 || task.ResultHash != "sha256:"+hex.EncodeToString(sum[:]) || task.ResultType != "text/plain" || task.Truncated {
		t.Errorf("task %+v", task)
	}
	n.Cut = 7
	r, _, err = c.Result(t.Context(), apitest.ID)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a truncated result was read as %d bytes, %v", len(b), err)
	}
	_ = r.Close()
}
