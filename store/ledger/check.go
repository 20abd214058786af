package ledger

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// A Report is what [Check] and [Salvage] found.
type Report struct {
	ID          ID
	Made        time.Time // when the ledger was made; zero: LEDGER cannot be read
	Segments    int
	Bytes       int64  // of the segments
	First, Last uint64 // indexes of the first and the last batch that verify, 0: none
	Batches     int    // that verify
	Entries     int    // in them
	Checkpoints []uint64
	Torn        bool           // the end is torn: Open will repair it
	Damage      []*DamageError // what Open refuses, and damage to what it does not read
}

// Check reads everything in the folder of a ledger that is not open and changes
// nothing. Damage is in the report; the error tells why a file could not be read.
func Check(dir string) (Report, error) {
	return inspect(osFS{}, dir, func(Batch) error { return nil })
}

// inspect is [Check], and calls f with each batch that verifies, in order. An index that was lost is
// missing, and the entries of batches before the last checkpoint may have served their time.
func inspect(fs fileSystem, dir string, f func(Batch) error) (Report, error) {
	i := &inspection{fs: fs, dir: dir, f: f}
	if err := i.run(); err != nil {
		return i.report, fmt.Errorf("read ledger %s: %w", dir, err)
	}
	return i.report, nil
}

// An inspection reads the folder of a ledger.
type inspection struct {
	fs     fileSystem
	dir    string
	f      func(Batch) error
	report Report
	tail   tail // of the segment before
}

func (i *inspection) damage(d *DamageError) { i.report.Damage = append(i.report.Damage, d) }

func (i *inspection) run() error {
	d, err := readFolder(i.fs, i.dir)
	if err != nil {
		return err
	}
	if err := i.identify(d); err != nil {
		return err
	}
	for _, index := range d.checkpoints {
		err := readCheckpoint(i.fs, i.dir, i.report.ID, index, nil)
		if damage, ok := errors.AsType[*DamageError](err); ok {
			i.damage(damage)
		} else if err != nil {
			return err
		} else {
			i.report.Checkpoints = append(i.report.Checkpoints, index)
		}
	}
	for n, first := range d.segments {
		if err := i.segment(first, n == 0, n == len(d.segments)-1); err != nil {
			return err
		}
	}
	if n := len(i.report.Checkpoints); n > 0 && i.report.Checkpoints[n-1] > i.report.Last {
		i.damage(&DamageError{i.dir, 0, fmt.Sprintf("the log ends with batch %d, and there is a checkpoint at %d", i.report.Last, i.report.Checkpoints[n-1])})
	}
	return nil
}

// identify finds out the id, which the checksums need: from LEDGER, or else from a
// segment.
func (i *inspection) identify(d folder) error {
	if !d.identified && len(d.segments)+len(d.checkpoints) == 0 {
		return nil // it was not made completely
	}
	ident, err := readIdentity(i.fs, i.dir)
	i.report.ID, i.report.Made = ident.id, ident.made
	if err == nil {
		return nil
	}
	i.damage(&DamageError{filepath.Join(i.dir, identityName), 0, err.Error()})
	for _, first := range d.segments {
		f, size, err := openSized(i.fs, segmentPath(i.dir, first), readOnly)
		if err != nil {
			return err
		}
		head, err := newWindow(f, size).bytes(0, segmentHead)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		if h, ok := parseSegment(head); ok {
			i.report.ID = h.id
			return nil
		}
	}
	return nil
}

// segment reads one segment.
func (i *inspection) segment(first uint64, isFirst, isLast bool) error {
	path := segmentPath(i.dir, first)
	f, size, err := openSized(i.fs, path, readOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	i.report.Segments++
	i.report.Bytes += size
	w := newWindow(f, size)
	head, err := w.bytes(0, segmentHead)
	if err != nil {
		return err
	}
	before := i.tail
	t := tail{off: segmentHead, last: first - 1, crc: before.crc}
	h, ok := parseSegment(head)
	begun := ok && h.id == i.report.ID && h.first == first
	switch {
	case begun:
		t.crc = h.prev
		if int64(h.size) != size {
			i.damage(&DamageError{path, min(size, int64(h.size)), fmt.Sprintf("it has %d bytes instead of %d", size, h.size)})
		}
	case isFirst || !isLast || ok && h.first > first:
		i.damage(&DamageError{path, 0, "its header does not verify"})
	}
	if !isFirst {
		i.gap(path, first, begun, h.prev)
	}
	err = i.batches(w, path, first, t, isLast, begun)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// gap checks that a segment continues the one before it. Segments that no checkpoint
// needs may have been released.
func (i *inspection) gap(path string, first uint64, begun bool, prev uint32) {
	released := uint64(0)
	if n := len(i.report.Checkpoints); n > 0 {
		released = i.report.Checkpoints[n-1]
	}
	switch {
	case first == i.tail.last+1 && (!begun || prev == i.tail.crc):
	case first > i.tail.last+1 && first <= released+1:
	default:
		i.damage(&DamageError{path, 0, fmt.Sprintf("it does not continue batch %d", i.tail.last)})
	}
}

// batches reads the batches of a segment from t on.
func (i *inspection) batches(w *window, path string, first uint64, t tail, isLast, begun bool) error {
	before := i.report.Batches
	for {
		err := w.scan(i.report.ID, &t, func(off int64, h *batchHeader, b []byte) error {
			if i.report.First == 0 {
				i.report.First = h.index
			}
			if !begun && isLast && h.synced() && i.report.Batches == before {
				i.damage(&DamageError{path, 0, "its header does not verify, and what is behind it was written when it was on disk"})
			}
			i.report.Batches++
			i.report.Entries += int(h.count)
			return i.f(newBatch(first, off, h, b))
		})
		i.tail, i.report.Last = t, max(i.report.Last, t.last)
		if err != nil || t.ended || w.size-t.off < batchHead && isLast {
			return err
		}
		next, synced, torn, err := i.skip(w, t)
		if err != nil {
			return err
		}
		off := t.off
		if !begun && off == segmentHead {
			off = 0
		}
		switch {
		case synced || !isLast:
			i.damage(&DamageError{path, off, "something does not verify, and what is behind it was written when it was on disk"})
		case torn || !begun:
			i.report.Torn = true
		}
		if next == nil {
			return nil
		}
		t = *next
	}
}

// skip returns the tail before the next batch behind t that verifies, nil if there
// is none, whether one behind t was written when t was on disk, and whether anything
// was written there at all.
func (i *inspection) skip(w *window, t tail) (next *tail, synced, torn bool, err error) {
	all, err := w.traces(t)
	if err != nil {
		return nil, false, false, err
	}
	behind, err := w.bytes(t.off, batchHead)
	if err != nil {
		return nil, false, false, err
	}
	torn = len(all) > 0 || !allZero(behind)
	err = w.verified(i.report.ID, t, all, func(x *trace, prev uint32) bool {
		if next == nil {
			next = &tail{off: x.off, last: x.h.index, crc: prev}
			if x.h.kind == KindEntries {
				next.last--
			}
		}
		synced = synced || x.h.synced()
		return !synced
	})
	return next, synced, torn, err
}
