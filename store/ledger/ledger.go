package ledger

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/store"
)

// A Ledger is an open ledger. All its methods are safe for concurrent use.
type Ledger struct {
	dir  string
	cfg  Config
	id   ID
	torn string // name of the file with what Open took off the end

	queue    *store.Queue[*request]
	requests sync.Pool // of *request
	ring     *ring
	segments segments
	spares   *spares
	space    space
	counters counters

	last   atomic.Uint64 // index of the last batch that is answered or being answered
	synced atomic.Uint64 // index of the last batch that is on disk
	newest atomic.Uint64 // index of the newest checkpoint, 0: none

	checkpointing sync.Mutex
	checkpoints   []uint64 // indexes of those that can be read, at most two, ascending; under checkpointing
	pinned        bool     // a snapshot reads what there is: nothing is removed; under checkpointing

	snapshotting sync.Mutex // held while a snapshot is written

	failure atomic.Pointer[error] // the first failure, wrapped in ErrFailed
	failed  chan struct{}         // closed with it
	closed  atomic.Bool
	closing sync.Once

	committing sync.WaitGroup // the committer
	supplying  sync.WaitGroup // the goroutine of spares
}

type counters struct{ batches, entries, syncs, fileReads atomic.Uint64 }

// Open opens the ledger in dir, or makes one if there is none; the folder above dir
// must exist. It checks what is there, repairs a torn end, makes durable what an
// ended process had written, and starts the committer, which runs until Close. A
// ledger must be open only once: the caller locks the folder, see [store.LockDir].
// A new one that would use the reserve of the disk is refused with [store.ErrNoDisk].
//
// Damage is a [*DamageError].
func Open(dir string, cfg Config) (*Ledger, error) {
	l, err := open(dir, cfg)
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", dir, err)
	}
	return l, nil
}

func open(dir string, cfg Config) (*Ledger, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &recovery{dir: dir, cfg: cfg}
	if err := r.run(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	l := &Ledger{
		dir: dir, cfg: cfg, id: r.id, torn: r.aside, checkpoints: r.good,
		queue: store.NewQueue[*request](), requests: sync.Pool{New: newRequest}, ring: newRing(cfg.Ring),
		spares: newSpares(dir, cfg), failed: make(chan struct{}),
	}
	l.space.cfg = &l.cfg
	l.segments.list = r.segments
	l.last.Store(r.tail.last)
	l.synced.Store(r.tail.last)
	l.newest.Store(r.newest())
	c := &committer{l: l, seg: r.segments[len(r.segments)-1], tail: r.tail, timer: time.NewTimer(time.Hour)}
	l.committing.Go(c.run)
	l.supplying.Go(l.spares.run)
	return l, nil
}

// Close writes and syncs what is queued, answers it, and stops the ledger. It
// returns why the log failed, if it did.
func (l *Ledger) Close() error {
	var err error
	l.closing.Do(func() {
		l.queue.Close()
		l.committing.Wait()
		l.spares.close()
		l.supplying.Wait()
		l.closed.Store(true)
		l.snapshotting.Lock() // a snapshot ends soon
		defer l.snapshotting.Unlock()
		err = l.segments.close()
	})
	return errors.Join(l.Err(), err)
}

// Failed returns a channel that is closed when the log fails: see [store.ErrFailed].
func (l *Ledger) Failed() <-chan struct{} { return l.failed }

// Err returns nil, or why the log failed.
func (l *Ledger) Err() error {
	if err := l.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail records the first failure and returns it.
func (l *Ledger) fail(err error) error {
	err = fmt.Errorf("%w: %w", store.ErrFailed, err)
	if l.failure.CompareAndSwap(nil, &err) {
		close(l.failed)
	}
	return l.Err()
}

// Stats are figures of an open ledger. Counts begin when it is opened.
type Stats struct {
	First      uint64 // index of the first batch that is still there
	Last       uint64 // index of the last batch that is answered or being answered, 0: none yet
	Synced     uint64 // index of the last batch that is on disk
	Checkpoint uint64 // index of the newest checkpoint that can be read, 0: none
	Segments   int
	Spares     int    // files that will be segments
	Bytes      int64  // size of the segments
	Batches    uint64 // that were written
	Entries    uint64 // in them
	Syncs      uint64 // of the log
	FileReads  uint64 // calls of Read that were not served from memory
	Torn       string // name of the file with what Open took off the end; empty: nothing
}

// Stats returns figures. It waits for nothing.
func (l *Ledger) Stats() Stats {
	s := Stats{
		Last: l.last.Load(), Synced: l.synced.Load(), Checkpoint: l.newest.Load(), Spares: l.spares.count(), Torn: l.torn,
		Batches: l.counters.batches.Load(), Entries: l.counters.entries.Load(),
		Syncs: l.counters.syncs.Load(), FileReads: l.counters.fileReads.Load(),
	}
	s.First, s.Segments, s.Bytes = l.segments.summary()
	return s
}
