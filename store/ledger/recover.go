package ledger

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/balefire/balefire/disk"
)

// A recovery is what Open finds out about a folder, and does to it.
type recovery struct {
	dir string
	cfg Config

	folder   folder
	id       ID
	good     []uint64 // checkpoints that can be read, at most two, ascending
	segments []*segment
	unbegun  bool   // the last segment has no valid header: a crash while it was begun, or damage
	tail     tail   // of the last segment
	aside    string // name of the file with what was taken off the end
}

func (r *recovery) run() error {
	if err := r.cfg.fs.MkdirAll(r.dir); err != nil {
		return err
	}
	var err error
	if r.folder, err = readFolder(r.cfg.fs, r.dir); err != nil {
		return err
	}
	for _, name := range r.folder.leftovers {
		if err := r.cfg.fs.Remove(filepath.Join(r.dir, name)); err != nil {
			return err
		}
	}
	if !r.folder.identified {
		return r.create()
	}
	ident, err := readIdentity(r.cfg.fs, r.dir)
	if err != nil {
		return err
	}
	r.id = ident.id
	if err := r.findCheckpoints(); err != nil {
		return err
	}
	if err := r.openSegments(); err != nil {
		return err
	}
	if err := r.read(); err != nil {
		return err
	}
	if err := r.end(); err != nil {
		return err
	}
	return r.sync()
}

// close closes the files.
func (r *recovery) close() error {
	s := segments{list: r.segments}
	return s.close()
}

// newest returns the index of the newest checkpoint that can be read, 0 if none.
func (r *recovery) newest() uint64 {
	if len(r.good) == 0 {
		return 0
	}
	return r.good[len(r.good)-1]
}

// create makes a ledger. LEDGER comes last: without it there is no ledger yet.
func (r *recovery) create() error {
	if err := r.checkUnused(); err != nil {
		return err
	}
	if len(r.folder.segments) == 0 { // else an interrupted create has its space
		if err := r.cfg.spaceFor(r.cfg.Segment); err != nil {
			return err
		}
	}
	ident := identity{made: r.cfg.Clock.Now()}
	if _, err := rand.Read(ident.id[:]); err != nil {
		return err
	}
	r.id = ident.id
	spare := filepath.Join(r.dir, sparePrefix+"0")
	if err := makeZeros(r.cfg.fs, spare, r.cfg.Segment, func() bool { return false }); err != nil {
		return err
	}
	seg, err := beginSegment(r.cfg.fs, r.dir, spare, segmentHeader{id: r.id, first: 1})
	if err != nil {
		return err
	}
	r.segments, r.tail = []*segment{seg}, tail{off: segmentHead}
	return writeIdentity(r.cfg.fs, r.dir, ident)
}

// checkUnused refuses a folder that lacks only LEDGER. An interrupted create leaves
// at most an empty first segment.
func (r *recovery) checkUnused() error {
	lost := &DamageError{filepath.Join(r.dir, identityName), 0, "it is missing"}
	if len(r.folder.checkpoints) > 0 || len(r.folder.segments) > 1 || len(r.folder.segments) == 1 && r.folder.segments[0] != 1 {
		return lost
	}
	if len(r.folder.segments) == 0 {
		return nil
	}
	f, size, err := openSized(r.cfg.fs, segmentPath(r.dir, 1), readOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	w := newWindow(f, size)
	for off := int64(segmentHead); off < size; off += MaxBatch {
		b, err := w.bytes(off, MaxBatch)
		if err != nil {
			return err
		}
		if !allZero(b) {
			return lost
		}
	}
	return nil
}

func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
}

// findCheckpoints finds the two newest checkpoints that can be read.
func (r *recovery) findCheckpoints() error {
	for _, index := range slices.Backward(r.folder.checkpoints) {
		err := readCheckpoint(r.cfg.fs, r.dir, r.id, index, nil)
		if damage, ok := errors.AsType[*DamageError](err); ok {
			r.cfg.Logger.Warn("ledger: a checkpoint cannot be read, using the one before it", "err", damage)
			continue
		}
		if err != nil {
			return err
		}
		if r.good = slices.Insert(r.good, 0, index); len(r.good) == 2 {
			break
		}
	}
	return nil
}

