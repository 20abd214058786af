package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// A Chinese character takes two cells: the columns after it stay aligned.
func TestTableAlignsWideCharacters(t *testing.T) {
	tb := newTable(col("NAME"), num("N"), wideOnly("ID"), col("STATE"))
	tb.row("烽火台", 7, "x", "ALIVE")
	tb.row("e\u0301tat", 1234, "y", "")
	tb.row("laptop", "", "z", "DEAD\nnow")
	var b bytes.Buffer
	tb.write(&b, false, 0, uncolored)
	want := "NAME       N  STATE\n烽火台     7  ALIVE\ne\u0301tat    1234  -\nlaptop     -  DEAD now\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	b.Reset()
	tb.write(&b, true, 0, uncolored)
	if !strings.Contains(b.String(), "ID") {
		t.Errorf("the wide column is missing:\n%s", b.String())
	}
}

// Text from another machine cannot control the terminal.
func TestCleanTakesControlOut(t *testing.T) {
	for in, want := range map[string]string{
		"plain 烽火 text":     "plain 烽火 text",
		"\x1b[2Jgone":       "\uFFFD[2Jgone",
		"a\rb\u009bc":       "a\uFFFDb\uFFFDc",
		"left\u202eright":   "left\uFFFDright",
		"lines\nand\ttabs":  "lines\nand\ttabs",
		"bell\x07 null\x00": "bell\uFFFD null\uFFFD",
	} {
		if got := sanitize(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFormats(t *testing.T) {
	items := []wire.Submitted{{ID: "1", State: "PENDING", Target: "<a & b>"}, {ID: "2", State: "SENT", Target: "no: 'yaml'"}}
	v := view{value: wire.Page[wire.Submitted]{Items: items}, lines: lines(items), human: func(p *printer) {
		p.line("wide %v", p.wide)
	}}
	for format, want := range map[string]string{
		formatTable: "wide false\n",
		formatWide:  "wide true\n",
		formatJSONL: `{"id":"1","state":"PENDING","target":"<a & b>","not_after":"0001-01-01T00:00:00Z"}` + "\n" +
			`{"id":"2","state":"SENT","target":"no: 'yaml'","not_after":"0001-01-01T00:00:00Z"}` + "\n",
		formatYAML: "items:\n  - id: \"1\"\n    state: PENDING\n    target: <a & b>\n    not_after: \"0001-01-01T00:00:00Z\"\n" +
			"  - id: \"2\"\n    state: SENT\n    target: 'no: ''yaml'''\n    not_after: \"0001-01-01T00:00:00Z\"\n",
	} {
		w, out, _ := newTestApp()
		w.flags.output = format
		if err := w.show(v); err != nil {
			t.Fatal(err)
		}
		if out.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", format, out, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	stopped, stop := context.WithCancel(t.Context())
	stop()
	problem := func(err error) error { return api.ProblemOf(fmt.Errorf("submit: %w", err)) }
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		want int
	}{
		{"success", t.Context(), nil, exitOK},
		{"anything", t.Context(), errors.New("broken"), exitError},
		{"usage", t.Context(), usage("no"), exitUsage},
		{"unknown command", t.Context(), errors.New(`unknown command "x" for "balefire-node"`), exitUsage},
		{"invalid request", t.Context(), problem(wire.ErrInvalid), exitUsage},
		{"a mail that is too large", t.Context(), problem(wire.ErrTooLarge), exitUsage},
		{"node down", t.Context(), fmt.Errorf("%w at x", client.ErrNodeDown), exitDown},
		{"not found", t.Context(), problem(wire.ErrNotFound), exitNotFound},
		{"denied", t.Context(), problem(wire.ErrDenied), exitDenied},
		{"timeout", t.Context(), context.DeadlineExceeded, exitTimeout},
		{"refused", t.Context(), problem(wire.ErrRefused), exitRefused},
		{"full", t.Context(), problem(wire.ErrFull), exitRefused},
		{"key conflict", t.Context(), problem(wire.ErrKeyConflict), exitRefused},
		{"draining", t.Context(), problem(wire.ErrDraining), exitRefused},
		{"second daemon", t.Context(), fmt.Errorf("open: %w", store.ErrLocked), exitRefused},
		{"interrupted", stopped, context.Canceled, exitInterrupted},
		{"told already", t.Context(), silentExit(exitFailed), exitFailed},
	}
	for _, tt := range tests {
		if got := exitCode(tt.ctx, tt.err); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestEndCodes(t *testing.T) {
	for _, tt := range []struct {
		state, reason, code string
		want                int
	}{
		{"FAILED", "exit code 65", "", exitFailed}, {"TIMEOUT", "", "", exitFailed}, {"DEAD_LETTER", "3 attempts", "", exitFailed},
		{"DEAD_LETTER", "not allowed", "DENIED", exitDenied}, {"DEAD_LETTER", "too large", "TOO_LARGE", exitFailed},
		{"FAILED", "the program says DENIED", "", exitFailed}, {"CANCELLED", "by hand", "", exitRefused}, {"EXPIRED", "", "", exitRefused},
	} {
		if got := endCode(wire.Task{State: tt.state, Ending: wire.Ending{Reason: tt.reason, Code: tt.code}}); got != tt.want {
			t.Errorf("%s %s: %d, want %d", tt.state, tt.reason, got, tt.want)
		}
	}
}

// A waiting command prints each step once, in order, however fast they follow.
func TestNews(t *testing.T) {
	f := &follower{}
	var got []string
	for _, s := range []struct {
		state    string
		receipts string
	}{
		{"PENDING", "stored"}, {"PENDING", "stored"}, {"ACCEPTED", "stored accepted"}, {"RUNNING", "stored accepted started"},
		{"RETRYING", "stored accepted started"}, {"RETRYING", "stored accepted started"}, {"SUCCESS", "stored accepted started done"},
	} {
		got = append(got, f.changes(wire.Task{State: s.state, Peer: "laptop", Attempts: 1, Receipts: strings.Fields(s.receipts), Ending: wire.Ending{Reason: "exit code 75"}})...)
	}
	want := "accepted by laptop|running at laptop, attempt 1|retrying at laptop: exit code 75"
	if strings.Join(got, "|") != want {
		t.Errorf("printed %s, want %s", strings.Join(got, "|"), want)
	}
	if all := new(follower).changes(wire.Task{State: "SUCCESS", Peer: "p", Receipts: []string{"stored", "accepted", "started", "done"}}); len(all) != 2 {
		t.Errorf("a fast task prints %v", all)
	}
}

func TestSendFlags(t *testing.T) {
	now := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)
	f := sendFlags{class: "high", ttl: "2d", delay: "90s", dedupe: "content", labels: []string{"a=b", "c=d=e"}}
	if err := f.read(now); err != nil {
		t.Fatal(err)
	}
	r := f.request
	if r.Class != "high" || time.Duration(r.TTL) != 48*time.Hour || time.Duration(r.Delay) != 90*time.Second || r.Key != "auto" || r.Labels["c"] != "d=e" {
		t.Errorf("request = %+v", r)
	}
	for text, want := range map[string]time.Time{
		"15:04":                now.Add(64 * time.Minute),
		"13:00":                now.Add(23 * time.Hour),
		"2026-12-01T00:00:00Z": time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC),
	} {
		if got, err := parseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("at %s = %v, %v", text, got, err)
		}
	}
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 250 * time.Microsecond: "250µs", 2400 * time.Microsecond: "2.4ms", 86 * time.Millisecond: "86ms", 5900 * time.Millisecond: "5.9s",
		41 * time.Second: "41s", 41 * time.Minute: "41m", 25 * time.Hour: "25h00m", 76 * time.Hour: "3d4h",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("brief(%v) = %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 300 << 20: "300 MiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestMultiaddrs(t *testing.T) {
	got, err := multiaddrs([]string{":4001", "[::1]:7", "/ip4/1.2.3.4/tcp/5"})
	want := "/ip4/0.0.0.0/udp/4001/quic-v1 /ip4/0.0.0.0/tcp/4001 /ip6/::1/udp/7/quic-v1 /ip6/::1/tcp/7 /ip4/1.2.3.4/tcp/5"
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"4001", "1.2.3.4:99999", "1.2.3.4:", "laptop:4001", "/ip4/1.2.3.4", "/dns/laptop/tcp/4001"} {
		if got, err := multiaddrs([]string{bad}); err == nil {
			t.Errorf("%s: %v", bad, got)
		}
	}
}

// Only terminals get color, and only if the user did not disable it.
func TestPaint(t *testing.T) {
	for _, tt := range []struct {
		tty     bool
		flag    string
		environ []string
		colored bool
	}{
		{true, "auto", nil, true}, {false, "auto", nil, false}, {true, "auto", []string{"NO_COLOR=1"}, false}, {true, "auto", []string{"TERM=dumb"}, false},
		{false, "always", nil, true}, {true, "never", nil, false},
	} {
		w := &app{errTTY: tt.tty, environ: tt.environ, flags: globals{color: tt.flag}}
		if got := w.colorStderr(red, "x") != "x"; got != tt.colored {
			t.Errorf("%+v: colored = %v", tt, got)
		}
	}
}

// A task of a queue is shown at the owner that reported it, not at the home that accepted it.
func TestTasksOfQueuesAreShownWhereTheyAre(t *testing.T) {
	event := func(name, state string) wire.Event { return wire.Event{Node: name, State: state} }
	queued := wire.Task{Role: "home", Target: "queue:build", Peer: "alpha", Events: []wire.Event{event("alpha", "ACCEPTED"), event("beta", "RUNNING"), event("gamma", "RUNNING"), event("alpha", "ACCEPTED")}}
	behind := queued // the clock of gamma is late
	behind.Events = []wire.Event{{Node: "gamma", State: "RUNNING", Attempt: 2}, event("alpha", "ACCEPTED"), {Node: "beta", State: "RUNNING", Attempt: 1}}
	for _, tt := range []struct {
		task         wire.Task
		runner, side string
	}{
		{queued, "gamma", "to queue:build at alpha"},
		{behind, "gamma", "to queue:build at alpha"},
		{wire.Task{Role: "home", Target: "laptop", Peer: "laptop"}, "laptop", "to laptop"},
		{wire.Task{Role: "owner", Peer: "harbor"}, "harbor", "from harbor"},
	} {
		if got := runnerOf(tt.task); got != tt.runner {
			t.Errorf("%+v runs at %s, want %s", tt.task, got, tt.runner)
		}
		if got := otherSide(tt.task); got != tt.side {
			t.Errorf("%+v is %q, want %q", tt.task, got, tt.side)
		}
	}
}

// The node that ran a task has no result to show: watching it there ends as the task did.
func TestWatchAtTheOwner(t *testing.T) {
	task := testTask(testID)
	task.Role = wire.RoleOwner
	n := newCannedNode()
	n.Answer("GET /v1/tasks/{id}", task)
	n.Answer("GET /v1/tasks/{id}/wait", wire.ErrRefused)
	n.Answer("GET /v1/tasks/{id}/result", wire.ErrRefused)
	if code, out, errs := command(t, n, "task", "watch", testID); code != exitOK || out != "" || !strings.Contains(errs, "SUCCESS") {
		t.Errorf("%d: %q\n%s", code, out, errs)
	}
}

// A truncated result is marked wherever a person sees it.
func TestTruncatedResultsAreMarked(t *testing.T) {
	task := testTask(testID)
	task.Truncated, task.Reason = true, "cut off after 6 bytes"
	n := newCannedNode()
	n.Answer("GET /v1/tasks/{id}", task)
	n.Answer("GET /v1/tasks", page(task))
	n.Answer("GET /v1/tasks/{id}/result", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Balefire-Truncated", "true")
		fmt.Fprint(w, "hello\n")
	}))
	warning := "! the result is truncated: it has the first 6 B of the handler's output"
	for _, line := range []string{
		"send laptop shell --wait",
		"send laptop shell --wait -q",
		"task watch " + testID,
		"task result " + testID,
		"task result -q " + testID,
		"task result " + testID + " --out " + filepath.Join(t.TempDir(), "out"),
	} {
		code, out, errs := command(t, n, strings.Fields(line)...)
		if code != exitOK || !strings.Contains(errs, warning) || strings.Contains(out, "truncated") {
			t.Errorf("%s: %d, %q, %q, want %q on standard error only", line, code, out, errs, warning)
		}
	}
	for line, want := range map[string]string{
		"task show " + testID:              "6 B (truncated: the handler wrote more)",
		"task show " + testID + " -o json": `"truncated": true`,
		"task ls":                          "cut off after 6 bytes",
		"task ls -o jsonl":                 `"truncated":true`,
	} {
		if code, out, errs := command(t, n, strings.Fields(line)...); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: %d, %q, %q, want %q", line, code, out, errs, want)
		}
	}
}

