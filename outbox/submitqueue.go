package outbox

import "sync"

// An submitQueue queues jobs for the one goroutine that signs them and hands them to
// the store: see pace.
type submitQueue struct {
	mu        *sync.Mutex
	jobs      []*job
	closed    bool
	threshold int // how many jobs the other side waits for
	wake      chan struct{}
	buf       []byte // records of the group that is signed; of the signing goroutine alone
}

// maxKeptBuf is the largest buffer that is kept for the next group.
const maxKeptBuf = 2 << 20

func newSubmitQueue() submitQueue {
	return submitQueue{mu: new(sync.Mutex), threshold: 1, wake: make(chan struct{}, 1)}
}

// push queues those of jobs that have no error yet, and reports whether the intake
// is open.
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

// ready returns a channel that gets a token once n jobs wait, until the next call.
func (q *submitQueue) ready(n int) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.threshold = n
	select {
	case <-q.wake: // of an earlier call
	default:
	}
	if len(q.jobs) >= n {
		signal(q.wake)
	}
	return q.wake
}

// take moves the first n jobs into dst, which it overwrites.
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

// close lets nothing more in.
func (q *submitQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
