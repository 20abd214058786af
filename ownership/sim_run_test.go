package ownership

import (
	"flag"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	simSeeds = flag.Int("sim.seeds", 0, "seeds to run; 0: as many as fit into -sim.for")
	simFrom  = flag.Uint64("sim.from", 0, "the first seed")
	simOf    = flag.String("sim.task", "", "print what happens to the task whose id ends so")
	simFor   = flag.Duration("sim.for", 3*time.Second, "how long to run seeds")
)

// enough is how many seeds may fail before a run ends: the others often show the same
// failure.
const enough = 5

// runSeeds runs seeds on two processors until there are n, or the time is over, and returns
// the number of runs and all counters.
func runSeeds(t *testing.T, from uint64, n int, d time.Duration) (int, map[string]int) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // a seed makes much garbage and keeps nothing
	begin := time.Now()
	var bad atomic.Int64
	var next atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	all := map[string]int{}
	ran := 0
	for range 2 {
		wg.Go(func() {
			for bad.Load() < enough {
				i := next.Add(1) - 1
				if n > 0 && i >= uint64(n) || n == 0 && time.Since(begin) > d {
					return
				}
				w := simulate(from + i)
				mu.Lock()
				ran++
				for k, v := range w.counters {
					all[k] += v
				}
				if w.failed != "" {
					bad.Add(1)
					t.Errorf("seed %d: %s\nreplay: go test ./ownership -run '^TestSimulator$' -sim.from=%d -sim.seeds=1", from+i, w.failed, from+i)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds, %.0f a second", ran, float64(ran)/time.Since(begin).Seconds())
	return ran, all
}

// keptSeeds are seeds that once found a bug, and the bug. A change of the simulator changes
// their runs: the named test covers the bug for good.
var keptSeeds = map[uint64]string{
	32544:  "a grant was accepted after its new home had been told never: TestALateGrantAfterTheNewHomeAsked",
	114194: "a lane stayed blocked, because its owner did not answer about the earlier of two leases: TestALeaseOfTwoHomesEndsForBoth",
	28357:  "a home that forgot granted without a pause what was refused: TestAHomeThatLostItsQueueIsRefusedWithoutAlarm",

	29736: "a start was early whose lease was not on disk: TestNoEarlyStartUnderASecondLease",

	3124317604: "tasks of a lane waited for each other at a handoff: TestNoTaskWaitsForOneThatCameBack",
	3124317752: "an owner forgot a success while a later grant was on its way: TestALateGrantOfATaskThatSucceededHere",
	3124366447: "a task waits for a slow clock, as it must: the simulator gave up too early",
}

func TestKeptSeeds(t *testing.T) {
	for seed, found := range keptSeeds {
		if w := simulate(seed); w.failed != "" {
			t.Errorf("seed %d, which once found that %s: %s", seed, found, w.failed)
		}
	}
}

// TestSimulator checks I3, I4, I5, I6, I7, I10, I11, I14, I16 and I20 (S19, S20, S22, S23, S24,
// S25, S29, S32, S34, S36, S38): whole nodes, disks and a faulty network, from seeds.
func TestSimulator(t *testing.T) {
	seeds := *simSeeds
	if v, err := strconv.Atoi(os.Getenv("BALEFIRE_SEEDS")); err == nil && seeds == 0 {
		seeds = v
	}
	ran, all := runSeeds(t, *simFrom, seeds, *simFor)
	t.Logf("counted: %d seeds", ran)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		t.Logf("%-32s %d", k, all[k])
	}
	if ran < 500 {
		return
	}
	must := sometimes
	if ran >= 10_000 {
		must = append(slices.Clone(sometimes), rarely...)
	}
	for _, what := range must {
		if all[what] == 0 {
			t.Errorf("in %d seeds %q never happened: the simulator has gone blind", ran, what)
		}
	}
}

// sometimes are the situations that the simulator must reach.
var sometimes = []string{
	"straggler", "stale result", "clock jump", "graceful stop", "cancel", "cancel after a handoff", "durable and not acknowledged", "unsynced lost",
	"died while running", "suspended", "rolled back", "paused", "queue handed over", "seized from a live home", "impostor", "usurper", "fork", "forged",
	"granted", "taken", "declined", "released", "lapsed", "owner_dead", "revived", "conflict", "permitted", "ended", "late_result",
	"moved_out", "moved_in", "seized", "yielded", "lane_blocked", "reclaim_skipped", "adopted", "started", "lease_lost", "result_lost", "stalled",
	"old_grant_refused", "crashed", "home_moved", "indeterminate", "ignored",
	"mailbox created", "mailbox created twice",
	"isolated", "isolated and granted to itself", "granted ahead", "returned",
}

// rarely are those that need more seeds.
var rarely = []string{"rolled back with its clock"}

// settled reports whether every accepted task has ended, and all nodes name the same homes.
func (w *checker) settled() bool {
	for _, id := range w.order {
		if t := w.tasks[id]; t.accepted && t.end == nil && !t.rolled {
			return false
		}
	}
	for _, name := range simNames {
		homes := map[string]bool{}
		for _, x := range w.s.nodes {
			homes[string(x.home.Queue(name).GetHome())] = true
		}
		if len(homes) > 1 {
			return false
		}
	}
	return true
}
