package ledger

import (
	"errors"
	"path/filepath"
	"slices"
	"sort"
	"sync"
)

// segments are the segments that there are. The last one is being written.
type segments struct {
	mu   sync.RWMutex
	list []*segment // by first index
}

func (s *segments) add(seg *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, seg)
}

// find returns the segment with this first index, nil if there is none.
func (s *segments) find(first uint64) *segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := sort.Search(len(s.list), func(i int) bool { return s.list[i].first >= first })
	if i == len(s.list) || s.list[i].first != first {
		return nil
	}
	return s.list[i]
}

// since returns the segments from the one on that may have this index.
func (s *segments) since(index uint64) []*segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i := sort.Search(len(s.list), func(i int) bool { return s.list[i].first > index })
	return slices.Clone(s.list[max(i-1, 0):])
}

// upTo returns the complete segments that have no index above this one.
func (s *segments) upTo(index uint64) []*segment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for n+1 < len(s.list) && s.list[n+1].first <= index+1 {
		n++
	}
	return slices.Clone(s.list[:n])
}

func (s *segments) remove(seg *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(x *segment) bool { return x == seg })
}

func (s *segments) summary() (first uint64, n int, bytes int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, seg := range s.list {
		bytes += seg.size
	}
	return s.list[0].first, len(s.list), bytes
}

func (s *segments) close() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var errs []error
	for _, seg := range s.list {
		errs = append(errs, seg.close())
	}
	return errors.Join(errs...)
}

// beginSegment makes the synced file spare the segment with the header h.
func beginSegment(fs fileSystem, dir, spare string, h segmentHeader) (_ *segment, err error) {
	path := segmentPath(dir, h.first)
	if err := fs.Rename(spare, path); err != nil {
		return nil, err
	}
	if err := fs.SyncDir(dir); err != nil { // before there is anything in it that counts
		return nil, err
	}
	f, size, err := openSized(fs, path, readWrite)
	if err != nil {
		return nil, err
	}
	if err := writeHeader(f, size, h); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	seg := &segment{first: h.first, path: path, size: size, prev: h.prev, file: f}
	seg.end.Store(segmentHead)
	return seg, nil
}

// writeHeader writes and syncs the header of a segment, with zeros up to the end of
// the page.
func writeHeader(f file, size int64, h segmentHeader) error {
	h.size = uint32(size)
	b := make([]byte, min(page, size))
	head := h.encode()
	copy(b, head[:])
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Sync()
}

// Release removes complete segments of which nothing is needed, or keeps their
// files to be used again. It asks live, with the first index and the size in bytes, for
// each segment that is not needed to start from the older one of the two checkpoints. Places in a
// segment that was released can no longer be read. It does nothing during a snapshot;
// a segment that a snapshot has is not used again. live must not call Release,
// Checkpoint or LoadCheckpoint.
func (l *Ledger) Release(live func(segment uint64, size int64) bool) {
	if l.Err() != nil || l.closed.Load() {
		return
	}
	l.checkpointing.Lock()
	defer l.checkpointing.Unlock()
	if len(l.checkpoints) < 2 || l.pinned {
		return
	}
	var dead []*segment
	for _, seg := range l.segments.upTo(l.checkpoints[0]) {
		if !live(seg.first, seg.size) {
			dead = append(dead, seg)
		}
	}
	if len(dead) > 0 {
		l.release(dead)
	}
}

// release gives up segments. It does not sync the folder: a segment that is there
// again after a crash is as it was, because begin makes all names durable before a
// file is overwritten.
func (l *Ledger) release(dead []*segment) {
	paths, kept := l.spares.room(len(dead)), []string(nil)
	for _, seg := range dead {
		err := seg.close()
		l.segments.remove(seg)
		if len(paths) > 0 && seg.size == l.cfg.Segment && !l.cfg.fs.Linked(seg.path) {
			if err = errors.Join(err, l.cfg.fs.Rename(seg.path, paths[0])); err == nil {
				kept, paths = append(kept, paths[0]), paths[1:]
			}
		} else {
			err = errors.Join(err, l.cfg.fs.Remove(seg.path))
		}
		if err != nil { // it is there again after the next open
			l.cfg.Logger.Warn("ledger: could not release a segment", "segment", filepath.Base(seg.path), "err", err)
		}
	}
	l.spares.add(kept)
}
