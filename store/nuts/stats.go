package nuts

import (
	"sync"

	"github.com/balefire/balefire/store"
)

// overhead is what a record takes in the log besides its key and value, bytes.
const overhead = 28

// A liveness is the last count of what is alive. NutsDB keeps no such figures
// and reading before each write to keep them is too dear, so the records are
// counted again when the log has grown by enough to make a difference.
type liveness struct {
	mu    sync.Mutex // held while one goroutine counts; the others do not wait
	known bool
	at    position // where the log ended then
	size  int64    // size of the log then
	keys  int64
	bytes int64 // of keys and values
}

// stale decides whether a count is worth repeating now that the log ends at pos.
func (l *liveness) stale(pos position, size int64) bool {
	const cheap = 20_000 // keys, counted in a few milliseconds
	return !l.known || pos != l.at && (l.keys < cheap || size-l.size > max(16<<20, l.size/4))
}

func (l *liveness) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known = false
}

// Stats describes the engine now. Keys and LiveBytes are exact in a small store
// and up to a quarter of the log behind in a large one.
func (d *DB) Stats() store.Stats {
	d.mu.RLock()
	pos, size, ago, down := d.gen.pos, d.gen.bytes(), d.sinceCompaction(), d.down != nil
	d.mu.RUnlock()

	l := &d.live
	st := store.Stats{Engine: "nuts", DiskBytes: size, Keys: -1}
	if down || !l.mu.TryLock() {
		return st
	}
	defer l.mu.Unlock()
	if l.stale(pos, size) {
		keys, bytes, err := d.count()
		if err != nil {
			return st
		}
		l.known, l.at, l.size, l.keys, l.bytes = true, pos, size, keys, bytes
	}
	st.Keys, st.LiveBytes = l.keys, l.bytes
	st.CompactDue = compactDue(size, l.bytes+l.keys*overhead, ago)
	return st
}

// count walks all records in pages, so that a commit never waits for long.
func (d *DB) count() (keys, bytes int64, err error) {
	for _, b := range store.Buckets() {
		for start := []byte(nil); ; {
			n, last := 0, []byte(nil)
			err := d.page(b, start, func(k, v []byte) bool {
				n, last, bytes = n+1, k, bytes+int64(len(k)+len(v))
				return n < pageOps
			})
			if err != nil {
				return 0, 0, err
			}
			keys += int64(n)
			if n < pageOps {
				break
			}
			start = after(last)
		}
	}
	return keys, bytes, nil
}

func (d *DB) page(b store.Bucket, start []byte, fn func(k, v []byte) bool) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.down != nil {
		return d.down
	}
	return d.gen.raw.each(b, start, fn)
}
