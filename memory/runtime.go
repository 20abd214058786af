package memory

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// MaxDefault is the largest memory limit, in bytes, that a node chooses by itself; a
// smaller machine or container gets less. The limit is soft: near it the collector
// works harder, and beyond it the node still runs.
const MaxDefault = 384 << 20

// RuntimeLimit returns how many bytes the Go runtime of this process aims to stay below
// if memory is configured; 0 is the default. A limit that was set before takes precedence. Less than 0
// is none.
func RuntimeLimit(memory int64) int64 {
	if set := debug.SetMemoryLimit(-1); set != math.MaxInt64 {
		return set
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return -1
	}
	if memory == 0 {
		return defaultLimit()
	}
	return memory
}

// defaultLimit is the memory that a node uses on this machine by default. The limits of
// control groups rarely change, and a process is not moved, so it is read once.
var defaultLimit = sync.OnceValue(func() int64 { return Available().Default(MaxDefault) })

// minProcs is how many goroutines may run at a time, at least, however few the cores.
// A goroutine in an fsync keeps its P for a while, and a compaction of the store holds
// one for up to 10 ms: with two Ps everything else then waits, including the next
// commit. With more, the kernel shares the cores in shorter slices. On 2 cores and a
// fast disk that is some 12 % more submits.
const minProcs = 4

// TuneRuntime sets up the Go runtime for a node, before it opens a store, which takes
// much memory. The heap aims to stay below memory bytes, and a large heap
// does not grow to twice its live size: a store of 100 000 tasks must not cost as much
// as two. 0 is the default, less than 0 none.
//
// Earlier settings are left alone: GOMEMLIMIT, a limit set by a call, GOMAXPROCS, and
// any number of Ps other than the number of cores. So is the quota of a container:
// more Ps would only exhaust it sooner and then all wait for its next period. Once
// there are more Ps than cores the runtime does not follow a quota that is set later.
func TuneRuntime(memory int64) {
	if limit := RuntimeLimit(memory); limit > 0 {
		debug.SetMemoryLimit(limit)
	}
	now := runtime.GOMAXPROCS(0)
	if n := goMaxProcs(now, runtime.NumCPU()); n != now && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}

// goMaxProcs returns how many goroutines may run at a time if now may today, on a
// machine with that many cores.
func goMaxProcs(now, cores int) int {
	if now != cores {
		return now // it was set on purpose
	}
	return max(cores, minProcs)
}
