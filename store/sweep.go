package store

import (
	"context"
	"errors"
	"fmt"
)

// sweepStep is how many keys the sweeper checks in one step.
const sweepStep = 256

// A sweeper scans all buckets again and again and deletes expired records. The
// committer checks each expiry again, so that a record renewed in the meantime
// stays. After a full round without any record that has an expiry, it is idle
// until one is written.
type sweeper struct {
	s       *Store
	bucket  int    // index in Buckets
	at      []byte // position in it
	batches []*Batch

	sawExpiring bool  // this round has seen a record with an expiry
	expiring    int64 // meter.expiring when the round began
	idle        bool
}

// all sweeps every bucket once.
func (w *sweeper) all() error {
	for {
		_, round, err := w.step()
		if err != nil || round {
			return err
		}
	}
}

// tick does one step, and further ones at once while they find much. An error
// ends the tick: a failed store reports that itself, and a damaged page is
// reported to its readers.
func (w *sweeper) tick() {
	if w.idle && w.expiring == w.s.meter.expiring.Load() {
		return
	}
	w.idle = false
	for {
		deleted, _, err := w.step()
		if err != nil || deleted < sweepStep/2 {
			return
		}
	}
}

// step checks the next keys. It returns how many records it deleted and whether
// that ended a round.
func (w *sweeper) step() (deleted int, round bool, err error) {
	bk := Buckets()[w.bucket]
	page, err := w.s.scan(bk, w.at, nil, sweepStep)
	if err != nil {
		w.at = nil
		round = w.nextBucket() // so that one bad page does not stop the sweep of the rest
		return 0, round, fmt.Errorf("scan %v: %w", bk, err)
	}
	if deleted, err = w.sweep(bk, page); err != nil {
		return deleted, false, err
	}
	if len(page) == sweepStep {
		w.at = after(page[len(page)-1].Key)
		return deleted, false, nil
	}
	w.at = nil
	return deleted, w.nextBucket(), nil
}

// nextBucket moves to the next bucket and reports whether a round has ended.
func (w *sweeper) nextBucket() bool {
	w.bucket++
	if w.bucket < len(Buckets()) {
		return false
	}
	w.bucket = 0
	now := w.s.meter.expiring.Load()
	w.idle = !w.sawExpiring && w.expiring == now
	w.sawExpiring, w.expiring = false, now
	return true
}

// sweep deletes the expired records of page.
func (w *sweeper) sweep(bk Bucket, page []Pair) (deleted int, err error) {
	horizon := w.s.expiry.now()
	n := 0
	for _, p := range page {
		expiry, _, err := unwrap(p.Val)
		if err != nil || expiry == 0 {
			continue // a record that is too short is reported to its readers
		}
		if !due(expiry, horizon) {
			w.sawExpiring = true
			continue
		}
		if n == len(w.batches) {
			w.batches = append(w.batches, new(Batch))
		}
		b := w.batches[n]
		b.Reset()
		b.requireExpired(bk, p.Key, expiry)
		b.Delete(bk, p.Key)
		n++
	}
	if n == 0 {
		return 0, nil
	}
	for _, err := range w.s.ApplyMany(context.Background(), w.batches[:n]) {
		switch {
		case err == nil:
			deleted++
		case !errors.Is(err, ErrConflict):
			return deleted, err
		}
	}
	w.s.meter.swept.Add(int64(deleted))
	return deleted, nil
}
