package ledger

import (
	"encoding/binary"
	"io"
)

// windowBytes is how much of a file is read at once.
const windowBytes = 2 * MaxBatch

// A window reads a file of known size through one buffer.
type window struct {
	r    io.ReaderAt
	size int64
	buf  []byte
	off  int64 // in the file, of buf[0]
	n    int   // valid bytes of buf
}

func newWindow(r io.ReaderAt, size int64) *window { return &window{r: r, size: size} }

// bytes returns the n bytes at off, fewer where the file ends. They are valid until
// the next call. n is at most MaxBatch.
func (w *window) bytes(off int64, n int) ([]byte, error) {
	if off >= w.size {
		return nil, nil
	}
	n = int(min(int64(n), w.size-off))
	if off < w.off || off+int64(n) > w.off+int64(w.n) {
		if w.buf == nil {
			w.buf = make([]byte, min(windowBytes, w.size))
		}
		want := w.buf[:min(int64(len(w.buf)), w.size-off)]
		w.n = 0
		if _, err := w.r.ReadAt(want, off); err != nil {
			return nil, err
		}
		w.off, w.n = off, len(want)
	}
	return w.buf[off-w.off:][:n], nil
}

// A tail is where the readable part of a log ends.
type tail struct {
	off   int64  // in the segment
	last  uint64 // index of the last batch
	crc   uint32 // of the last batch
	ended bool   // the segment is complete
}

// scan calls f with each batch from t on, and moves t behind the last one that
// verifies.
func (w *window) scan(id ID, t *tail, f func(off int64, h *batchHeader, b []byte) error) error {
	for !t.ended {
		head, err := w.bytes(t.off, batchHead)
		if err != nil {
			return err
		}
		h, ok := parseBatch(head)
		if !ok || !h.follows(t.last) {
			return nil
		}
		b, err := w.bytes(t.off, h.size())
		if err != nil {
			return err
		}
		if len(b) < h.size() || !id.verifies(&h, t.crc, b) {
			return nil
		}
		if h.kind == segmentEnd {
			t.ended = true
		} else if err := f(t.off, &h, b); err != nil {
			return err
		}
		t.off, t.last, t.crc = t.off+int64(h.size()), h.index, h.crc
	}
	return nil
}

// A trace is what looks like a batch behind the readable part of a log.
type trace struct {
	off int64
	h   batchHeader
}

func (x *trace) end() int64 { return x.off + int64(x.h.size()) }

// traces returns what looks like a batch behind t that came after it. The earlier
// batches of a recycled file have lower indexes.
func (w *window) traces(t tail) (all []trace, err error) {
	highest := t.last + uint64(w.size-t.off)/batchHead + 1
	for off := t.off; off+batchHead <= w.size; off += MaxBatch - batchHead {
		chunk, err := w.bytes(off, MaxBatch)
		if err != nil {
			return nil, err
		}
		for i := 0; i+batchHead <= len(chunk) && i < MaxBatch-batchHead; i += 8 {
			if binary.BigEndian.Uint32(chunk[i:]) != batchMagic {
				continue
			}
			x := trace{off: off + int64(i)}
			var ok bool
			x.h, ok = parseBatch(chunk[i:])
			newer := x.h.index > t.last || x.h.index == t.last && x.h.kind != KindEntries
			if ok && newer && x.h.index <= highest && x.end() <= w.size {
				all = append(all, x)
			}
		}
	}
	return all, nil
}

// verified calls f with each trace that verifies, and the CRC of the batch before
// it, until f returns false. That CRC is in the batch before it, which need not be
// readable itself.
func (w *window) verified(id ID, t tail, all []trace, f func(x *trace, prev uint32) bool) error {
	endingAt := map[int64][]*trace{}
	for i := range all {
		x := &all[i]
		prevs, err := w.before(id, t, x, endingAt[x.off])
		if err != nil {
			return err
		}
		b, err := w.bytes(x.off, x.h.size())
		if err != nil {
			return err
		}
		for _, prev := range prevs {
			if !id.verifies(&x.h, prev, b) {
				continue
			}
			if !f(x, prev) {
				return nil
			}
			break
		}
		endingAt[x.end()] = append(endingAt[x.end()], x)
	}
	return nil
}

// before returns what the CRC of the batch before x may be: that of the traces
// that end where x begins, or of the unreadable batch at t, as stored or as
// computed; or x is the batch that is missing at t.
func (w *window) before(id ID, t tail, x *trace, neighbors []*trace) (prevs []uint32, err error) {
	for _, p := range neighbors {
		if x.h.follows(p.h.index) {
			prevs = append(prevs, p.h.crc)
		}
	}
	if x.h.follows(t.last) {
		prevs = append(prevs, t.crc)
	}
	if n := x.off - t.off; x.h.follows(t.last+1) && n >= batchHead {
		b, err := w.bytes(t.off, int(min(n, MaxBatch)))
		if err != nil {
			return nil, err
		}
		prevs = append(prevs, binary.BigEndian.Uint32(b[8:]))
		if n <= MaxBatch {
			prevs = append(prevs, id.checksum(t.crc, b))
		}
	}
	return prevs, nil
}
