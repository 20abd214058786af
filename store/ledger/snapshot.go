package ledger

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/balefire/balefire/store"
)

// Snapshot writes a copy of the ledger, which can be opened as one, into the new folder
// dir. It has the newest checkpoint and all batches up to one that is not older than the
// last one that was answered before the call. Files that no longer change are linked where
// that is possible, the others copied. Writers go on meanwhile; what is released or
// replaced during the copy is removed later. LEDGER is written last: after an error, what
// is in dir is of no use.
func (l *Ledger) Snapshot(dir string) error {
	if err := l.snapshot(dir); err != nil {
		return fmt.Errorf("snapshot of ledger %s: %w", l.dir, err)
	}
	return nil
}

func (l *Ledger) snapshot(dir string) error {
	l.snapshotting.Lock()
	defer l.snapshotting.Unlock()
	if err := l.pin(true); err != nil {
		return err
	}
	defer l.pin(false)
	checkpoint, last := l.newest.Load(), l.last.Load()
	if err := l.syncTo(last); err != nil {
		return err
	}
	segments := l.segments.since(0)
	end := segments[len(segments)-1].end.Load()
	fs := l.cfg.fs
	if err := makeFolder(fs, dir); err != nil {
		return err
	}
	for i, seg := range segments {
		path, n := segmentPath(dir, seg.first), seg.size
		if i == len(segments)-1 {
			n = end
		} else if fs.Link(seg.path, path) == nil {
			continue
		}
		if err := l.copySegment(path, seg, n); err != nil {
			return err
		}
	}
	if checkpoint > 0 {
		if err := l.copyCheckpoint(dir, checkpoint); err != nil {
			return err
		}
	}
	if err := l.copyIdentity(dir); err != nil {
		return err
	}
	return l.checkCopy(dir, last)
}

// pin begins or ends a time in which no segment and no checkpoint is removed.
func (l *Ledger) pin(on bool) error {
	l.checkpointing.Lock()
	defer l.checkpointing.Unlock()
	if on && l.closed.Load() {
		return store.ErrClosed
	}
	l.pinned = on
	return nil
}

// copySegment copies the first n bytes of a segment, which are whole batches. The copy of
// the last segment is no larger than it must be: with the next batch another one begins.
func (l *Ledger) copySegment(path string, seg *segment, n int64) error {
	size := copySize(n, seg.size)
	head := make([]byte, segmentHead)
	if _, err := (segmentReader{seg}).ReadAt(head, 0); err != nil {
		return err
	}
	h, ok := parseSegment(head)
	if !ok {
		return &DamageError{seg.path, 0, "its header does not verify"}
	}
	h.size = uint32(size)
	return l.copyFile(path, segmentReader{seg}, n, func(f file) error {
		if err := writeZeros(f, n, size, l.closed.Load); err != nil {
			return err
		}
		head := h.encode()
		_, err := f.WriteAt(head[:], 0)
		return err
	})
}

// copySize returns the size of a segment for n bytes of batches, at most most bytes:
// whole pages, in which there is room for its end.
func copySize(n, most int64) int64 { return min(pages(n+batchHead), most) }

// pages returns the size of the whole pages that n bytes need.
func pages(n int64) int64 { return (n + page - 1) / page * page }

func (l *Ledger) copyCheckpoint(dir string, index uint64) error {
	from, to := checkpointPath(l.dir, index), checkpointPath(dir, index)
	if l.cfg.fs.Link(from, to) == nil {
		return nil
	}
	f, size, err := openSized(l.cfg.fs, from, readOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	return l.copyFile(to, f, size, func(file) error { return nil })
}

// copyIdentity completes a copy, whose other files must be synced.
func (l *Ledger) copyIdentity(dir string) error {
	if l.closed.Load() {
		return store.ErrClosed
	}
	ident, err := readIdentity(l.cfg.fs, l.dir)
	if err != nil {
		return err
	}
	return writeIdentity(l.cfg.fs, dir, ident)
}

// copyFile copies n bytes to a new file, calls finish with it, and syncs it.
func (l *Ledger) copyFile(path string, from io.ReaderAt, n int64, finish func(file) error) error {
	f, err := l.cfg.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if err = l.copyBytes(f, from, n); err == nil {
		err = finish(f)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// copyBytes copies the first n bytes. It syncs in between, because a long sync would delay
// those of the log, and stops when the ledger is closed.
func (l *Ledger) copyBytes(to file, from io.ReaderAt, n int64) error {
	buf := make([]byte, min(zeroChunk, n))
	for off, synced := int64(0), int64(0); off < n; {
		if l.closed.Load() {
			return store.ErrClosed
		}
		b := buf[:min(int64(len(buf)), n-off)]
		if _, err := from.ReadAt(b, off); err != nil {
			return err
		}
		if _, err := to.WriteAt(b, off); err != nil {
			return err
		}
		if off += int64(len(b)); off-synced >= zeroSync {
			if err := to.Sync(); err != nil {
				return err
			}
			synced = off
		}
	}
	return nil
}

// checkCopy reads all of a copy, which must have the batch last.
func (l *Ledger) checkCopy(dir string, last uint64) error {
	r, err := inspect(l.cfg.fs, dir, func(Batch) error {
		if l.closed.Load() {
			return store.ErrClosed
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(r.Damage) > 0:
		return fmt.Errorf("the copy: %w", r.Damage[0])
	case r.Torn || r.Last < last:
		return fmt.Errorf("%w: the copy ends with batch %d instead of %d", store.ErrCorrupt, r.Last, last)
	}
	return nil
}
