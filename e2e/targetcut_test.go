//go:build e2e

package e2e

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// targetPowerCut cuts the power of the target of tasks, which accepts, runs and answers them
// meanwhile, as TestPowerCut describes. The copy has every task that its home knew to be
// accepted, runs it, and runs none again whose result its home had (I1, I6). Both nodes are
// stopped while the copy runs, as it is the same member as the target.
func targetPowerCut(t *testing.T, engine string) {
	rng := rand.New(rand.NewPCG(5, 6))
	a, b := pair(t, config{engine: engine})
	p := newAcknowledged()
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer cancel()
	load.Go(func() {
		for ctx.Err() == nil {
			if !a.busy(ctx) {
				p.submit(ctx, a, 4, wire.Request{Target: "b", Kind: "mark", Body: make([]byte, 300)})
			}
			pause(5 * time.Millisecond)
		}
	})
	var ended []string
	for round := range rounds(2, 15) {
		pause(time.Duration(rng.IntN(either(50, 2000))) * time.Millisecond)
		var accepted []string
		known := len(ended)
		a.until("the target has accepted some tasks and ended others", func() bool {
			accepted = a.allTasks(wire.Query{Role: wire.RoleHome, States: []string{proto.Accepted.Name(), proto.Running.Name()}})
			ended = a.allTasks(wire.Query{Role: wire.RoleHome, States: []string{proto.Success.Name()}})
			return len(accepted) > 0 && len(ended) > known
		})
		file, log := b.storeLog(engine)
		pause(time.Duration(rng.IntN(100)) * time.Millisecond)
		b.pause()
		a.pause()
		twin := b.copied(t)
		how := twin.loseCommits(rng, engine, file, log)
		t.Logf("round %d: %s, %d accepted, %d ended", round, how, len(accepted), len(ended))
		before := b.starts(ended)
		twin.start()
		lost := slices.DeleteFunc(accepted, func(id string) bool { _, err := twin.Task(t.Context(), id); return err == nil })
		twin.until("it has run what it accepted", func() bool {
			return len(twin.allTasks(wire.Query{Role: wire.RoleOwner, States: live})) == 0
		})
		if again := b.starts(ended) - before; again > 0 { // the copy writes its marks there, too
			t.Errorf("I6: round %d, %s: %d tasks were started again after their end", round, how, again)
		}
		twin.kill()
		os.RemoveAll(twin.dir)
		a.signal(syscall.SIGCONT)
		for _, id := range lost { // the target forgets what its home has
			if task, err := a.Task(t.Context(), id); err != nil || task.Ended == nil {
				t.Errorf("I1: round %d, %s: %s was accepted and is lost: it is %s, %v", round, how, id, task.State, err)
			}
		}
		b.signal(syscall.SIGCONT)
	}
	cancel()
	load.Wait()
	p.checkAllEnd(t, a, "SUCCESS")
}

// busy reports whether a home has as many unfinished tasks as a copy of their target runs soon.
func (m *machine) busy(ctx context.Context) bool {
	page, err := m.Tasks(ctx, wire.Query{Role: wire.RoleHome, States: live, Limit: 100})
	return err != nil || len(page.Items) == 100
}

// starts counts the runs of tasks.
func (m *machine) starts(ids []string) (n int) {
	m.t.Helper()
	of := map[string]bool{}
	for _, id := range ids {
		of[id] = true
	}
	for _, k := range m.readMarks() {
		if k.what == "S" && of[k.task] {
			n++
		}
	}
	return n
}
