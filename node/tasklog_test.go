package node

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// TestTaskLogKeysAreStable verifies the keys and the event name of the log line for each
// change of a task.
func TestTaskLogKeysAreStable(t *testing.T) {
	id := proto.NewTaskID(time.UnixMilli(1_700_000_000_000))
	record := func(s proto.TaskState, set func(*proto.Record)) *proto.Record {
		r := &proto.Record{
			State: s, Kind: "shell", Class: proto.High, CreatedMs: 1000, Attempts: 2,
			Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		}
		if s.Terminal() {
			r.EndedMs = 3500
		}
		if set != nil {
			set(r)
		}
		return r
	}
	ran := func(r *proto.Record) {
		r.History = []*proto.Attempt{{StartedMs: 2000, FinishedMs: 2250}}
		r.Cause, r.Reason = proto.TaskFailed, "exit 1"
	}
	const common = "event task_id role kind class peer status attempt trace_id"
	for _, tt := range []struct {
		role, event, keys string
		r                 *proto.Record
		took              int64
	}{
		{wire.RoleHome, "task.submitted", common, record(proto.Pending, nil), 0},
		{wire.RoleHome, "task.accepted", common, record(proto.Accepted, nil), 0},
		{wire.RoleOwner, "task.received", common, record(proto.Accepted, nil), 0},
		{wire.RoleOwner, "task.started", common, record(proto.Running, ran), 0},
		{wire.RoleOwner, "task.retry", common + " duration_ms cause err", record(proto.Retrying, ran), 250},
		{wire.RoleOwner, "task.ended", common + " duration_ms", record(proto.Success, func(r *proto.Record) { ran(r); r.Cause, r.Reason = 0, "" }), 250},
		{wire.RoleHome, "task.ended", common + " duration_ms", record(proto.Success, nil), 2500},
		{wire.RoleHome, "task.dead", common + " duration_ms cause err", record(proto.DeadLetter, ran), 2500},
	} {
		attrs := taskAttrs(tt.role, id, "laptop", tt.r)
		var keys []string
		values := map[string]slog.Value{}
		for _, a := range attrs {
			keys, values[a.Key] = append(keys, a.Key), a.Value
		}
		want := strings.Fields(tt.keys)
		slices.Sort(keys)
		slices.Sort(want)
		if !slices.Equal(keys, want) {
			t.Errorf("%s: keys %v, want %v", tt.event, keys, want)
		}
		if got := values["event"].String(); got != tt.event {
			t.Errorf("event %s, want %s", got, tt.event)
		}
		if tt.took > 0 && values["duration_ms"].Int64() != tt.took {
			t.Errorf("%s at the %s: took %v, want %d", tt.event, tt.role, values["duration_ms"], tt.took)
		}
		if got := values["class"].String() + " " + values["trace_id"].String(); got != "high 4bf92f3577b34da6a3ce929d0e0e4736" {
			t.Errorf("%s: %s", tt.event, got)
		}
	}
}

