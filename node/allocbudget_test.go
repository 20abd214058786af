package node

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// The allocation budget of a whole task of 1 KiB: what both nodes together may allocate from
// its submission to its result on disk at home. They allocate 62 KiB in 385 allocations, a
// third of it for the simulated network and disk; the bytes depend more on when garbage is
// collected. A step that reads a record back has 15 to 30 allocations more.
const (
	taskAllocs = 430
	taskBytes  = 96 << 10
)

// A whole task whose handler does nothing stays within its budget. In virtual time the sizes
// of the groups, and so the share of a task in what is done once for a group, hardly depend
// on the speed of the machine.
func TestAllocationBudgetOfATask(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, for which tests are short, drops what pools hold")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, lanLink, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			cfg.Limits.Slots = 256
			cfg.Handlers = []wire.HandlerSpec{discard}
		})
		defer w.close()
		home := w.nodes[0].get()
		body := make([]byte, 1<<10)
		fill(body)
		rs := make([]wire.Request, 256)
		for i := range rs {
			rs[i] = wire.Request{Target: w.nodes[1].name, Kind: discard.Kind, Body: body}
		}
		run := func(groups int) {
			for range groups {
				_, errs := home.SubmitMany(t.Context(), rs)
				for _, err := range errs {
					if err != nil {
						t.Fatal(err)
					}
				}
				for home.outbox.Stats().Live > 0 {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}
		run(4)
		const groups = 8
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		run(groups)
		runtime.ReadMemStats(&after)
		tasks := groups * uint64(len(rs))
		allocs, bytes := (after.Mallocs-before.Mallocs)/tasks, (after.TotalAlloc-before.TotalAlloc)/tasks
		t.Logf("%d bytes in %d allocations a task", bytes, allocs)
		if allocs > taskAllocs || bytes > taskBytes {
			t.Errorf("a whole task allocates %d bytes in %d allocations, want at most %d in %d", bytes, allocs, taskBytes, taskAllocs)
		}
	})
}
