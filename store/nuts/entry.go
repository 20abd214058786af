package nuts

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"github.com/balefire/balefire/store"
)

// A position is a place in the log: a segment's number and a byte in it.
type position struct {
	segment int64
	off     int64
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.segment, q.segment), cmp.Compare(p.off, q.off))
}

func (p position) String() string { return fmt.Sprintf("%d.dat byte %d", p.segment, p.off) }

// An entry is one record of the log as NutsDB writes it:
//
//	crc u32 | time ksz vsz flag ttl status ds tx bucket (uvarints) | key | value
//
// The status of the last entry of a transaction is 1, of the others 0.
type entry struct {
	header    int    // bytes before the key
	key, val  int    // bytes of each
	statusOff int    // offset of the status byte in the entry
	bucketOff int    // offset of the bucket byte in the entry
	tx        uint64 // transaction
	bucket    byte   // a store.Bucket, or voidBucket
	set       bool   // put, not delete
	committed bool   // the last of its transaction
}

func (e entry) size() int64 { return int64(e.header + e.key + e.val) }

// An entryStatus is the content of a position in the log.
type entryStatus int

const (
	valid  entryStatus = iota // an entry whose checksum is right
	blank                     // zeroes: nothing was written here yet
	broken                    // anything else
)

const (
	minHeader = 4 + 9
	maxHeader = 4 + 5*3 + 10*3 + 3*3 // NutsDB's MaxEntryHeaderSize

	// voidBucket is a bucket id that never exists: entries that were never
	// committed but lie between others are pointed at it, and NutsDB skips them.
	voidBucket = 127
)

// decodeHeader reads the header of the entry at the start of b, which holds maxHeader
// bytes, or fewer at the end of a segment. It accepts only headers that this package
// writes, so that garbage is recognized before any checksum is computed.
func decodeHeader(b []byte) (entry, entryStatus) {
	var f [9]uint64
	var at [9]int
	if len(b) < minHeader {
		return entry{}, blankOr(b)
	}
	i := 4
	for k := range f {
		v, n := binary.Uvarint(b[i:])
		if n <= 0 || n > 1 && b[i+n-1] == 0 { // cut off, too long, or not the shortest form
			return entry{}, broken
		}
		f[k], at[k] = v, i
		i += n
	}
	if binary.LittleEndian.Uint32(b) == 0 && f[0] == 0 && f[1] == 0 && f[2] == 0 {
		return entry{}, blank
	}
	const ksz, vsz, flag, ttl, status, ds, tx, bucket = 1, 2, 3, 4, 5, 6, 7, 8
	ok := f[ksz] >= 1 && f[ksz] <= maxKey && f[vsz] <= maxVal && f[flag] <= 1 && f[ttl] == 0 &&
		f[status] <= 1 && f[ds] == 2 && f[tx] != 0 && (f[flag] == 1 || f[vsz] == 0) &&
		(f[bucket] >= uint64(store.PendingTasks) && f[bucket] <= uint64(store.Meta) || f[bucket] == voidBucket)
	if !ok {
		return entry{}, broken
	}
	return entry{
		header: i, key: int(f[ksz]), val: int(f[vsz]),
		statusOff: at[status], bucketOff: at[bucket],
		tx: f[tx], bucket: byte(f[bucket]), set: f[flag] == 1, committed: f[status] == 1,
	}, valid
}

// blankOr returns blank when b is all zeroes, otherwise broken.
func blankOr(b []byte) entryStatus {
	if bytes.Equal(b, zeroes[:len(b)]) {
		return blank
	}
	return broken
}

// A window reads a file through a sliding buffer, so that the survey of any log takes
// constant memory.
type window struct {
	r    io.ReaderAt
	size int64
	skip func(off int64) int64 // returns where data may follow after off; nil: at off
	buf  []byte                // content of the file from base on
	base int64
}

// openWindow opens a file for reading; close closes it.
func openWindow(path string) (w *window, close func() error, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return &window{r: f, size: info.Size(), skip: func(off int64) int64 { return nextData(f, off) }}, f.Close, nil
}

const windowSize = 256 << 10

var zeroes [windowSize]byte

// peek returns the n bytes at off, or fewer at the end of the file. They are valid until
// the next call.
func (w *window) peek(off int64, n int64) ([]byte, error) {
	n = min(n, w.size-off)
	if n <= 0 {
		return nil, nil
	}
	if off < w.base || off+n > w.base+int64(len(w.buf)) {
		want := min(max(n, windowSize), w.size-off)
		if int64(cap(w.buf)) < want {
			w.buf = make([]byte, want)
		}
		w.buf, w.base = w.buf[:want], off
		if _, err := w.r.ReadAt(w.buf, off); err != nil {
			w.buf = w.buf[:0]
			return nil, fmt.Errorf("read the log at byte %d: %w", off, err)
		}
	}
	return w.buf[off-w.base:][:n], nil
}

// entryAt returns the entry and the status at off, and the bytes of a valid entry.
func (w *window) entryAt(off int64) (entry, []byte, entryStatus, error) {
	head, err := w.peek(off, maxHeader)
	if err != nil {
		return entry{}, nil, broken, err
	}
	e, v := decodeHeader(head)
	if v != valid {
		return e, nil, v, nil
	}
	b, err := w.peek(off, e.size())
	if err != nil {
		return e, nil, broken, err
	}
	if int64(len(b)) < e.size() || crc32.ChecksumIEEE(b[4:]) != binary.LittleEndian.Uint32(b) {
		return e, nil, broken, nil
	}
	return e, b, valid, nil
}

// written returns the first byte at or after off that is not zero, or -1.
func (w *window) written(off int64) (int64, error) {
	for off < w.size {
		b, err := w.peek(off, windowSize)
		if err != nil {
			return -1, err
		}
		if !bytes.Equal(b, zeroes[:len(b)]) {
			return off + int64(slices.IndexFunc(b, func(c byte) bool { return c != 0 })), nil
		}
		off += int64(len(b))
		if w.skip != nil {
			off = w.skip(off)
		}
	}
	return -1, nil
}
