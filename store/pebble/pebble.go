// Package pebble keeps a store in Pebble, a log-structured merge tree: it uses
// constant memory and opens quickly however much it holds.
//
//	Commit ──▶ batch ──▶ write-ahead log ──▶ fsync ──▶ a new view
//	Get, Scan ─────────────────────────────────────────▶ reads it
//
// A key on disk is the number of its bucket and the key. Readers see the state
// of the last commit whose fsync has returned, never one in progress. Pebble waits
// forever on a full disk and terminates the process on a failed log; here both are
// errors of Commit, in bounded time.
package pebble

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/balefire/balefire/store"
)

// format is the layout of new stores. The log of this one has offsets in its
// chunks that tell a torn end from damage before it.
const format = pebble.FormatNewest

// ErrStuck means that Pebble did not answer in time, as on a full disk. The
// outcome is unknown.
var ErrStuck = errors.New("pebble: no answer")

// Config tunes an engine. The zero value of each field means its default.
type Config struct {
	MemTableSize int64 // bytes collected in memory before they become a table; default 8 MiB
	CacheSize    int64 // bytes of blocks and memtables kept in memory; default 32 MiB

	// CommitTimeout is how long a commit may take before it fails with
	// [ErrStuck]; default 30s. An open that takes longer fails only if Pebble
	// has reported an error meanwhile.
	CommitTimeout time.Duration
	CloseTimeout  time.Duration // how long Close waits for work in progress; default 10s

	ReadOnly bool // change no file of the store, which must exist; every commit fails

	FS     vfs.FS       // default: the disk
	Logger *slog.Logger // default slog.Default()
}

func (c Config) withDefaults() Config {
	c.MemTableSize = cmp.Or(c.MemTableSize, 8<<20)
	c.CacheSize = cmp.Or(c.CacheSize, 32<<20)
	c.CommitTimeout = cmp.Or(c.CommitTimeout, 30*time.Second)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, 10*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.FS == nil {
		c.FS = vfs.Default
	}
	return c
}

// A DB is a [store.Engine] over one Pebble store.
type DB struct {
	db      *pebble.DB
	lock    *pebble.Lock
	cfg     Config
	monitor *monitor
	faults  *faultFS

	writing sync.WaitGroup // commits in progress, including abandoned ones
	mu      sync.RWMutex
	view    *view // of the last durable commit; nil once closed
}

var _ store.Engine = (*DB)(nil)

// Open opens the store in dir, which it creates unless it may only read. [store.ErrLocked] says that
// another process has it open, [store.ErrCorrupt] that its files are damaged.
func Open(dir string, cfg Config) (*DB, error) {
	cfg = cfg.withDefaults()
	if !cfg.ReadOnly {
		if err := cfg.FS.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("pebble: create %s: %w", dir, err)
		}
	}
	lock, err := pebble.LockDirectory(dir, cfg.FS)
	if _, ok := errors.AsType[*fs.PathError](err); ok { // the lock file could not be made
		return nil, fmt.Errorf("pebble: lock %s: %w", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: another process has %s open: %w", store.ErrLocked, dir, err)
	}
	d := &DB{lock: lock, cfg: cfg, monitor: newMonitor(cfg.Logger)}
	d.faults = newFaultFS(cfg.FS, dir, d.monitor)
	if d.db, err = d.open(dir); err != nil {
		return nil, err
	}
	d.faults.armed.Store(true)
	d.view = &view{snap: d.db.NewSnapshot(), refs: 1}
	return d, nil
}

// open opens dir in a goroutine of its own, because Pebble may block forever and
// may end the goroutine. A goroutine that is no longer waited for closes what it
// opened.
func (d *DB) open(dir string) (*pebble.DB, error) {
	type result struct {
		db  *pebble.DB
		err error
	}
	opened, abandoned := make(chan result), make(chan struct{})
	go func() {
		r := result{err: errors.New("pebble: the open was ended")}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("%w: pebble panicked: %v", store.ErrCorrupt, p)
			}
			if r.err != nil {
				d.lock.Close()
			}
			select {
			case opened <- r:
			case <-abandoned:
				if r.err == nil {
					r.db.Close()
					d.lock.Close()
				}
			}
		}()
		r.db, r.err = openTwice(dir, d.options())
	}()
	timer := time.NewTicker(d.cfg.CommitTimeout)
	defer timer.Stop()
	for {
		select {
		case r := <-opened:
			if r.err != nil {
				return nil, fmt.Errorf("pebble: open %s: %w", dir, cmp.Or(d.monitor.failed(), markOpen(r.err)))
			}
			return r.db, nil
		case <-timer.C:
			if cause := d.monitor.trouble(); cause != nil {
				close(abandoned)
				return nil, fmt.Errorf("pebble: open %s: %w for %v: %w", dir, ErrStuck, d.cfg.CommitTimeout, cause)
			}
		}
	}
}