// TestNoContentInLogsMetricsOrAudit verifies I18 for what a node writes about itself: no
// words of the body, the arguments, the result and the standard error of a task are in
// any log line at debug level, in any metric or in any file of the audit, on either
// side. It also verifies that each step of a task is logged and counted.
func TestNoContentInLogsMetricsOrAudit(t *testing.T) {
	a, b, logs := loggedPair(t)
	const body, arg, result, words = "canary-in-the-body", "canary-in-an-argument", "canary-in-the-result", "canary-on-stderr"
	script := func(code int) []string {
		return []string{"sh", "-c", fmt.Sprintf("cat >/dev/null; printf '%%s%%s' canary-in- the-result; printf '%%s%%s' canary-on- stderr >&2; exit %d", code), "sh"}
	}
	for kind, code := range map[string]int{"good": 0, "bad": 65} {
		h := wire.HandlerSpec{Kind: kind, Exec: script(code), Args: true, Allow: []string{"role:send"}}
		if err := b.Handlers.Add(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	for kind, want := range map[string]string{"good": "SUCCESS", "bad": "FAILED"} {
		id := a.submit(t, wire.Request{Target: "b", Kind: kind, Body: []byte(body), Args: []string{arg}})
		done := a.waitEnd(t, id, want)
		if !strings.Contains(done.Stderr, words) && want == "FAILED" {
			t.Errorf("stderr %q: the canary was not there", done.Stderr)
		}
		for side, steps := range map[string][]string{"a": {"task.submitted", "task.accepted", "task.ended"}, "b": {"task.started", "task.ended"}} {
			for _, step := range steps {
				eventually(t, func() bool { return logs[side].count(step, id) > 0 }, func() string {
					return fmt.Sprintf("%s: no line %s of task %s", side, step, id)
				})
			}
		}
	}
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "copy", Exec: []string{"cat"}, Allow: []string{"role:send"}}); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat(body, 1<<20/len(body)) // body and result are objects of their own
	a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "copy", Stream: strings.NewReader(large)}), "SUCCESS")
	for _, n := range []*testNode{a, b} {
		if got := testutil.CollectAndCount(n.metrics.latency) + testutil.CollectAndCount(n.metrics.runs); got == 0 {
			t.Errorf("%s: no metric of a task", n.Name())
		}
	}
	wantNoContent(t, map[string]*testNode{"a": a, "b": b}, logs, body, arg, result, words)
}

// TestNoMailInLogsMetricsOrAudit verifies I18 for mail likewise: the body of a mail that is
// read, and of one that is refused and comes back in a bounce, small or large, is in no log,
// metric or audit.
func TestNoMailInLogsMetricsOrAudit(t *testing.T) {
	a, b, logs := loggedPair(t)
	const body = "canary-in-the-mail" // a bounce has it in base64
	settings := wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}}
	for n, name := range map[*testNode]string{a: "me", b: "ceo"} {
		if _, err := n.Mail.SetMailbox(t.Context(), name, settings); err != nil {
			t.Fatal(err)
		}
	}
	m := wire.Mail{To: "agent:ceo@b", Sender: "me", Body: []byte(body)}
	large := func() wire.Mail {
		return wire.Mail{To: m.To, Sender: m.Sender, Stream: strings.NewReader(strings.Repeat(body, 1<<20/len(body)))}
	}
	for _, one := range []wire.Mail{m, m, large(), large()} {
		if _, errs := a.Mail.Send(t.Context(), []wire.Mail{one}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	read := func(n *testNode, box string, settle func(d wire.DeliveredMail) wire.SettleMail) {
		t.Helper()
		given, err := n.Mail.Lease(t.Context(), box, "", wire.LeaseMail{Max: 1, Wait: wire.Wait(testTimeout)})
		if err != nil || len(given) != 1 {
			t.Fatalf("%s was given %v, %v", box, given, err)
		}
		if given[0].Mail.Digest != "" {
			r, mail, err := n.Mail.DeliveredBody(t.Context(), box, "", given[0].Lease)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if n, err := io.Copy(io.Discard, r); err != nil || n != mail.Size {
				t.Fatalf("%d bytes of a body of %d, %v", n, mail.Size, err)
			}
		}
		if _, err := n.Mail.Settle(t.Context(), box, "", settle(given[0])); err != nil {
			t.Fatal(err)
		}
	}
	ack := func(d wire.DeliveredMail) wire.SettleMail { return wire.SettleMail{Ack: []string{d.Lease}} }
	refuse := func(d wire.DeliveredMail) wire.SettleMail {
		return wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Reason: "bad", Final: true}}}
	}
	for range 2 {
		read(b, "ceo", ack)
		read(b, "ceo", refuse)
		read(a, "me", ack) // the bounce
	}
	wantNoContent(t, map[string]*testNode{"a": a, "b": b}, logs, body, base64.StdEncoding.EncodeToString([]byte(body)))
}

