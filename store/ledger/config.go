package ledger

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// MaxSegment is the largest segment in bytes.
const MaxSegment = 100 << 20

const (
	page     = 4 << 10 // bytes; what is written ends at a multiple of it
	minBatch = 256     // smallest Config.MaxBatch
	// maxUnsynced is how many bytes of relaxed batches are synced at once: those that
	// queue meanwhile wait.
	maxUnsynced = 4 << 20

	maxSpares  = 4 // released segments that are kept to be used again
	askEvery   = time.Second
	minReserve = 256 << 20
)

// Config tunes a ledger. The zero value of each field means its default.
type Config struct {
	Segment  int64 // bytes of a new segment; default 64 MiB, at most MaxSegment, at least what a batch needs
	MaxBatch int   // bytes of a batch, a multiple of 8; default and at most 1 MiB, at least 256
	Ring     int   // bytes of memory that has the last batches for readers; default 16 MiB, at least two batches

	// SyncEvery is how long a relaxed batch is not on disk at most, besides the
	// duration of the sync, which begins sooner after 4 MiB; default 100ms.
	SyncEvery time.Duration

	// Pace is how long after a batch of more than 16 entries the next one begins at the
	// earliest, up to MaxPace: fewer syncs wear the disk less, at the cost of a later
	// answer; default: at once.
	Pace time.Duration

	// Space returns the free and the total bytes of the disk, see
	// [store.DiskSpace]. It is called at most once a second, and when a ledger is made.
	// Default: none, the disk is never full.
	Space func() (free, total int64, err error)
	// Reserve is the free space in bytes below which new work is refused.
	// Default: the larger of 256 MiB and 5 % of the disk; negative: no reserve.
	Reserve int64

	// Committed is called by the committer with how long it took to write a batch and, unless all
	// of it is relaxed, to sync it. It must not wait. Default: nobody is told.
	Committed func(took time.Duration)

	// Fail is called with the name of each failpoint; an error that it returns fails the log.
	// Default: nothing fails.
	Fail func(point string) error

	Clock  clock.Clock  // wall time of batches; default clock.System()
	Logger *slog.Logger // repairs and what could not be removed; default slog.Default()

	fs fileSystem // default: that of the machine
}

// PointWritten is the failpoint at which a test build exits when batches are written and not
// synced.
const PointWritten = "ledger/written"

// MaxPace is the longest [Config.Pace].
const MaxPace = 100 * time.Millisecond

func (c Config) withDefaults() (Config, error) {
	c.Segment = cmp.Or(c.Segment, 64<<20)
	c.MaxBatch = cmp.Or(c.MaxBatch, MaxBatch)
	c.SyncEvery = cmp.Or(c.SyncEvery, 100*time.Millisecond)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Committed == nil {
		c.Committed = func(time.Duration) {}
	}
	if c.Fail == nil {
		c.Fail = func(string) error { return nil }
	}
	if c.fs == nil {
		c.fs = osFS{}
	}
	if c.MaxBatch < minBatch || c.MaxBatch > MaxBatch || c.MaxBatch%8 != 0 {
		return c, fmt.Errorf("a batch of %d bytes: it must be a multiple of 8 from %d to %d", c.MaxBatch, minBatch, MaxBatch)
	}
	if least := segmentHead + int64(c.MaxBatch) + batchHead; c.Segment < least || c.Segment > MaxSegment {
		return c, fmt.Errorf("a segment of %d bytes: it must have %d to %d", c.Segment, least, MaxSegment)
	}
	if c.Pace < 0 || c.Pace > MaxPace {
		return c, fmt.Errorf("the pace %v is out of range: it must be from 0 to %v", c.Pace, MaxPace)
	}
	c.Ring = max(cmp.Or(c.Ring, 16<<20), 2*(c.MaxBatch+2*page))
	return c, nil
}

// reserve returns the reserve in bytes on a disk of total bytes.
func (c *Config) reserve(total int64) int64 {
	switch {
	case c.Reserve < 0:
		return 0
	case c.Reserve > 0:
		return c.Reserve
	}
	return max(minReserve, total/20)
}

// spaceFor returns [store.ErrNoDisk] if a new file of n bytes would use the reserve.
func (c *Config) spaceFor(n int64) error {
	if c.Space == nil {
		return nil
	}
	if free, total, err := c.Space(); err == nil && free-n < c.reserve(total) {
		return store.ErrNoDisk
	}
	return nil
}