// So is what is kept of the output of a task that failed because it was too large.
func TestOutputOfAFailedTaskIsMarked(t *testing.T) {
	task := testTask(testID)
	task.State, task.Truncated, task.Reason = "FAILED", true, "OUTPUT_TOO_LARGE: more than 6 bytes of output (max_output of the handler)"
	n := newCannedNode()
	n.Answer("GET /v1/tasks/{id}", task)
	n.Answer("GET /v1/tasks", page(task))
	for line, want := range map[string][]string{
		"task show " + testID: {"FAILED", "OUTPUT_TOO_LARGE: more than 6 bytes", "6 B (truncated: the handler wrote more)"},
		"task ls":             {"FAILED", "OUTPUT_TOO_LARGE: more than 6 bytes"},
	} {
		code, out, errs := command(t, n, strings.Fields(line)...)
		for _, text := range want {
			if code != exitOK || !strings.Contains(out, text) {
				t.Errorf("%s: %d, %q, %q, want %q", line, code, out, errs, text)
			}
		}
	}
}

// uncolored leaves every cell without color.
func uncolored(_, text string) string { return text }

// A table on a narrow terminal shortens the text of its widest columns, but no numbers.
func TestTableFitsTheTerminal(t *testing.T) {
	tb := newTable(col("ID"), col("STATE"), num("TRIES"), col("REASON"))
	tb.row("01a1f84f", "FAILED", 3, "the printer is out of paper, 再试一次 later")
	for columns, want := range map[int]string{
		0:  "01a1f84f  FAILED      3  the printer is out of paper, 再试一次 later",
		60: "01a1f84f  FAILED      3  the printer is out of paper, 再试…",
		40: "01a1f84f  FAILED      3  the printer is…",
		10: "01a1f84f  FAILED      3  the print…",
	} {
		var b bytes.Buffer
		tb.write(&b, false, columns, uncolored)
		if _, row, _ := strings.Cut(strings.TrimSpace(b.String()), "\n"); row != want || columns > 30 && displayWidth(row) > columns {
			t.Errorf("%d columns: %q, want %q", columns, row, want)
		}
	}
}

