package memory

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
)

// resetRuntime puts the Go runtime back to its state at the start of a process until
// the test ends.
func resetRuntime(t *testing.T) {
	memory, procs := debug.SetMemoryLimit(math.MaxInt64), runtime.GOMAXPROCS(runtime.NumCPU())
	t.Cleanup(func() {
		debug.SetMemoryLimit(memory)
		runtime.GOMAXPROCS(procs)
	})
	t.Setenv("GOMEMLIMIT", "")
	t.Setenv("GOMAXPROCS", "")
}

func TestTuneRuntime(t *testing.T) {
	cores := runtime.NumCPU()
	raised := max(cores, minProcs)
	for _, c := range []struct {
		name   string
		before func(*testing.T)
		memory int64
		limit  int64
		procs  int
	}{
		{"by default", func(*testing.T) {}, 0, defaultLimit(), raised},
		{"with a limit", func(*testing.T) {}, 64 << 20, 64 << 20, raised},
		{"without a limit", func(*testing.T) {}, -1, math.MaxInt64, raised},
		{"a limit by a call wins", func(*testing.T) { debug.SetMemoryLimit(1 << 30) }, 0, 1 << 30, raised},
		{"GOMEMLIMIT=off wins", func(t *testing.T) { t.Setenv("GOMEMLIMIT", "off") }, 0, math.MaxInt64, raised},
		{"GOMAXPROCS wins", func(t *testing.T) { t.Setenv("GOMAXPROCS", "2") }, 0, defaultLimit(), cores},
		{"more Ps stay", func(*testing.T) { runtime.GOMAXPROCS(cores + 5) }, 0, defaultLimit(), cores + 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			resetRuntime(t)
			c.before(t)
			TuneRuntime(c.memory)
			if limit, procs := debug.SetMemoryLimit(-1), runtime.GOMAXPROCS(0); limit != c.limit || procs != c.procs {
				t.Errorf("limit %d, %d at a time; want %d, %d", limit, procs, c.limit, c.procs)
			}
		})
	}
}

func TestGoMaxProcs(t *testing.T) {
	for _, c := range []struct{ now, cores, want int }{
		{1, 1, 4}, {2, 2, 4}, {3, 3, 4}, {4, 4, 4}, {8, 8, 8},
		{1, 2, 1}, {2, 64, 2}, {6, 2, 6}, // a quota, or set on purpose
	} {
		if got := goMaxProcs(c.now, c.cores); got != c.want {
			t.Errorf("%d at a time on %d cores: %d, want %d", c.now, c.cores, got, c.want)
		}
	}
}