// openTwice opens the store in dir. The first log of a new store, or of one of
// an older format, is still written in the old format: such a store is opened,
// closed and opened again before anything goes into it.
func openTwice(dir string, opts func() *pebble.Options) (*pebble.DB, error) {
	o := opts()
	desc, err := pebble.Peek(dir, o.FS)
	if err != nil {
		return nil, err
	}
	if err := guard(o.FS, dir, desc); err != nil {
		return nil, err
	}
	switch {
	case o.ReadOnly && !desc.Exists:
		return nil, fmt.Errorf("there is no store: %w", fs.ErrNotExist)
	case o.ReadOnly:
	case !desc.Exists || desc.FormatMajorVersion < format:
		db, err := pebble.Open(dir, o)
		if err != nil {
			return nil, err
		}
		if err := db.Close(); err != nil {
			return nil, err
		}
		o = opts()
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, err
	}
	if got := db.FormatMajorVersion(); got != format {
		db.Close()
		return nil, fmt.Errorf("the format is %v after the open, want %v", got, format)
	}
	return db, nil
}

// options returns a maker of options: a set serves one open.
func (d *DB) options() func() *pebble.Options {
	return func() *pebble.Options {
		o := &pebble.Options{
			FS: d.faults, Lock: d.lock, Logger: d.monitor, EventListener: d.monitor.listener(),
			FormatMajorVersion: format,
			MemTableSize:       uint64(d.cfg.MemTableSize), MemTableStopWritesThreshold: 4,
			L0CompactionThreshold: 8, L0StopWritesThreshold: 24, // 4 would merge the same tables more often: a quarter more CPU per submit
			CacheSize: d.cfg.CacheSize, MaxOpenFiles: 256, BytesPerSync: 512 << 10, MaxManifestFileSize: 16 << 20,
			ReadOnly: d.cfg.ReadOnly,
		}
		for i := range o.Levels { // most requirements ask for a key that is absent
			o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
			o.Levels[i].Compression = func() *block.CompressionProfile { return block.SnappyCompression }
		}
		return o
	}
}

// Compact implements [store.Engine]. Pebble compacts by itself; this does it
// all at once.
func (d *DB) Compact() error {
	for _, b := range store.Buckets() {
		ctx, cancel := d.monitor.context()
		err := d.db.Compact(ctx, []byte{byte(b)}, []byte{byte(b) + 1}, false)
		cancel()
		if err != nil {
			return fmt.Errorf("pebble: compact %v: %w", b, mark(err))
		}
	}
	return nil
}

// Snapshot implements [store.Engine]. It links files where the disk can.
func (d *DB) Snapshot(dir string) error {
	if err := d.db.Checkpoint(dir, pebble.WithFlushedWAL()); err != nil {
		return fmt.Errorf("pebble: snapshot: %w", mark(err))
	}
	return nil
}

// Stats implements [store.Engine].
func (d *DB) Stats() store.Stats {
	m := d.db.Metrics()
	s := store.Stats{Engine: "pebble", DiskBytes: int64(m.DiskSpaceUsage()), Keys: -1}
	for _, l := range m.Levels {
		s.LiveBytes += l.TablesSize
	}
	s.LiveBytes += int64(m.MemTable.Size)
	return s
}

// Close implements [store.Engine]. If Pebble still waits for a disk that is
// full, Close gives up after a while; the folder is then free again once the
// disk has space, or with the end of the process.
func (d *DB) Close() error {
	d.mu.Lock()
	v := d.view
	d.view = nil
	d.mu.Unlock()
	if v == nil {
		return nil
	}
	closed := make(chan error, 1)
	go func() {
		err := errors.New("pebble: the close was ended")
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("pebble: close panicked: %v", p)
			}
			closed <- err
		}()
		d.writing.Wait()
		v.release()
		err = errors.Join(d.db.Close(), d.lock.Close())
	}()
	timer := time.NewTimer(d.cfg.CloseTimeout)
	defer timer.Stop()
	select {
	case err := <-closed:
		if err != nil {
			return fmt.Errorf("pebble: close: %w", err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("pebble: close: %w for %v: %w", ErrStuck, d.cfg.CloseTimeout, d.monitor.why())
	}
}

// mark adds [store.ErrCorrupt] to an error caused by damage.
func mark(err error) error {
	if pebble.IsCorruptionError(err) {
		return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return err
}

// markOpen is mark for an open, where a missing file is damage too.
func markOpen(err error) error {
	if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, store.ErrCorrupt) {
		return fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return mark(err)
}
