package outbox

import "sync"

// A submitQueue holds jobs for the one goroutine that signs them and passes them
// to the store: see batcher.
type submitQueue struct {
	mu        *sync.Mutex
	jobs      []*job
	closed    bool
	threshold int // how many jobs the reader waits for
	wake      chan struct{}
	buf       []byte // encoded records of the current group; used by the signing goroutine alone
}

// maxKeptBuf is the largest buffer kept for the next group.
const maxKeptBuf = 2 << 20

func newSubmitQueue() submitQueue {
	return submitQueue{mu: new(sync.Mutex), threshold: 1, wake: make(chan struct{}, 1)}
}

// push queues the jobs without an error and reports whether the queue is open.
func (q *submitQueue) push(jobs []*job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	before := len(q.jobs)
	for _, j := range jobs {
		if j.err == nil {
			q.jobs = append(q.jobs, j)
		}
	}
	if before < q.threshold && len(q.jobs) >= q.threshold {
		signal(q.wake)
	}
	return true
}

// ready returns a channel that receives a token once n jobs are waiting. It
// replaces the channel of the previous call.
func (q *submitQueue) ready(n int) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.threshold = n
	select {
	case <-q.wake: // : token of an earlier call
	default:
	}
	if len(q.jobs) >= n {
		signal(q.wake)
	}
	return q.wake
}

// take moves the first n jobs into dst, overwriting it.
func (q *submitQueue) take(dst []*job, n int) []*job {
	q.mu.Lock()
	defer q.mu.Unlock()
	dst = append(dst[:0], q.jobs[:n]...)
	rest := copy(q.jobs, q.jobs[n:])
	clear(q.jobs[rest:])
	q.jobs = q.jobs[:rest]
	return dst
}

func (q *submitQueue) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs)
}

// close refuses further jobs.
func (q *submitQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
