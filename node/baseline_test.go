package node

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// I15: some time after many tasks, for a named peer and for a queue, whole nodes have as
// many goroutines as after the first of them, and nothing of the bodies in memory:
// only what a node remembers of ended tasks is left.
func TestLoadLeavesNothingBehind(t *testing.T) {
	load, pause := 200, 10*time.Minute
	if longRun {
		load, pause = 12_000, time.Hour
	}
	body := make([]byte, 16<<10) // incompressible
	_, _ = rand.NewChaCha8([32]byte{}).Read(body)
	synctest.Test(t, func(t *testing.T) {
		link := transporttest.Link{Latency: 5 * time.Millisecond, Mbps: 1000, Seed: 1}
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, link, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			cfg.Limits.DoneCount = 100
		}), 10*time.Millisecond)
		defer c.close()
		work := func(tasks int) {
			for ; tasks > 0; tasks -= 100 {
				rs := make([]wire.Request, 100)
				for i := range rs {
					rs[i] = wire.Request{Target: []string{"queue:build", "n0"}[i%2], Kind: "build", Body: body}
				}
				got, errs := c.nodes[1].node.SubmitMany(t.Context(), rs)
				if err := errors.Join(errs...); err != nil {
					t.Fatal(err)
				}
				for _, s := range got {
					if task, err := c.nodes[1].node.Views.Wait(t.Context(), s.ID); err != nil || task.State != "SUCCESS" {
						t.Fatalf("%s is %s: %v", s.ID, task.State, err)
					}
				}
			}
		}
		rest := func() (heap int64, routines int) {
			time.Sleep(pause)
			return heapInUse(), runtime.NumGoroutine()
		}
		work(200)
		before, routines := rest()
		work(load)
		after, left := rest()
		t.Logf("%d KiB and %d goroutines; after %d tasks more %d KiB and %d", before>>10, routines, load, after>>10, left)
		if left > routines+10 {
			t.Errorf("I15: %d goroutines are left of %d tasks", left-routines, load)
		}
		// Garbage that is not collected yet counts too much if there are few tasks.
		if longRun && after-before > int64(load*len(body)/4) {
			t.Errorf("I15: %d KiB are left of %d tasks with bodies of %d KiB", (after-before)>>10, load, len(body)>>10)
		}
	})
}
