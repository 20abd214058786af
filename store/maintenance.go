package store

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Intervals of the maintenance goroutine.
const (
	refreshEvery    = 2 * time.Second  // between two checks of the free disk space
	maxCompactDelay = time.Minute      // how long a compaction waits for a quiet moment
	retryCompaction = 10 * time.Minute // before one that failed is tried again
)

// maintain sweeps, monitors the disk and compacts, until Close.
func (s *Store) maintain(w *sweeper) {
	sweep, stopSweep := s.ticks(s.cfg.SweepEvery, s.cfg.SweepEvery > 0)
	defer stopSweep()
	space, stopSpace := s.ticks(refreshEvery, s.cfg.Space != nil || s.cfg.Memory != nil)
	defer stopSpace()
	compact, stopCompact := s.ticks(s.cfg.CompactEvery, s.cfg.CompactEvery > 0)
	defer stopCompact()
	k := &compactor{s: s}
	f := &refusalMonitor{notify: s.cfg.OnRefusal, collect: runtime.GC}
	for {
		select {
		case <-sweep:
			w.tick()
		case <-space:
			s.space.refresh()
			f.tick(s.Refuses())
		case <-compact:
			k.tick()
		case <-s.stop:
			return
		}
	}
}

// ticks returns a channel that ticks every d, or never.
func (s *Store) ticks(d time.Duration, on bool) (<-chan time.Time, func()) {
	if !on {
		return nil, func() {}
	}
	t := s.cfg.Clock.Ticker(d)
	return t.C, t.Stop
}

// Compact returns the space of deleted data to the disk. Writers wait in the
// meantime.
func (s *Store) Compact(ctx context.Context) error {
	r := s.requests.Get().(*request)
	r.alone, r.errs, r.left = s.engine.Compact, r.oneErr[:], 1
	if err := s.do(ctx, r); err != nil {
		return err
	}
	err := r.errs[0]
	s.release(r)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	s.meter.compactions.Add(1)
	s.compacting.Store(nil)
	return nil
}

// A compactFailure is what is known of compactions that failed one after the other.
type compactFailure struct {
	times int
	last  error
}

// CompactFailure returns how often in a row the store could not compact itself, and the last
// reason.
func (s *Store) CompactFailure() (times int, last error) {
	if f := s.compacting.Load(); f != nil {
		return f.times, f.last
	}
	return 0, nil
}

// A compactor picks a quiet moment for a compaction that is due.
type compactor struct {
	s       *Store
	batches int64         // committed at the last tick
	dueFor  time.Duration // how long a compaction has been due; negative: how long it waits after a failure
}

// tick compacts if compaction is due and either nothing was written since the
// last tick or it has been due for long enough. A failed compaction is noted
// and retried later.
func (k *compactor) tick() {
	batches := k.s.meter.batches.Load()
	quiet := batches == k.batches
	k.batches = batches
	if !k.s.Stats().CompactDue {
		k.dueFor = 0
		k.s.compacting.Store(nil)
		return
	}
	k.dueFor += k.s.cfg.CompactEvery
	if k.dueFor < 0 || !quiet && k.dueFor < maxCompactDelay {
		return
	}
	k.dueFor = 0
	if err := k.s.Compact(context.Background()); err != nil && !ended(err) {
		k.s.meter.compactFailures.Add(1)
		times, _ := k.s.CompactFailure()
		k.s.compacting.Store(&compactFailure{times + 1, err})
		k.dueFor = -retryCompaction
	}
}
