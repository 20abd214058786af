package node

import (
	"cmp"
	"math"
	"os"
	"runtime"
	"runtime/debug"
)

// defaultMemoryLimit is soft: the collector works harder near it, and beyond it
// the node still runs.
const defaultMemoryLimit = 384 << 20

// minProcs is how many goroutines may run at a time, at least, on however few
// cores. One that is in an fsync keeps its place for a while, and a compaction of
// the store holds one for up to 10 ms: with two places all else then waits, the
// next commit included. Where the cores are too few the kernel shares them out, in
// shorter turns. On 2 cores it is some 12 % more submits.
const minProcs = 4

// TuneRuntime sets what the process of a node wants of the Go runtime; [Node.Run]
// calls it. The heap aims to stay below memory bytes and does not grow to twice what
// lives in it when that is a lot: a store of 100 000 tasks must not cost what two of
// them would. 0 is the default of [Limits], less than 0 none. A limit that was set
// before, as GOMEMLIMIT does, and GOMAXPROCS in the environment are left alone; a
// program that sets fewer places by a call gets minProcs all the same.
func TuneRuntime(memory int64) {
	if limit := cmp.Or(memory, defaultMemoryLimit); limit > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(limit)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < minProcs {
		runtime.GOMAXPROCS(minProcs)
	}
}
