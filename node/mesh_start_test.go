package node

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
)

// nodesAtOnce returns how many nodes start at once: 8, 50 with BALEFIRE_LONG, or
// BALEFIRE_HERD.
func nodesAtOnce() int {
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_HERD")); err == nil {
		return n
	}
	if longRun {
		return 50
	}
	return 8
}

// traffic returns the average traffic of a node between two readings.
func traffic(before, after transporttest.Stats, nodes int) (packets int, kib float64) {
	return (after.Sent - before.Sent) / nodes, float64(after.Bytes-before.Bytes) / float64(nodes) / 1024
}

// TestAllStartAtOnce verifies S46 for complete nodes that all start at the same moment,
// as after a power failure: each finds all others with its own address book, and all
// know all. The traffic of a node for that is bounded, and low afterwards.
func TestAllStartAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size := nodesAtOnce()
		w := newSimMeshWith(t, size, 1, lanLink, func(_ *simNode, cfg *Config) { cfg.Limits.MemoryLimit = -1 })
		defer w.close()
		soon := func(what string, ok func() bool) time.Duration {
			began := time.Now()
			for !ok() {
				if time.Since(began) > 2*time.Minute {
					t.Fatalf("%s: not within 2 minutes", what)
				}
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(began)
		}
		soon("the first view", func() bool { return w.allConnected() && w.allAlive() })
		for _, s := range w.nodes {
			s.crash()
		}
		time.Sleep(10 * time.Minute)
		before := w.Stats()
		var all sync.WaitGroup
		for _, s := range w.nodes {
			all.Go(s.start)
		}
		all.Wait()
		linked := soon("all are connected", w.allConnected)
		alive := linked + soon("all are known to live", w.allAlive)
		packets, kib := traffic(before, w.Stats(), size)
		time.Sleep(time.Minute)
		before = w.Stats()
		time.Sleep(time.Minute)
		idle, idleKiB := traffic(before, w.Stats(), size)
		var mem runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&mem)
		t.Logf("%d nodes: connected after %v, all known to live after %v; until then a node sent %d packets, %.0f KiB; idle %.1f packets and %.1f KiB per second; %d MiB of heap and stacks per node",
			size, linked, alive, packets, kib, float64(idle)/60, idleKiB/60, int(mem.HeapAlloc+mem.StackInuse)/size>>20)
		if linked > 30*time.Second || alive > time.Minute {
			t.Errorf("connected after %v, all known to live after %v", linked, alive)
		}
		if most := 100 * size; packets > most {
			t.Errorf("a node sent %d packets until then, more than %d", packets, most)
		}
	})
}