// The wide format does not truncate.
func TestWideCutsNothingOff(t *testing.T) {
	reason := strings.Repeat("why ", 40)
	page := wire.Page[wire.Task]{Items: []wire.Task{{ID: "01a1f84f-fb79-727b-b679-7a95fb475002", Ending: wire.Ending{Reason: reason}}}}
	for format, whole := range map[string]bool{formatTable: false, formatWide: true} {
		w, out, _ := newTestApp()
		w.flags.output, w.environ = format, []string{"COLUMNS=80"}
		if err := w.show(tasksView(w, page)); err != nil || strings.Contains(out.String(), strings.TrimSpace(reason)) != whole {
			t.Errorf("%s: %v\n%s", format, err, out)
		}
	}
}

// States and warnings are colored on a terminal that shows colors or with --color.
func TestColors(t *testing.T) {
	for _, tt := range []struct {
		color, noColor string
		tty, want      bool
	}{{"auto", "", true, true}, {"auto", "", false, false}, {"auto", "1", true, false}, {"always", "1", false, true}, {"never", "", true, false}} {
		w, out, _ := newTestApp()
		w.flags.color, w.flags.output, w.outTTY = tt.color, formatTable, tt.tty
		if tt.noColor != "" {
			w.environ = []string{"NO_COLOR=" + tt.noColor}
		}
		err := w.show(view{human: func(p *printer) {
			p.line("! look at this")
			tb := newTable(col("STATE"), col("ID"), num("RETRYING"))
			tb.row("DEAD_LETTER", "1")
			p.table(tb)
		}})
		red, yellow := strings.Contains(out.String(), "\x1b[31mDEAD_LETTER\x1b[0m  1"), strings.Contains(out.String(), "\x1b[33m! look at this\x1b[0m")
		if err != nil || strings.Contains(out.String(), "mRETRYING") || red != tt.want || yellow != tt.want {
			t.Errorf("%+v: %q, %v", tt, out, err)
		}
	}
}
