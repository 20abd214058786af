package store

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
)

// MaxKey is the longest key, in bytes.
const MaxKey = 256

// MaxScan is the most pairs that one [Store.Scan] or [Engine] scan returns.
const MaxScan = 1000

// Config tunes a store. The zero value of each field means its default.
type Config struct {
	MaxGroupOps   int // operations after which a group is closed; default 512
	MaxGroupBytes int // bytes after which a group is closed; default 1 MiB
	MaxBatchBytes int // largest batch; default 4 MiB
	MaxValue      int // largest value; default 64 KiB

	Clock clock.Clock // wall time for expiry; default clock.System()

	// Space tells the free and the total bytes of the disk, see [DiskSpace].
	// Default: none, the disk is never full.
	Space func() (free, total int64, err error)
	// Reserve is the free space in bytes below which new work is refused.
	// Default: the larger of 256 MiB and 5 % of the disk; negative: no reserve.
	Reserve int64

	// Memory tells how many bytes of the heap are in use and how many may be:
	// beyond that new work is refused. It is asked often and must be quick; see
	// [HeapInUse]. Default: none, memory is never short.
	Memory func() (used, limit int64)
	// OnRefusal hears why new work is refused from now on, and nil when it is taken
	// again. It is called by the goroutine that tends the store. Default: none.
	OnRefusal func(why error)

	// SweepEvery is the pause between two steps of the sweeper, which looks at
	// up to 256 keys a step and deletes the expired; default 1s; negative: only
	// the sweep at the start.
	SweepEvery time.Duration
	// CompactEvery is the pause between two questions whether the engine wants
	// to be compacted; default 10s; negative: only when told to.
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
