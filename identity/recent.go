package identity

import "sync"

// A recent remembers the values of the keys used last: at least limit of them,
// at most twice as many. It forgets by generation, so that a get costs one or
// two map look-ups and no list is kept in order. It is safe for concurrent use.
type recent[K comparable, V any] struct {
	limit      int
	mu         sync.Mutex
	young, old map[K]V
}

func newRecent[K comparable, V any](limit int) *recent[K, V] {
	return &recent[K, V]{limit: limit, young: make(map[K]V)}
}

// get returns the value of k, and keeps it for longer.
func (r *recent[K, V]) get(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.young[k]; ok {
		return v, true
	}
	v, ok := r.old[k]
	if ok {
		r.putLocked(k, v)
	}
	return v, ok
}

// put remembers v as the value of k.
func (r *recent[K, V]) put(k K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(k, v)
}

func (r *recent[K, V]) putLocked(k K, v V) {
	if len(r.young) >= r.limit {
		r.old, r.young = r.young, make(map[K]V)
	}
	r.young[k] = v
}