// openSegments opens the segments and checks their headers and sizes.
func (r *recovery) openSegments() error {
	if len(r.folder.segments) == 0 {
		return &DamageError{segmentPath(r.dir, 1), 0, "there is no segment"}
	}
	for i, first := range r.folder.segments {
		path := segmentPath(r.dir, first)
		f, size, err := openSized(r.cfg.fs, path, readWrite)
		if err != nil {
			return err
		}
		seg := &segment{first: first, path: path, size: size, file: f}
		seg.end.Store(size)
		r.segments = append(r.segments, seg)
		if err := r.checkHeader(seg, i > 0 && i == len(r.folder.segments)-1); err != nil {
			return err
		}
	}
	return nil
}

// checkHeader checks the header of a segment. One that may have been begun when the
// process or the machine stopped has what the file had before.
func (r *recovery) checkHeader(seg *segment, mayBeUnbegun bool) error {
	head, err := newWindow(seg.file, seg.size).bytes(0, segmentHead)
	if err != nil {
		return err
	}
	h, ok := parseSegment(head)
	switch {
	case ok && h.id == r.id && h.first == seg.first && int64(h.size) == seg.size:
		seg.prev = h.prev
		return nil
	case ok && h.id == r.id && h.first == seg.first:
		return &DamageError{seg.path, min(seg.size, int64(h.size)), fmt.Sprintf("it has %d bytes instead of %d", seg.size, h.size)}
	case ok && h.id != r.id:
		return &DamageError{seg.path, 0, "it belongs to another ledger"}
	case mayBeUnbegun && (!ok || h.first < seg.first) && seg.size >= segmentHead+minBatch+batchHead:
		r.unbegun = true
		return nil
	}
	return &DamageError{seg.path, 0, "its header does not verify"}
}

// read verifies the segments since the newest checkpoint and finds the end of the
// log.
func (r *recovery) read() error {
	start, n := -1, len(r.segments)
	for start+1 < n && r.segments[start+1].first <= r.newest()+1 {
		start++
	}
	if start < 0 {
		return &DamageError{r.segments[0].path, 0, fmt.Sprintf("the segment of batch %d is missing", r.newest()+1)}
	}
	if r.unbegun {
		start = min(start, n-2)
	}
	for i, seg := range r.segments[start:] {
		unbegun := r.unbegun && start+i == n-1
		if before := r.tail; i == 0 {
			r.tail = tail{last: seg.first - 1, crc: seg.prev}
		} else if seg.first != before.last+1 || !unbegun && seg.prev != before.crc {
			return &DamageError{r.segments[start+i-1].path, before.off, fmt.Sprintf("what is between batch %d and segment %d is missing", before.last, seg.first)}
		}
		r.tail.off, r.tail.ended = segmentHead, false
		if unbegun {
			return nil
		}
		w := newWindow(seg.file, seg.size)
		if err := w.scan(r.id, &r.tail, func(int64, *batchHeader, []byte) error { return nil }); err != nil {
			return fmt.Errorf("read %s: %w", seg.path, err)
		}
		seg.end.Store(r.tail.off)
		if start+i < n-1 && !r.tail.ended {
			return &DamageError{seg.path, r.tail.off, "a batch does not verify, and the segment was complete"}
		}
	}
	return nil
}

// sync makes durable what was read: after the end of a process it may be only in memory. What may
// have been written before a sync that failed is written again.
func (r *recovery) sync() error {
	left := int64(maxUnsynced + MaxBatch)
	for _, seg := range slices.Backward(r.segments) {
		end := seg.end.Load()
		from := max(0, end-left)
		if err := disk.Rewrite(seg.file, from, end); err != nil {
			return err
		}
		if err := seg.file.Sync(); err != nil {
			return err
		}
		if left -= end - from; left <= 0 {
			break
		}
	}
	return r.cfg.fs.SyncDir(r.dir)
}
