package executor

import (
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
)

// I19: senders choose the ids of mails, so several runs may have one at a time: in two boxes, and
// of two nodes in one. Each that a crash cut off is found, and no other.
func TestOpenRunsOfOneID(t *testing.T) {
	x := &Executor{cfg: Config{Dir: t.TempDir(), Clock: clock.System()}}
	j, err := audit.Open(filepath.Join(x.cfg.Dir, audit.DirName), audit.Config{Boot: 1})
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
	open, err := x.openRuns()
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
