package ledger

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/balefire/balefire/store"
)

// Read appends the data of the entry at p to dst. It comes from memory while the
// batch is among the last ones, see [Config.Ring]; those bytes were just written and
// are not checked. Otherwise it is read from the file, and its length and CRC are
// verified: a mismatch is a [*DamageError]. [store.ErrNotFound] means that the
// segment was released or that there is no such place.
func (l *Ledger) Read(p Place, dst []byte) ([]byte, error) {
	if l.closed.Load() {
		return dst, store.ErrClosed
	}
	if out, ok := l.ring.read(p, dst); ok {
		return out, nil
	}
	seg := l.segments.find(p.Segment)
	if seg == nil || p.Offset < segmentHead+batchHead+entryHead || p.Length > MaxBatch || int64(p.Offset)+int64(p.Length) > seg.end.Load() {
		return dst, errNoPlace(p)
	}
	l.counters.fileReads.Add(1)
	n, size := len(dst), entryHead+int(p.Length)
	buf := slices.Grow(dst, size)[:n+size]
	ok, err := seg.readAt(buf[n:], int64(p.Offset)-entryHead)
	if err != nil {
		return dst, err
	}
	if !ok {
		return dst, errNoPlace(p)
	}
	if !entryVerifies(buf[n:n+entryHead], buf[n+entryHead:]) {
		return dst, &DamageError{seg.path, int64(p.Offset) - entryHead, fmt.Sprintf("no entry of %d bytes verifies there", p.Length)}
	}
	return append(buf[:n], buf[n+entryHead:]...), nil
}

func errNoPlace(p Place) error {
	return fmt.Errorf("%w: segment %d, byte %d", store.ErrNotFound, p.Segment, p.Offset)
}

// A Batch is one batch of the log. It is valid while the function that got it runs.
type Batch struct {
	Kind  Kind
	Index uint64
	Term  uint64    // 0 in a ledger that is not replicated
	Time  time.Time // when it was written, by the wall clock
	Count int       // entries

	place Place  // of the batch; Length is without padding
	data  []byte // the whole batch
}

func newBatch(segment uint64, off int64, h *batchHeader, b []byte) Batch {
	return Batch{
		Kind: h.kind, Index: h.index, Term: h.term, Time: time.UnixMilli(h.time), Count: int(h.count),
		place: Place{segment, uint32(off), h.length}, data: b,
	}
}

// Entries returns the entries in order, each with its place. The data must not be
// changed.
func (b Batch) Entries() iter.Seq2[Place, []byte] {
	return func(yield func(Place, []byte) bool) {
		at := uint32(batchHead)
		for range b.Count {
			n := binary.BigEndian.Uint32(b.data[at:])
			at += entryHead
			if !yield(Place{b.place.Segment, b.place.Offset + at, n}, b.data[at:at+n:at+n]) {
				return
			}
			at += n
		}
	}
}

// Replay calls f with each answered batch from index from on, in order, up to the
// last one at the time of the call; its first error ends the replay. Everything is
// read from the files and verified: [*DamageError]. [store.ErrNotFound] means that
// a batch since from was released; none since the older checkpoint is.
func (l *Ledger) Replay(from uint64, f func(Batch) error) error {
	if l.closed.Load() {
		return store.ErrClosed
	}
	from, last := max(from, 1), l.last.Load()
	if from > last {
		return nil
	}
	next := from
	for _, seg := range l.segments.since(from) {
		if seg.first > last {
			break
		}
		if seg.first > next {
			return fmt.Errorf("%w: batch %d was released", store.ErrNotFound, next)
		}
		t, end := tail{off: segmentHead, last: seg.first - 1, crc: seg.prev}, seg.end.Load()
		err := newWindow(segmentReader{seg}, end).scan(l.id, &t, func(off int64, h *batchHeader, b []byte) error {
			if h.index < from || h.index > last {
				return nil
			}
			return f(newBatch(seg.first, off, h, b))
		})
		if err != nil {
			return err
		}
		if t.off != end && !t.ended {
			return &DamageError{seg.path, t.off, "a batch does not verify"}
		}
		next = t.last + 1
	}
	if next <= last {
		return fmt.Errorf("%w: batch %d was released", store.ErrNotFound, next)
	}
	return nil
}

// A segmentReader reads a segment until it is released.
type segmentReader struct{ seg *segment }

// ReadAt implements [io.ReaderAt].
func (r segmentReader) ReadAt(b []byte, off int64) (int, error) {
	ok, err := r.seg.readAt(b, off)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("%w: segment %d was released", store.ErrNotFound, r.seg.first)
	}
	return len(b), nil
}
