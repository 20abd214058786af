package node

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
)

// untuned puts the Go runtime back to what it is like at the start of a process, on
// a machine of two cores, until the test ends.
func untuned(t *testing.T) {
	memory, procs := debug.SetMemoryLimit(math.MaxInt64), runtime.GOMAXPROCS(2)
	t.Cleanup(func() {
		debug.SetMemoryLimit(memory)
		runtime.GOMAXPROCS(procs)
	})
	t.Setenv("GOMAXPROCS", "")
}

func TestTuneRuntime(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(*testing.T)
		memory int64
		limit  int64
		procs  int
	}{
		{"by default", func(*testing.T) {}, 0, defaultMemoryLimit, minProcs},
		{"with a limit", func(*testing.T) {}, 64 << 20, 64 << 20, minProcs},
		{"without a limit", func(*testing.T) {}, -1, math.MaxInt64, minProcs},
		{"GOMEMLIMIT wins", func(*testing.T) { debug.SetMemoryLimit(1 << 30) }, 0, 1 << 30, minProcs},
		{"GOMAXPROCS wins", func(t *testing.T) { t.Setenv("GOMAXPROCS", "2") }, 0, defaultMemoryLimit, 2},
		{"more cores stay", func(*testing.T) { runtime.GOMAXPROCS(8) }, 0, defaultMemoryLimit, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			untuned(t)
			c.before(t)
			TuneRuntime(c.memory)
			if limit, procs := debug.SetMemoryLimit(-1), runtime.GOMAXPROCS(0); limit != c.limit || procs != c.procs {
				t.Errorf("limit %d, %d at a time; want %d, %d", limit, procs, c.limit, c.procs)
			}
		})
	}
}
