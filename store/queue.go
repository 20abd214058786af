package store

import "sync"

// A queue passes requests to the committer. It needs no bound: every request in
// it is a waiting caller.
type queue struct {
	mu     sync.Mutex
	items  []*request
	closed bool
	wake   chan struct{} // holds a token when items or closed may have changed
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// push adds r and reports whether the queue is open.
func (q *queue) push(r *request) bool {
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

// take returns all waiting requests and leaves empty, which it overwrites, in
// their place. With wait it blocks until there are some; it then returns none
// only once the queue is closed and empty.
func (q *queue) take(empty []*request, wait bool) []*request {
	for {
		q.mu.Lock()
		if len(q.items) > 0 || q.closed || !wait {
			items := q.items
			q.items = empty[:0]
			q.mu.Unlock()
			return items
		}
		q.mu.Unlock()
		<-q.wake
	}
}

// close refuses further requests; queued ones will still be taken.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// size returns how many requests are waiting.
func (q *queue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}
