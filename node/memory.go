package node

import (
	"cmp"
	"math"
	"runtime/debug"
)

// limitMemory keeps the heap from growing to twice what lives in it when that
// is a lot: a store of 100 000 tasks must not cost what two of them would. A
// limit that somebody set before, as GOMEMLIMIT does, is left alone.
func (n *Node) limitMemory() {
	limit := cmp.Or(n.cfg.Limits.MemoryLimit, defaultMemoryLimit)
	if limit > 0 && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(limit)
	}
}

// defaultMemoryLimit is soft: the collector works harder near it, and beyond it
// the node still runs.
const defaultMemoryLimit = 384 << 20
