package store

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
)

// MaxKey is the longest key, in bytes.
const MaxKey = 256

// MaxScan is the largest number of pairs that one [Store.Scan] or [Engine] scan
// returns.
const MaxScan = 1000

// Config tunes a store. The zero value of each field means its default.
type Config struct {
	MaxGroupOps   int // operations after which a group is closed; default 512
	MaxGroupBytes int // bytes after which a group is closed; default 1 MiB
	MaxBatchBytes int // largest batch; default 4 MiB
	MaxValue      int // largest value; default 64 KiB

	Clock clock.Clock // wall time for expiry; default clock.System()

	// Space returns the free and the total bytes of the disk, see [DiskSpace].
	// Default: none, the disk is never full.
	Space func() (free, total int64, err error)
	// Reserve is the free space in bytes below which new work is refused.
	// Default: the larger of 256 MiB and 5 % of the disk; negative: no reserve.
	Reserve int64

	// Memory returns how many bytes of the heap are in use and how many may be:
	// beyond that new work is refused. It is called often and must be quick; see
	// [HeapInUse]. Default: none, memory is never short.
	Memory func() (used, limit int64)
	// OnRefusal is called with the reason when new work starts to be refused, and
	// with nil when it is accepted again. It is called by the maintenance goroutine.
	// Default: none.
	OnRefusal func(why error)

	// SweepEvery is the interval between two steps of the sweeper, which checks up
	// to 256 keys per step and deletes expired records; default 1s; negative: only
	// the sweep on opening.
	SweepEvery time.Duration
	// CompactEvery is the interval at which the store checks whether the engine
	// needs compaction; default 10s; negative: only on request.
	CompactEvery time.Duration

	Registerer prometheus.Registerer // default: no metrics
}

func (c Config) withDefaults() Config {
	c.MaxGroupOps = cmp.Or(c.MaxGroupOps, 512)
	c.MaxGroupBytes = cmp.Or(c.MaxGroupBytes, 1<<20)
	c.MaxBatchBytes = cmp.Or(c.MaxBatchBytes, 4<<20)
	c.MaxValue = cmp.Or(c.MaxValue, 64<<10)
	c.SweepEvery = cmp.Or(c.SweepEvery, time.Second)
	c.CompactEvery = cmp.Or(c.CompactEvery, 10*time.Second)
	if c.OnRefusal == nil {
		c.OnRefusal = func(error) {}
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	return c
}
