package identity

import "sync"

// A cache holds the values of the most recently used keys: at least limit of
// them, at most twice as many. It evicts by generation, so that a get costs one
// or two map lookups and no list is kept in order. It is safe for concurrent use.
type cache[K comparable, V any] struct {
	limit             int
	mu                sync.Mutex
	current, previous map[K]V
}

func newCache[K comparable, V any](limit int) *cache[K, V] {
	return &cache[K, V]{limit: limit, current: make(map[K]V)}
}

// get returns the value of k and marks it as recently used.
func (r *cache[K, V]) get(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.current[k]; ok {
		return v, true
	}
	v, ok := r.previous[k]
	if ok {
		r.putLocked(k, v)
	}
	return v, ok
}

// put stores v as the value of k.
func (r *cache[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(k, v)
}

func (r *cache[K, V]) putLocked(k K, v V) {
	if len(r.current) >= r.limit {
		r.previous, r.current = r.current, make(map[K]V)
	}
	r.current[k] = v
}
