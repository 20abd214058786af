package node

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/balefire/balefire/memory"
)

// maxDefaultMemory is the largest memory limit that a node chooses by itself; a smaller
// machine or container gives it less. The limit is soft: the collector works harder
// near it, and beyond it the node still runs.
const maxDefaultMemory = 384 << 20

// memoryLimit returns how many bytes the Go runtime of this process aims to stay
// below when a person asked for memory: what was set before goes first. Less than
// 0 is none.
func memoryLimit(memory int64) int64 {
	if set := debug.SetMemoryLimit(-1); set != math.MaxInt64 {
		return set
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return -1
	}
	if memory == 0 {
		return available()
	}
	return memory
}

// available is what a node takes of this machine by itself. The limits of control
// groups rarely change, and a process is not moved: it is asked once.
var available = sync.OnceValue(func() int64 { return memory.Available().Default(maxDefaultMemory) })

// minProcs is how many goroutines may run at a time, at least, on however few
// cores. One that is in an fsync keeps its place for a while, and a compaction of
// the store holds one for up to 10 ms: with two places all else then waits, the
// next commit included. The kernel then shares out the cores, in shorter turns. On
// 2 cores and a quick disk it is some 12 % more submits.
const minProcs = 4

// TuneRuntime sets what the process of a node wants of the Go runtime; [New]
// calls it: a store that is opened takes much. The heap aims to stay below memory bytes and does not grow to twice what
// lives in it when that is a lot: a store of 100 000 tasks must not cost what two of
// them would. 0 is the default of [Limits], less than 0 none.
//
// What was set before is left alone: GOMEMLIMIT, a limit by a call, GOMAXPROCS, and
// any number of places but that of the cores. So is the quota of a container, where
// more of them at a time would only sooner stand still together until its next
// period. Once there are more places than cores the runtime does not follow a quota
// that is set later.
func TuneRuntime(memory int64) {
	if limit := memoryLimit(memory); limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	now := runtime.GOMAXPROCS(0)
	if n := goMaxProcs(now, runtime.NumCPU()); n != now && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}

// goMaxProcs returns how many goroutines may run at a time where now may, on cores.
func goMaxProcs(now, cores int) int {
	if now != cores {
		return now // somebody wanted it so
	}
	return max(cores, minProcs)
}
