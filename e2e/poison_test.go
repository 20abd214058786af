//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// TestPoisonDiesAlone checks S16: a task that kills the node whenever it runs does
// not cause the tasks that ran at the same time to fail, and is started less and less
// often. The long form waits five minutes until the task has used up its ten
// abandons and ends as a dead letter; the tests of inbox do so
// in virtual time.
func TestPoisonDiesAlone(t *testing.T) {
	kinds := "  - {kind: poison, exec: [/bin/sh, -c, 'kill -9 $PPID; sleep 60'], allow: ['role:send'], on_crash: retry}\n" +
		"  - {kind: nap, exec: [/bin/sleep, '0.3'], allow: ['role:send'], on_crash: retry}\n"
	a, b := pairOf(t, config{engine: "nutsdb"}, config{engine: "nutsdb", kinds: kinds})
	bad, good := newAcknowledged(), newAcknowledged()
	bad.submit(t.Context(), a, 1, wire.Request{Target: "b", Kind: "poison"})
	good.submit(t.Context(), a, 20, wire.Request{Target: "b", Kind: "nap"})
	limit := either(4, 11) // ten that count, and the first, whose start may not be on disk
	deaths := 0
	for ; deaths < limit; deaths++ {
		b.until("the poison task kills the node, or ends", func() bool {
			task, err := a.Task(t.Context(), bad.all()[0]) // b forgets it when a has its end
			return !b.alive() || err == nil && task.Ended != nil
		})
		if b.alive() {
			break
		}
		b.died()
		b.start()
	}
	good.checkAllEnd(t, a, "SUCCESS")
	if limit > 4 { // the node may have forgotten it since
		bad.checkAllEnd(t, a, "DEAD_LETTER")
		task, err := a.Task(t.Context(), bad.all()[0])
		if err != nil || deaths < 10 || task.Cause != proto.TaskCrashedOften.Name() {
			t.Errorf("after %d deaths: %q, %v", deaths, task.Cause, err)
		}
		return
	}
	task, err := b.Task(t.Context(), bad.all()[0])
	if err != nil || int(task.Abandons) < deaths-1 || task.Attempts > task.Abandons+1 {
		t.Errorf("the poison task after %d deaths: %d abandons, %d attempts, %v", deaths, task.Abandons, task.Attempts, err)
	}
}

// TestNoProcessOutlivesItsTask checks S35 and I7: the processes that a handler has started,
// and their children, are gone when the node has restarted after a kill, and after a hard
// cancel.
func TestNoProcessOutlivesItsTask(t *testing.T) {
	dir := shortDir(t)
	pids := filepath.Join(dir, "pids")
	script := fmt.Sprintf(`echo $$ >> %[1]s; sh -c "echo \$\$ >> %[1]s; trap : TERM; while :; do sleep 1; done" & setsid sh -c "echo \$\$ >> %[1]s; while :; do sleep 1; done" & wait`, pids)
	kinds := fmt.Sprintf("  - {kind: tree, exec: [/bin/sh, -c, %s], allow: ['role:send'], on_crash: park}\n", strconv.Quote(script))
	a, b := pairOf(t, config{engine: "nutsdb"}, config{engine: "nutsdb", kinds: kinds})
	grown := func() []string {
		raw, err := os.ReadFile(pids)
		if err != nil {
			return nil
		}
		return strings.Fields(string(raw))
	}
	p := newAcknowledged()
	p.submit(t.Context(), a, 1, wire.Request{Target: "b", Kind: "tree"})
	b.until("the process tree is complete", func() bool { return len(grown()) == 3 })
	if err := syscall.Kill(b.cmd.Process.Pid, syscall.SIGKILL); err != nil { // only the node, not its process group
		t.Fatal(err)
	}
	<-b.gone
	b.cmd = nil
	b.start()
	b.until("the process tree of the dead node is gone", func() bool { return !slices.ContainsFunc(grown(), running) })
	p.checkAllEnd(t, a, "DEAD_LETTER")

	if err := os.Remove(pids); err != nil {
		t.Fatal(err)
	}
	s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "tree"})
	if err != nil {
		t.Fatal(err)
	}
	b.until("the process tree is complete again", func() bool { return len(grown()) == 3 })
	if _, err := a.Cancel(t.Context(), s.ID, true, "enough"); err != nil {
		t.Fatal(err)
	}
	a.until("it is cancelled", func() bool {
		task, err := a.Task(t.Context(), s.ID)
		return err == nil && task.State == "CANCELLED"
	})
	for _, pid := range grown() {
		if running(pid) {
			t.Errorf("S34: process %s is running although its task is CANCELLED", pid)
		}
	}
}

// running reports whether a process runs.
func running(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
