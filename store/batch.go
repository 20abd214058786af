package store

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// opOverhead is what an operation counts in addition to its key and value, in
// bytes.
const opOverhead = 40

// maxKeptArena is the largest buffer that Reset keeps.
const maxKeptArena = 1 << 20

// A Batch is a set of changes that take effect together or not at all, with the
// requirements for it. The zero value is an empty batch. It copies its arguments.
// A batch may be reset and reused once Apply has returned, unless that returned
// [ErrUnknown]. It is not safe for concurrent use.
type Batch struct {
	ops          []Op
	requirements []requirement
	after        []func()
	arena        []byte // holds the keys and values of ops and requirements
	bytes        int
	maxVal       int
	expires      bool // some put has an expiry
	newWork      bool
	err          error // the first bad key
}

// A requirement is one condition of a batch.
type requirement struct {
	bucket Bucket
	kind   requirementKind
	key    []byte
	want   []byte // requireEqual: the value
	expiry int64  // requireExpired: the expiry that was read
}

type requirementKind byte

const (
	requireAbsent requirementKind = iota
	requireEqual
	requireExpired // the sweeper's: still there, still with this expiry, and due
)

// Put sets key to val. A nil value is an empty one.
func (b *Batch) Put(bk Bucket, key, val []byte) { b.put(bk, key, val, 0) }

// PutUntil sets key to val until at; after that the record counts as deleted. The
// zero time means no expiry.
func (b *Batch) PutUntil(bk Bucket, key, val []byte, at time.Time) {
	var ms int64
	if !at.IsZero() {
		ms = max(at.UnixMilli(), 1)
		b.expires = true
	}
	b.put(bk, key, val, ms)
}

func (b *Batch) put(bk Bucket, key, val []byte, expiry int64) {
	b.check(bk, key)
	b.reserve(len(key) + expiryLen + len(val))
	k := b.keep(key)
	from := len(b.arena)
	b.arena = binary.BigEndian.AppendUint64(b.arena, uint64(expiry))
	b.arena = append(b.arena, val...)
	b.ops = append(b.ops, Op{Bucket: bk, Key: k, Val: b.arena[from:len(b.arena):len(b.arena)]})
	b.bytes += len(key) + expiryLen + len(val) + opOverhead
	b.maxVal = max(b.maxVal, len(val))
}

// Delete removes key; a missing key is not an error.
func (b *Batch) Delete(bk Bucket, key []byte) {
	b.check(bk, key)
	b.reserve(len(key))
	b.ops = append(b.ops, Op{Bucket: bk, Key: b.keep(key), Delete: true})
	b.bytes += len(key) + opOverhead
}

// RequireAbsent applies the batch only if there is no record at key.
func (b *Batch) RequireAbsent(bk Bucket, key []byte) {
	b.require(requirement{bucket: bk, kind: requireAbsent}, key, nil)
}

// RequireEqual applies the batch only if the record at key is val.
func (b *Batch) RequireEqual(bk Bucket, key, val []byte) {
	b.require(requirement{bucket: bk, kind: requireEqual}, key, val)
}

func (b *Batch) requireExpired(bk Bucket, key []byte, expiry int64) { // for the sweeper: still there, still with this expiry, and due
	b.require(requirement{bucket: bk, kind: requireExpired, expiry: expiry}, key, nil)
}

func (b *Batch) require(r requirement, key, want []byte) {
	b.check(r.bucket, key)
	b.reserve(len(key) + len(want))
	r.key, r.want = b.keep(key), b.keep(want)
	b.requirements = append(b.requirements, r)
	b.bytes += len(key) + len(want) + opOverhead
}

// After registers f to be called once the batch is on disk, before Apply returns,
// in commit order, and never if the batch was not written. f runs on the
// committer: it must be quick and must not call the store.
func (b *Batch) After(f func()) { b.after = append(b.after, f) }

// NewWork marks the batch as new work, which is refused with [ErrFull] while
// the disk is below its reserve or memory is short.
func (b *Batch) NewWork() { b.newWork = true }

// Len returns the number of puts and deletes.
func (b *Batch) Len() int { return len(b.ops) }

// Bytes returns the size of the batch as counted against the limits.
func (b *Batch) Bytes() int { return b.bytes }

// Reset empties the batch and keeps its memory for the next use.
func (b *Batch) Reset() {
	clear(b.ops)
	clear(b.requirements)
	clear(b.after)
	arena := b.arena[:0]
	if cap(arena) > maxKeptArena {
		arena = nil
	}
	*b = Batch{ops: b.ops[:0], requirements: b.requirements[:0], after: b.after[:0], arena: arena}
}

// check records the error of the first invalid key.
func (b *Batch) check(bk Bucket, key []byte) {
	if b.err == nil {
		b.err = checkKey(bk, key)
	}
}

// reserve makes room for n more bytes in the arena. A full arena is replaced, not
// moved: the operations point into it.
func (b *Batch) reserve(n int) {
	if cap(b.arena)-len(b.arena) < n {
		b.arena = make([]byte, 0, max(n, 2*cap(b.arena), 256))
	}
}

func (b *Batch) keep(p []byte) []byte {
	from := len(b.arena)
	b.arena = append(b.arena, p...)
	return slices.Clip(b.arena[from:])
}

func checkKey(bk Bucket, key []byte) error {
	switch {
	case !bk.Valid():
		return fmt.Errorf("%w: no bucket %d", ErrKey, byte(bk))
	case len(key) == 0:
		return fmt.Errorf("%w: empty key in %v", ErrKey, bk)
	case len(key) > MaxKey:
		return fmt.Errorf("%w: key of %d bytes in %v, limit %d", ErrKey, len(key), bk, MaxKey)
	}
	return nil
}
