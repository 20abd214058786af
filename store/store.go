package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
)

// A Store is the front of one engine. All its methods are safe for concurrent
// use.
type Store struct {
	engine   Engine
	cfg      Config
	queue    *Queue[*request]
	requests sync.Pool // of *request
	expiry   expiryClock
	space    space
	heap     heap
	meter    *meter

	failure    atomic.Pointer[error]          // the first failure, wrapped in ErrFailed
	failed     chan struct{}                  // closed with it
	compacting atomic.Pointer[compactFailure] // nil: the last compaction succeeded

	engineMu    sync.RWMutex // held for reading while the engine is read
	closed      bool
	running     sync.WaitGroup // the committer
	maintenance sync.WaitGroup // the sweeper and the other maintenance
	stop        chan struct{}  // stops the maintenance
	halting     sync.Once
}

// Open returns the store kept in e and starts its committer, which runs until
// Close. It checks the schema number, or writes it into an empty store, and
// deletes expired records. On an error nothing is running and the caller still
// has to close e.
func Open(e Engine, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	s := &Store{
		engine: e, cfg: cfg, queue: NewQueue[*request](), meter: newMeter(),
		requests: sync.Pool{New: newRequest},
		expiry:   expiryClock{clock: cfg.Clock},
		failed:   make(chan struct{}), stop: make(chan struct{}),
	}
	s.space.reserve, s.space.ask = cfg.Reserve, cfg.Space
	s.space.refresh()
	s.heap.ask = cfg.Memory
	if err := checkSchema(e); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	c := &committer{s: s, overlay: newOverlay()}
	s.running.Go(c.run)
	if err := s.begin(); err != nil {
		s.halt()
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

// begin sweeps once, registers the metrics and starts the maintenance.
func (s *Store) begin() error {
	w := &sweeper{s: s}
	if err := w.all(); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	if s.cfg.Registerer != nil {
		if err := s.cfg.Registerer.Register(collector{s}); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	s.maintenance.Go(func() { s.maintain(w) })
	return nil
}

// Apply commits b and returns nil once it is on disk. Otherwise either it was not
// written and the error gives the reason ([ErrConflict], [ErrTooLarge], [ErrKey],
// [ErrFull], [ErrClosed], the context's), or the outcome is unknown
// ([ErrUnknown]; [ErrFailed] of the group that failed).
func (s *Store) Apply(ctx context.Context, b *Batch) error {
	if err := s.admit(b); err != nil {
		s.meter.refused(err)
		return err
	}
	r := s.requests.Get().(*request)
	r.one[0] = b
	r.batches, r.errs, r.left = r.one[:], r.oneErr[:], 1
	if err := s.do(ctx, r); err != nil {
		return err // the committer may still hold r
	}
	err := r.errs[0]
	s.release(r)
	return err
}

// ApplyMany commits each batch by itself, as Apply does, but queues them together
// and in order, so that they share as few groups as possible. It returns one
// error per batch. After [ErrUnknown] the store still owns the slice.
func (s *Store) ApplyMany(ctx context.Context, batches []*Batch) []error {
	if err := ctx.Err(); err != nil && s.Err() == nil {
		return repeat(fmt.Errorf("store: not started: %w", err), len(batches))
	}
	return s.Queue(batches).Wait(ctx)
}

// A Pending is a set of batches that were queued to be committed.
type Pending struct {
	s    *Store
	r    *request // nil: none of them was queued
	errs []error
}

// Queue is the first half of ApplyMany: it queues batches and returns at once.
// Batches queued by one goroutine are committed in that order. The store owns the
// batches until Wait has returned.
func (s *Store) Queue(batches []*Batch) *Pending {
	p := &Pending{s: s, errs: make([]error, len(batches))}
	left := 0
	for i, b := range batches {
		if p.errs[i] = s.admit(b); p.errs[i] != nil {
			s.meter.refused(p.errs[i])
		} else {
			left++
		}
	}
	if left == 0 {
		return p
	}
	if err := s.Err(); err != nil {
		p.errs = repeat(err, len(batches))
		return p
	}
	r := s.requests.Get().(*request)
	r.batches, r.errs, r.left = batches, p.errs, left
	if !s.queue.Push(r) {
		p.errs = repeat(ErrClosed, len(batches))
		return p
	}
	p.r = r
	return p
}

// Wait is the second half: it returns once all batches are on disk or refused,
// with one error per batch, or when ctx ends. It must be called once.
func (p *Pending) Wait(ctx context.Context) []error {
	if p.r == nil {
		return p.errs
	}
	if err := p.s.await(ctx, p.r); err != nil {
		return repeat(err, len(p.errs)) // the committer may still hold the request
	}
	p.s.release(p.r)
	return p.errs
}

func repeat(err error, n int) []error { return slices.Repeat([]error{err}, n) }

// Fits returns [ErrTooLarge] if no batch can hold a value of this size, for
// callers that need to know before they build a batch.
func (s *Store) Fits(size int) error {
	if size > s.cfg.MaxValue {
		return fmt.Errorf("%w: a value of %d bytes, limit %d", ErrTooLarge, size, s.cfg.MaxValue)
	}
	return nil
}

// admit refuses a batch that must not be queued.
func (s *Store) admit(b *Batch) error {
	if err := cmp.Or(b.err, s.Fits(b.maxVal)); err != nil {
		return err
	}
	switch {
	case b.bytes > s.cfg.MaxBatchBytes:
		return fmt.Errorf("%w: a batch of %d bytes, limit %d", ErrTooLarge, b.bytes, s.cfg.MaxBatchBytes)
	case b.newWork:
		return s.Refuses()
	}
	return nil
}

// Get returns the value at key, which the caller owns, or [ErrNotFound].
func (s *Store) Get(bk Bucket, key []byte) (val []byte, err error) {
	if err := checkKey(bk, key); err != nil {
		return nil, err
	}
	s.engineMu.RLock()
	defer s.engineMu.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	defer s.caught(&err)
	raw, ok, err := s.engine.Get(bk, key)
	if err != nil {
		return nil, fmt.Errorf("get from %v: %w", bk, err)
	}
	if !ok {
		return nil, ErrNotFound
	}
	expiry, val, err := unwrap(raw)
	if err != nil {
		return nil, fmt.Errorf("get from %v: %w", bk, err)
	}
	if expiry != 0 && due(expiry, s.expiry.now()) {
		return nil, ErrNotFound
	}
	return val, nil
}

// Scan returns up to limit pairs with start <= key < end in ascending byte order.
// A nil start means the first key, a nil end no end, a limit of 0 [MaxScan],
// which is also the maximum. next is where to continue, nil at the end; the page
// after it may be empty.
func (s *Store) Scan(bk Bucket, start, end []byte, limit int) (pairs []Pair, next []byte, err error) {
	if limit <= 0 || limit > MaxScan {
		limit = MaxScan
	}
	horizon := s.expiry.now()
	for {
		want := limit - len(pairs)
		page, err := s.scan(bk, start, end, want)
		if err != nil {
			return nil, nil, fmt.Errorf("scan %v: %w", bk, err)
		}
		for _, p := range page {
			expiry, val, err := unwrap(p.Val)
			if err != nil {
				return nil, nil, fmt.Errorf("scan %v at %x: %w", bk, p.Key, err)
			}
			if !due(expiry, horizon) {
				pairs = append(pairs, Pair{Key: p.Key, Val: val})
			}
		}
		if len(page) < want {
			return pairs, nil, nil
		}
		start = after(page[len(page)-1].Key)
		if len(pairs) == limit {
			return pairs, start, nil
		}
	}
}

// scan reads one page of raw records.
func (s *Store) scan(bk Bucket, start, end []byte, limit int) (page []Pair, err error) {
	if err := checkKey(bk, []byte{0}); err != nil {
		return nil, err
	}
	s.engineMu.RLock()
	defer s.engineMu.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	defer s.caught(&err)
	return s.engine.Scan(bk, start, end, limit)
}

// All iterates over the pairs with start <= key < end page by page, each page as
// it is when read. It ends after an error.
func (s *Store) All(bk Bucket, start, end []byte) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		for at := start; ; {
			pairs, next, err := s.Scan(bk, at, end, 256)
			if err != nil {
				yield(Pair{}, err)
				return
			}
			for _, p := range pairs {
				if !yield(p, nil) {
					return
				}
			}
			if next == nil {
				return
			}
			at = next
		}
	}
}

// Snapshot writes a copy that can be opened as a store into dir, which must not
// exist yet. Writers continue in the meantime.
func (s *Store) Snapshot(dir string) (err error) {
	s.engineMu.RLock()
	defer s.engineMu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	defer s.caught(&err)
	if err := s.engine.Snapshot(dir); err != nil {
		return fmt.Errorf("snapshot to %s: %w", dir, err)
	}
	return nil
}

// Stats describes the engine; it is empty after Close.
func (s *Store) Stats() Stats {
	s.engineMu.RLock()
	defer s.engineMu.RUnlock()
	if s.closed {
		return Stats{}
	}
	return s.engine.Stats()
}

// Counters returns what the store has done since Open.
func (s *Store) Counters() Counters { return s.meter.counters() }

// Full reports whether new work is refused.
func (s *Store) Full() bool { return s.Refuses() != nil }

// Refuses returns why new work is refused, [ErrNoDisk] or [ErrNoMemory], or nil.
func (s *Store) Refuses() error {
	switch {
	case s.space.full():
		return ErrNoDisk
	case s.heap.full():
		return ErrNoMemory
	}
	return nil
}

// Failed is closed on the first commit error, after which nothing more is
// written: close the store and open it again.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err returns the failure that closed Failed, wrapped in [ErrFailed], or nil.
func (s *Store) Err() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// fail stops all writing because of err, once, and returns the error for callers.
func (s *Store) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrFailed, err)
	if s.failure.CompareAndSwap(nil, &err) {
		close(s.failed)
	}
	return s.Err()
}

// Close writes what is queued, stops everything that Open started and closes the
// engine. A second call does nothing.
func (s *Store) Close() error {
	s.halt()
	s.engineMu.Lock()
	defer s.engineMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.cfg.Registerer != nil {
		s.cfg.Registerer.Unregister(collector{s})
	}
	if err := s.engine.Close(); err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// halt stops the goroutines and returns when they have ended.
func (s *Store) halt() {
	s.halting.Do(func() { close(s.stop); s.queue.Close() })
	s.running.Wait()
	s.maintenance.Wait()
}

// PrefixEnd returns the end of the range of keys with this prefix, nil if it has
// none.
func PrefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := append([]byte(nil), prefix[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}

// after returns the smallest key above k.
func after(k []byte) []byte { return append(k[:len(k):len(k)], 0) }

// ended reports whether err only means that the store is closing or has failed.
func ended(err error) bool { return errors.Is(err, ErrClosed) || errors.Is(err, ErrFailed) }
