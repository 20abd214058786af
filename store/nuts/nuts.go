// Package nuts is the default engine of the store: NutsDB, restricted to the few
// calls that keep their promises, behind a guard that runs before every open.
//
// Its promise: acknowledged commits survive a kill, a power cut, a torn write and a
// full disk, as whole transactions only; and if the disk itself lost acknowledged
// bytes, Open fails instead of continuing without them.
//
//	dir/
//	├── CURRENT               the current generation, and its segment size
//	├── gen-000007/           one NutsDB folder
//	│   ├── .acked            how far the log was acknowledged (no fsync of its own)
//	│   ├── 0.dat 1.dat …     the log, in segments
//	│   └── bucket.Meta       names of the buckets
//	└── quarantine/           torn tails that the guard set aside
//
//	Open:     lock ─▶ survey the log ─▶ set a torn tail aside ─▶ NutsDB ─▶ compare
//	Compact:  live records ─▶ gen-000008 ─▶ survey it ─▶ CURRENT ─▶ remove gen-000007
//
// NutsDB v1.1.0 cannot open a log with a torn tail, swallows transactions that follow
// one, and loses data in its merge, its TTL and its nil values. The tests named Canary
// demonstrate each of these; while one of them passes, its workaround must stay.
package nuts

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

const (
	maxKey  = 4 << 10  // longest key, bytes; the front allows 256
	maxVal  = 16 << 20 // longest value, bytes; the front allows far less
	maxScan = 1000     // pairs one Scan returns at most
)

// Config tunes the engine. The zero value of each field means its default.
type Config struct {
	// SegmentSize is the size of one log file in bytes; default 64 MiB, at
	// least 256 KiB. A record must fit; a generation keeps the size it was created
	// with.
	SegmentSize int64
	// Logger logs repairs of the guard; default slog.Default().
	Logger *slog.Logger
	// Progress is called while a store opens, at least every second, with the
	// bytes read so far and the bytes to read; default none.
	Progress func(done, total int64)
	// MaxMemory is how many bytes the records may take in memory; a store that
	// needs more is refused with [store.ErrNeedsMemory] before it is loaded.
	// Default: any number.
	MaxMemory int64
	// Clock spaces compactions; default clock.System().
	Clock clock.Clock

	at func(point string) // tests stop the process at these points
}

func (c Config) withDefaults() Config {
	c.SegmentSize = max(cmp.Or(c.SegmentSize, 64<<20), 256<<10)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Progress == nil {
		c.Progress = func(int64, int64) {}
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.at == nil {
		c.at = func(string) {}
	}
	return c
}

// A DB is an open engine. It implements [store.Engine].
type DB struct {
	dir string
	cfg Config

	snapshots sync.RWMutex // held for reading by Snapshot, for writing by Close

	// mu is held for reading by reads, for writing by Commit, by the switch of
	// generations and by Close. NutsDB has such a lock of its own; this one also
	// lets waiting readers out when a panic inside NutsDB leaves that one locked.
	mu     sync.RWMutex
	gen    *generation
	down   error // why all calls fail: closed, or NutsDB panicked
	failed error // why writes are refused: the first error of a commit

	recent *recent    // acknowledged records of gen; cleared if that may be wrong
	own    []store.Op // Commit's copy of its ops

	compacted time.Duration // clock.Mono of the last compaction; 0: none
	live      liveness
}

var _ store.Engine = (*DB)(nil)

var errClosed = fmt.Errorf("nuts: %w", store.ErrClosed)

// Open opens the store in dir and creates it if needed. A torn tail is set aside; damage
// to acknowledged data is a [store.ErrCorrupt], a store in use by another process
// [store.ErrLocked], a folder of another engine [store.ErrOtherEngine].
func Open(dir string, cfg Config) (*DB, error) {
	cfg = cfg.withDefaults()
	g, err := openCurrent(dir, cfg)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	return &DB{dir: dir, cfg: cfg, gen: g, recent: newRecent()}, nil
}

// Get returns a private copy of the value at key.
func (d *DB) Get(b store.Bucket, key []byte) (val []byte, ok bool, err error) {
	if err := checkBucket(b); err != nil {
		return nil, false, err
	}
	if val, ok, known := d.recent.get(b, key); known {
		return val, ok, nil
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.down != nil {
		return nil, false, d.down
	}
	return d.gen.raw.get(b, key)
}

// Scan returns private copies of up to limit pairs with start <= key < end.
func (d *DB) Scan(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error) {
	if err := checkBucket(b); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.down != nil {
		return nil, d.down
	}
	return d.gen.raw.scan(b, start, end, min(limit, maxScan))
}

// Commit makes ops durable, all or none. After an error from the disk every further
// Commit is refused until the store is closed and opened again: only the guard can tell
// how much of the failed transaction reached the disk.
func (d *DB) Commit(ops []store.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := cmp.Or(d.down, d.failed); err != nil {
		return err
	}
	for i := range ops {
		if err := d.gen.check(&ops[i]); err != nil {
			return err
		}
	}
	d.own = owned(d.own[:0], ops)
	err := d.gen.commit(d.own)
	if err == nil {
		d.recent.put(d.own)
	}
	clear(d.own)
	if err == nil {
		return nil
	}
	d.recent.forget()
	d.failed = fmt.Errorf("nuts: commit failed, close and reopen the store: %w", err)
	if errors.Is(err, errWedged) {
		d.down = d.failed
	}
	return d.failed
}

// owned appends ops to dst with copies of their keys and values: NutsDB keeps the
// slices of a put.
func owned(dst, ops []store.Op) []store.Op {
	for _, op := range ops {
		if !op.Delete {
			kv := join(op.Key, op.Val)
			op.Key, op.Val = kv[:len(op.Key):len(op.Key)], kv[len(op.Key):]
		}
		dst = append(dst, op)
	}
	return dst
}

// Close releases the files. A second Close does nothing.
func (d *DB) Close() error {
	d.snapshots.Lock()
	defer d.snapshots.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if errors.Is(d.down, errClosed) {
		return nil
	}
	d.recent.forget()
	err := d.gen.close(d.failed == nil)
	d.down, d.failed = errClosed, errClosed
	if err != nil {
		return fmt.Errorf("close store %s: %w", d.dir, err)
	}
	return nil
}

func checkBucket(b store.Bucket) error {
	if b < store.PendingTasks || b > store.Meta {
		return fmt.Errorf("%w: no bucket has the number %d", store.ErrKey, byte(b))
	}
	return nil
}

// check refuses operations that must not reach NutsDB, before anything is written.
func (g *generation) check(op *store.Op) error {
	switch {
	case len(op.Key) == 0 || len(op.Key) > maxKey:
		return fmt.Errorf("%w: it has %d bytes, not 1 to %d", store.ErrKey, len(op.Key), maxKey)
	case len(op.Val) > maxVal || int64(maxHeader+len(op.Key)+len(op.Val)) > g.segment:
		return fmt.Errorf("%w: a value of %d bytes in segments of %d", store.ErrTooLarge, len(op.Val), g.segment)
	}
	return checkBucket(op.Bucket)
}