// Each change of a lease is a log line at debug level: how a task of a queue was granted,
// taken back from an owner that died, granted again and ended, with the owner, the epoch and
// the attempt. Its home knows the kind and the class too.
func TestLeasesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := make([]logBuffer, 3)
		link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, link, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			cfg.Logger = slog.New(slog.NewJSONHandler(&logs[s.place], &slog.HandlerOptions{Level: slog.LevelDebug}))
		}), 5*time.Second)
		defer c.close()
		c.onlyNode(2, 0)
		ids := c.submitMany(1, 1)
		c.await(time.Minute, "it to run", func() bool { return logs[2].count("lease.started", ids[0]) == 1 })
		c.nodes[2].crash()
		c.onlyNode(1, 0)
		c.waitAll(1, ids, 5*time.Minute)
		for place, want := range map[int]string{
			0: "lease.granted n2 1|lease.taken n2 1|lease.owner_dead n2 1|lease.granted n1 2|lease.taken n1 2|lease.ended n1 2",
			1: "lease.started n0 2",
			2: "lease.started n0 1",
		} {
			var got []string
			epochs := map[string]bool{}
			for line := range strings.Lines(logs[place].String()) {
				var x map[string]any
				if err := json.Unmarshal([]byte(line), &x); err != nil {
					t.Fatal(err)
				}
				if x["msg"] != "lease" || x["task_id"] != ids[0] {
					continue
				}
				keys := slices.Sorted(maps.Keys(x))
				stable := "attempt epoch err event level msg peer queue task_id time"
				if place == 0 {
					stable = "attempt class epoch err event kind level msg peer queue task_id time"
				}
				if want := strings.Fields(stable); !slices.Equal(keys, want) || x["level"] != "DEBUG" || x["queue"] != "build" {
					t.Errorf("%s\nhas the keys %v, want %v", line, keys, want)
				}
				if place == 0 && (x["kind"] != "build" || x["class"] != "normal") {
					t.Errorf("%s\nhas another kind or class", line)
				}
				got = append(got, fmt.Sprint(x["event"], " ", x["peer"], " ", x["attempt"]))
				epochs[fmt.Sprint(x["epoch"])] = true
			}
			if strings.Join(got, "|") != want {
				t.Errorf("n%d logged %s, want %s", place, strings.Join(got, "|"), want)
			}
			if grants := strings.Count(want, "granted"); len(epochs) != max(grants, 1) {
				t.Errorf("n%d logged the epochs %v", place, epochs)
			}
		}
	})
}

// loggedPair returns a pair of nodes whose logs at debug level are kept.
func loggedPair(t *testing.T) (a, b *testNode, logs map[string]*logBuffer) {
	t.Helper()
	logs = map[string]*logBuffer{}
	a, b = pair(t, func(name string, c *Config) {
		logs[name] = new(logBuffer)
		c.Logger = slog.New(slog.NewJSONHandler(logs[name], &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	return a, b, logs
}

// wantNoContent checks that no canary is in the logs, the metrics and the audit of nodes.
func wantNoContent(t *testing.T, nodes map[string]*testNode, logs map[string]*logBuffer, canaries ...string) {
	t.Helper()
	seen := map[string]string{}
	for name, n := range nodes {
		seen["log of "+name] = logs[name].String()
		families, err := n.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen["metrics of "+name] = fmt.Sprint(families)
		filepath.WalkDir(filepath.Join(n.cfg.Dir, audit.DirName), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				text, err := os.ReadFile(path)
				if err != nil || len(text) == 0 {
					t.Errorf("%s: %d bytes, %v", path, len(text), err)
				}
				seen[path] = string(text)
			}
			return err
		})
	}
	for where, text := range seen {
		for _, canary := range canaries {
			if strings.Contains(text, canary) {
				t.Errorf("I18: %s has %q", where, canary)
			}
		}
	}
	if len(seen) < 3*len(nodes) {
		t.Errorf("checked only %d outputs", len(seen))
	}
}

// A logBuffer collects lines of a log.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// count returns the number of lines for an event of a task.
func (b *logBuffer) count(event, id string) (n int) {
	for line := range strings.Lines(b.String()) {
		var x struct {
			Event string `json:"event"`
			Task  string `json:"task_id"`
		}
		if json.Unmarshal([]byte(line), &x) == nil && x.Event == event && x.Task == id {
			n++
		}
	}
	return n
}
