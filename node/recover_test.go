package node

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

// Every command has one start and one end in the audit; a command interrupted by a crash
// has a crash record instead, which the next start of the node writes once (I19).
func TestAuditHasOneEndForEachRun(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "exit 65"}}), "FAILED")
	gate := filepath.Join(t.TempDir(), "gate")
	cut := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "until test -e " + gate + "; do sleep 0.1; done"}})
	eventually(t, func() bool {
		task, err := b.Views.Task(t.Context(), cut)
		return err == nil && task.State == "RUNNING"
	}, func() string { return "the task is not running" })
	crashed := b.copyAsCrashed(t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.halt()
	for range 2 { // the second time there is nothing left to do
		again := start(t, crashed)
		again.endsHere(t, cut)
		again.halt()
	}
	type run struct {
		task, epoch string
		attempt     int
	}
	starts, ends, actions := map[run]int{}, map[run]int{}, map[string]int{}
	dir := filepath.Join(crashed.Dir, audit.DirName)
	if err := audit.Scan(dir, func(r audit.Record) error {
		key := run{r.Task, r.Epoch, r.Attempt}
		switch actions[r.Action]++; r.Action {
		case "command.start":
			starts[key]++
		case "command.end", "command.crash":
			ends[key]++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if actions["command.start"] != 3 || actions["command.end"] != 2 || actions["command.crash"] != 1 {
		t.Errorf("audit has %v", actions)
	}
	for key, n := range starts {
		if n != 1 || ends[key] != 1 {
			t.Errorf("%+v has %d starts and %d ends", key, n, ends[key])
		}
	}
	if _, err := audit.Verify(dir); err != nil {
		t.Errorf("the hash chain is invalid: %v", err)
	}
}

// endsHere waits until a task that was here has ended. Its record is deleted when its origin
// has settled it, which may be at once.
func (n *testNode) endsHere(t *testing.T, id string) {
	t.Helper()
	eventually(t, func() bool {
		task, err := n.Views.Task(t.Context(), id)
		return err == nil && task.Ended != nil || errors.Is(err, wire.ErrNotFound)
	}, func() string { return "the task does not end" })
}

// copyAsCrashed copies the folder of a running node, as it is if the process dies now. The files
// are copied in the order of their names: so what says how far a log was acknowledged comes before
// that log.
func (n *testNode) copyAsCrashed(t *testing.T) Config {
	t.Helper()
	crashed := n.cfg
	crashed.Dir = t.TempDir()
	cmd := exec.Command("sh", "-ec", `find . -type f | LC_ALL=C sort | xargs cp -a --parents -t "$0"`, crashed.Dir)
	cmd.Dir = n.cfg.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return crashed
}
