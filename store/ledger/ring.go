package ledger

import (
	"encoding/binary"
	"sort"
	"sync"
)

// maxSpans is how many batches the ring has at most.
const maxSpans = 16 << 10

// A ring is a fixed buffer in which batches are encoded, one behind the other, and
// from which entries are read until newer batches need the room. It allocates
// nothing. The committer writes; readers hold mu, so that what they copy is not
// overwritten.
type ring struct {
	buf  []byte
	next int // committer: where the next batch goes

	mu    sync.RWMutex
	spans []span // a circular list
	head  int    // the oldest
	count int
}

// A span is one batch in the ring.
type span struct {
	segment uint64
	off     uint32 // in the segment
	n       uint32 // bytes
	pos     uint32 // in the ring
}

func newRing(size int) *ring {
	return &ring{buf: make([]byte, size), spans: make([]span, min(maxSpans, size/batchHead))}
}

func (r *ring) at(i int) *span { return &r.spans[(r.head+i)%len(r.spans)] }

// reserve returns n bytes for the next batch, at most the size of the ring. The
// oldest batches give way.
func (r *ring) reserve(n int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next+n > len(r.buf) {
		for r.count > 0 && int(r.at(0).pos) >= r.next {
			r.drop()
		}
		r.next = 0
	}
	for r.count > 0 {
		oldest := r.at(0)
		if int(oldest.pos) >= r.next+n || int(oldest.pos+oldest.n) <= r.next {
			break
		}
		r.drop()
	}
	return r.buf[r.next : r.next+n : r.next+n]
}

// publish makes the batch of n bytes that was written to what reserve returned
// readable, as what is in the segment at off.
func (r *ring) publish(segment uint64, off int64, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == len(r.spans) {
		r.drop()
	}
	r.count++
	*r.at(r.count - 1) = span{segment, uint32(off), uint32(n), uint32(r.next)}
	r.next += n
}

func (r *ring) drop() {
	r.head = (r.head + 1) % len(r.spans)
	r.count--
}

// read appends the data of the entry at p to dst. ok is false if it is not there.
func (r *ring) read(p Place, dst []byte) (_ []byte, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := sort.Search(r.count, func(i int) bool {
		s := r.at(i)
		return s.segment > p.Segment || s.segment == p.Segment && s.off > p.Offset
	})
	if i == 0 {
		return dst, false
	}
	s := r.at(i - 1)
	from, n := int64(p.Offset)-int64(s.off), int64(p.Length)
	if s.segment != p.Segment || from < batchHead+entryHead || from+n > int64(s.n) {
		return dst, false
	}
	at := int64(s.pos) + from
	if binary.BigEndian.Uint32(r.buf[at-entryHead:]) != p.Length {
		return dst, false
	}
	return append(dst, r.buf[at:at+n]...), true
}
