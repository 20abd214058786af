package nuts

import (
	"sync"
	"sync/atomic"

	"github.com/balefire/balefire/store"
)

// overhead is the size in bytes of a record in the log without its key and value.
const overhead = 28

// A liveCount is a count of live records. NutsDB keeps no such figures, and reading
// before each write to maintain them is too expensive, so the records are recounted when
// the log has grown enough to make a difference.
type liveCount struct {
	at    position // end of the log at that time
	size  int64    // size of the log at that time
	keys  int64
	bytes int64 // of keys and values
}

// stale decides whether to count again when the log ends at pos and has size bytes. A nil
// liveCount is stale.
func (c *liveCount) stale(pos position, size int64) bool {
	const cheap = 20_000 // keys, counted in a few milliseconds
	return c == nil || pos != c.at && (c.keys < cheap || size-c.size > max(16<<20, c.size/4))
}

// logged returns how many bytes the records take in a log of nothing else.
func (c *liveCount) logged() int64 { return c.bytes + c.keys*overhead }

// liveness holds the last liveCount. While one goroutine counts, others get the previous
// figures.
type liveness struct {
	counting sync.Mutex
	last     atomic.Pointer[liveCount]
}

// Stats returns the current figures. Keys and LiveBytes are exact in a small store; in a
// large one they may lag by up to a quarter of the log.
func (d *DB) Stats() store.Stats {
	d.mu.RLock()
	pos, size, ago := d.gen.pos, d.gen.bytes(), d.sinceCompaction()
	d.mu.RUnlock()

	c := d.live.last.Load()
	if c.stale(pos, size) && d.live.counting.TryLock() {
		if now, err := d.count(); err == nil {
			now.at, now.size = pos, size
			c = now
			d.live.last.Store(c)
		}
		d.live.counting.Unlock()
	}
	st := store.Stats{Engine: "nuts", DiskBytes: size, Keys: -1}
	if c != nil {
		st.Keys, st.LiveBytes = c.keys, c.bytes
		st.CompactDue = compactDue(size, c.logged(), ago)
	}
	return st
}

// count walks all records in pages, so that a commit never waits for long.
func (d *DB) count() (*liveCount, error) {
	c := new(liveCount)
	for _, b := range store.Buckets() {
		for start, more := []byte(nil), true; more; {
			n := 0
			err := d.page(b, start, func(k, v []byte) bool {
				n++
				c.bytes += int64(len(k) + len(v))
				start = k
				return n < pageOps
			})
			if err != nil {
				return nil, err
			}
			c.keys += int64(n)
			start, more = after(start), n == pageOps
		}
	}
	return c, nil
}

func (d *DB) page(b store.Bucket, start []byte, fn func(k, v []byte) bool) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.down != nil {
		return d.down
	}
	return d.gen.raw.each(b, start, fn)
}
