package executor

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
)

// I19: senders choose the ids of mails, so several runs may have one at a time: in two boxes, and
// of two nodes in one. Each that a crash cut off is found, and no other.
func TestOpenRunsOfOneID(t *testing.T) {
	x := &Executor{cfg: Config{Dir: t.TempDir(), Clock: clock.System()}}
	j, err := audit.Open(filepath.Join(x.cfg.Dir, audit.DirName), audit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	write := func(action, actor, kind, epoch string, detail ...string) {
		t.Helper()
		e := audit.Entry{Boot: 1, Actor: actor, Action: action, Task: "01a206d9-3c5e-7838-8157-1936a50bdeb9", Attempt: 1, Epoch: epoch, Detail: map[string]string{"kind": kind}}
		if len(detail) > 0 {
			e.Detail["check"] = detail[0]
		}
		if action == "command.crash" {
			e.Boot, e.Detail["boot"] = 2, "1"
		}
		if _, err := j.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	write("command.start", "beta", "agent:raw@alpha", "1.1")
	write("command.start", "beta", "agent:other@alpha", "1.2")
	write("command.start", "gamma", "agent:raw@alpha", "1.3")
	write("command.start", "beta", "agent:ended@alpha", "1.4")
	write("command.end", "beta", "agent:ended@alpha", "1.4")
	write("command.start", "beta", "agent:crashed@alpha", "1.5")
	write("command.crash", "beta", "agent:crashed@alpha", "1.5")
	write("command.start", "beta", "probed", "1.6", "yes") // of a task whose run ended
	write("command.start", "beta", "probed", "1.6")
	write("command.end", "beta", "probed", "1.6")
	open, _, err := x.openRuns(0)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range open {
		found[e.Actor+" "+e.Detail["kind"]] = true
	}
	for _, run := range []string{"beta agent:raw@alpha", "beta agent:other@alpha", "gamma agent:raw@alpha", "beta probed"} {
		if !found[run] {
			t.Errorf("%s is not found", run)
		}
	}
	if end := crashOf(audit.Entry{Action: "command.start", Boot: 1}, 2); end.Boot != 2 || end.Detail["boot"] != "1" {
		t.Errorf("the crash of a damaged start is %+v", end)
	}
	if len(open) != 4 {
		t.Errorf("%d runs are open: %v", len(open), found)
	}
}

// TestAuditIsReadFromTheOldestOpenRun checks that a start of the node reads no file of the audit
// in which every run has ended, misses no run that has not, and reads all of another audit.
func TestAuditIsReadFromTheOldestOpenRun(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Executor, *audit.Journal) {
		t.Helper()
		j, err := audit.Open(filepath.Join(dir, audit.DirName), audit.Config{MaxFile: 4096})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { j.Close() })
		x := &Executor{parts: Parts{Audit: j}, cfg: Config{Dir: dir, Boot: 2, Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)}, interrupted: map[cutRun]int{}, runs: newRunLog(j, dir)}
		x.runs.every = 10
		return x, j
	}
	x, j := open()
	start := func(kind string) func() {
		t.Helper()
		e := audit.Entry{Boot: 1, Action: "command.start", Task: "01a206d9-3c5e-7838-8157-1936a50bdeb9", Attempt: 1, Detail: map[string]string{"kind": kind}}
		run, err := x.runs.start(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			e.Action = "command.end"
			if err := x.runs.end(t.Context(), run, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	many := func() {
		for i := range 40 {
			start(strconv.Itoa(i))()
		}
	}
	many()
	long := start("long")
	many()
	if at := x.runs.load(); at == 0 || at > 80 {
		t.Errorf("the audit is read from line %d, and a run without an end began in line 81", at)
	}
	long()
	many()
	start("cut off")
	many()
	j.Close()
	first := filepath.Join(dir, audit.DirName, "00000000000000000001.jsonl")
	if err := os.WriteFile(first, []byte("damaged\ndamaged\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.openRuns(0); !errors.Is(err, audit.ErrBroken) {
		t.Fatalf("all of the audit is read: %v", err)
	}
	found, last, err := x.openRuns(x.runs.load())
	if err != nil || len(found) != 1 || last != 4*80+2+1 {
		t.Errorf("%d runs without an end up to line %d: %v", len(found), last, err)
	}
	if err := os.WriteFile(x.runs.path, []byte("1000000"), 0o600); err != nil { // of another audit
		t.Fatal(err)
	}
	x, _ = open()
	if err := x.closeRuns(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found, last, _ := x.openRuns(0); len(found) != 0 || len(x.interrupted) != 1 || x.runs.load() != last {
		t.Errorf("%d runs are open and %d were cut off; the next start reads from line %d of %d", len(found), len(x.interrupted), x.runs.load(), last)
	}
}
