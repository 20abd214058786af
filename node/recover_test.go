package node

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/store/journal"
)

// Every command has one start and one end in the audit; one that a crash cut off
// has a crash instead (I19).
func TestAuditHasOneEndForEachRun(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.AddHandler(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	a.ended(t, a.submit(t, Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "exit 65"}}), "FAILED")
	cut := journal.Entry{Boot: 7, Action: "command.start", Task: "01a1f8f0-146a-7c2c-bc23-4f476d8c0df6", Attempt: 1, Detail: map[string]string{"kind": "run"}}
	if _, err := b.ground.journal.Append(t.Context(), cut); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing left to close
		open, err := b.openRuns(map[string]bool{cut.Task: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range open {
			e.Action, e.Detail = "command.crash", map[string]string{"boot": fmt.Sprint(e.Boot)}
			if _, err := b.ground.journal.Append(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
	}
	actions := map[string]int{}
	dir := filepath.Join(b.cfg.Dir, auditDir)
	if err := journal.Scan(dir, func(r journal.Record) error { actions[r.Action]++; return nil }); err != nil {
		t.Fatal(err)
	}
	if actions["command.start"] != 2 || actions["command.end"] != 1 || actions["command.crash"] != 1 {
		t.Errorf("audit has %v", actions)
	}
	if _, err := journal.Verify(dir); err != nil {
		t.Errorf("the chain does not hold: %v", err)
	}
}
