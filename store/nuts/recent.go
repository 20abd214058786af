package nuts

import (
	"sync"

	"github.com/balefire/balefire/store"
)

// recentBytes bounds the cache of the last commits.
const recentBytes = 8 << 20

// recentOverhead is the memory of an entry besides its key and value.
const recentOverhead = 128

// A recent caches the last commits. NutsDB blocks reads while it writes and syncs,
// and recently written records are read most: without the cache a reader that
// follows a writer waits for one commit per read.
//
// The values share their memory with NutsDB.
type recent struct {
	mu     sync.RWMutex
	values map[recentKey]remembered
	order  []placed // the oldest first, from head on
	head   int
	bytes  int
	count  uint64
}

type recentKey struct {
	bucket store.Bucket
	key    string
}

// A remembered is the last value of a key.
type remembered struct {
	val     []byte
	deleted bool
	number  uint64
}

// A placed is an entry in eviction order; it is skipped if its key was written again
// later.
type placed struct {
	key    recentKey
	number uint64
	bytes  int
}

func newRecent() *recent { return &recent{values: map[recentKey]remembered{}} }

// get returns a private copy of the value of a key; known is false if the key is not
// cached.
func (r *recent) get(b store.Bucket, key []byte) (val []byte, ok, known bool) {
	r.mu.RLock()
	e, known := r.values[recentKey{b, string(key)}]
	r.mu.RUnlock()
	if !known || e.deleted {
		return nil, false, known
	}
	return append(make([]byte, 0, len(e.val)), e.val...), true, true
}

// put caches a commit. The slices of its values never change.
func (r *recent) put(ops []store.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ops {
		op := &ops[i]
		k := recentKey{op.Bucket, string(op.Key)}
		r.count++
		r.values[k] = remembered{val: op.Val, deleted: op.Delete, number: r.count}
		p := placed{k, r.count, len(op.Key) + len(op.Val) + recentOverhead}
		r.order = append(r.order, p)
		r.bytes += p.bytes
	}
	r.trim()
}

// trim evicts the oldest entries until the rest is within the bound.
func (r *recent) trim() {
	for r.bytes > recentBytes {
		p := r.order[r.head]
		r.order[r.head] = placed{}
		r.head++
		r.bytes -= p.bytes
		if r.values[p.key].number == p.number {
			delete(r.values, p.key)
		}
	}
	if r.head > len(r.order)/2 {
		n := copy(r.order, r.order[r.head:])
		clear(r.order[n:])
		r.order, r.head = r.order[:n], 0
	}
}

// forget clears the cache.
func (r *recent) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values, r.order, r.head, r.bytes = map[recentKey]remembered{}, nil, 0, 0
}
