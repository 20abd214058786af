package outbox

import (
	"context"
	"runtime"
	"sync"

	"github.com/balefire/balefire/proto"
)

// An intake queues jobs for the one goroutine that commits them. What queues
// while a group is being committed is the next group: the disk sets the pace, and
// under load many tasks share one signature and one fsync.
type intake struct {
	mu     *sync.Mutex
	jobs   []*job
	closed bool
	wake   chan struct{}
}

func newIntake() intake { return intake{mu: new(sync.Mutex), wake: make(chan struct{}, 1)} }

// push queues jobs and reports whether the intake is open.
func (q *intake) push(jobs []*job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.jobs = append(q.jobs, jobs...)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// take returns all that waits and leaves empty in its place.
func (q *intake) take(empty []*job) []*job {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs := q.jobs
	q.jobs = empty[:0]
	return jobs
}

// run commits group after group until ctx is done; then it closes the intake and
// commits what is in it.
func (q *intake) run(ctx context.Context, commit func([]*job)) {
	var jobs []*job
	for {
		jobs = q.take(jobs)
		for rest := jobs; len(rest) > 0; {
			n := min(len(rest), proto.MaxGroup)
			commit(rest[:n])
			rest = rest[n:]
		}
		clear(jobs)
		if len(jobs) > 0 {
			runtime.Gosched() // lets those who were answered queue again: larger groups
			continue
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			if q.close() {
				return
			}
		}
	}
}

// close lets nothing more in and reports whether nothing is left.
func (q *intake) close() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	return len(q.jobs) == 0
}
