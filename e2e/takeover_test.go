//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestTakeover checks S19, I4 and I5 on real processes: the owner of a task of a queue
// is killed while it runs the task. Another node is granted the task with a higher epoch,
// and only its result is accepted; the old owner, restarted, does not run
// the task again.
func TestTakeover(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			holds := map[string]string{} // by worker: its runs wait while this file exists
			var nodes []*machine
			for i, name := range []string{"home", "worker1", "worker2"} {
				c := config{engine: engine, dir: filepath.Join(shortDir(t), name), net: "  mdns: off\n"}
				if i > 0 {
					holds[name] = filepath.Join(shortDir(t), "hold")
					c.kinds = notingHandler("build", c.dir, name, fmt.Sprintf("while test -e %s; do sleep 0.1; done; ", holds[name]))
					hold(t, holds[name])
				}
				c.kinds += "mesh:\n  suspect_recover: 100ms\n  dead_recover: 100ms\n"
				m := newMachine(t, name, i == 0, c)
				if i > 0 {
					m.join(nodes[0])
				}
				m.start()
				nodes = append(nodes, m)
			}
			home, workers := nodes[0], nodes[1:]
			if _, err := home.SetQueue(t.Context(), "build", wire.QueueSettings{Home: "here"}); err != nil {
				t.Fatal(err)
			}
			home.able("build", len(workers))
			task, err := home.Submit(t.Context(), wire.Request{Target: "queue:build", Kind: "build"})
			if err != nil {
				t.Fatal(err)
			}
			home.until("it runs", func() bool { return len(workers[0].readMarks())+len(workers[1].readMarks()) == 1 })
			owner, heir := workers[0], workers[1]
			if len(heir.readMarks()) == 1 {
				owner, heir = heir, owner
			}
			owner.kill()
			if err := os.Remove(holds[heir.name]); err != nil {
				t.Fatal(err)
			}
			home.until("the task has ended", func() bool {
				got, err := home.Task(context.Background(), task.ID)
				return err == nil && got.Ended != nil
			})
			state, reason, said, err := home.outcome(t.Context(), task.ID)
			if err != nil || state != "SUCCESS" || !strings.HasPrefix(said, heir.name+" "+task.ID) {
				t.Fatalf("the task is %s (%s), its result %q, %v; want that of %s", state, reason, said, err, heir.name)
			}
			first, second := owner.readMarks()[0], heir.readMarks()[0]
			if !before(first.attempt, second.attempt) || strings.Fields(said)[2] != second.attempt {
				t.Errorf("I5: epochs %s, then %s; the result belongs to %q", first.attempt, second.attempt, said)
			}
			owner.start()
			linked(home, owner)
			if err := os.Remove(holds[owner.name]); err != nil {
				t.Fatal(err)
			}
			more := newAcknowledged() // later tasks have ended: the old owner knows of the takeover by then
			if errs := more.submit(t.Context(), home, 8, wire.Request{Target: "queue:build", Kind: "build"}); errs != nil {
				t.Fatal(errs)
			}
			more.checkAllEnd(t, home, "SUCCESS")
			home.able("build", len(workers))
			for _, m := range append(owner.readMarks(), heir.readMarks()...) {
				if m.task == task.ID && m.attempt != first.attempt && m.attempt != second.attempt {
					t.Errorf("I6: the task was started again: %+v", m)
				}
			}
			if _, _, again, err := home.outcome(t.Context(), task.ID); err != nil || again != said {
				t.Errorf("I3: the result was %q and is now %q, %v", said, again, err)
			}
		})
	}
}

// hold creates the file at path.
func hold(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// able waits until, in m's view, the given number of live nodes serve a kind of a queue of
// the same name.
func (m *machine) able(kind string, want int) {
	m.t.Helper()
	m.until(fmt.Sprintf("%d nodes serve %s", want, kind), func() bool {
		q, err := m.Queue(context.Background(), kind)
		able := 0
		for _, member := range q.Members {
			if member.Alive && slices.Contains(member.Kinds, kind) {
				able++
			}
		}
		return err == nil && able == want
	})
}
