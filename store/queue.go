package store

import "sync"

// A Queue passes requests to the goroutine that commits them. It needs no bound: whoever
// pushes waits for an answer, or limits what it pushes.
type Queue[T any] struct {
	Wake chan struct{} // has a token when something may have been pushed, or the queue closed

	mu     sync.Mutex
	items  []T
	closed bool
}

// NewQueue returns an open queue.
func NewQueue[T any]() *Queue[T] { return &Queue[T]{Wake: make(chan struct{}, 1)} }

// Push adds r and reports whether the queue is open.
func (q *Queue[T]) Push(r T) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.items = append(q.items, r)
	first := len(q.items) == 1
	q.mu.Unlock()
	if first {
		q.signal()
	}
	return true
}

// Take returns all requests and leaves empty, which it overwrites, in their place.
func (q *Queue[T]) Take(empty []T) (items []T, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items, q.items = q.items, empty[:0]
	return items, q.closed
}

// Await is like Take and blocks until there are requests. It returns none only once the
// queue is closed and empty.
func (q *Queue[T]) Await(empty []T) []T {
	for {
		items, closed := q.Take(empty)
		if len(items) > 0 || closed {
			return items
		}
		empty = items
		<-q.Wake
	}
}

// Close refuses further requests; queued ones will still be taken.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

func (q *Queue[T]) signal() {
	select {
	case q.Wake <- struct{}{}:
	default:
	}
}

// size returns how many requests are waiting.
func (q *Queue[T]) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}
