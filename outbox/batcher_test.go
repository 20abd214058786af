package outbox

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

func TestBatcherThresholds(t *testing.T) {
	tests := []struct {
		name    string
		pace    batcher
		want    int // jobs that must wait
		waiting int
		size    int
	}{
		{"nothing is written: all that are waiting", batcher{}, 1, 5, 5},
		{"nothing is written: as many as one signature covers", batcher{}, 1, 2 * proto.MaxGroup, proto.MaxGroup},
		{"while another of its size is written", batcher{inflight: []int{8}}, 8, 8, 8},
		{"while a small one is written: half of all", batcher{inflight: []int{2}}, 2, 12, 7},
		{"while another is written: as many as one signature covers", batcher{inflight: []int{proto.MaxGroup}}, proto.MaxGroup, proto.MaxGroup + 9, proto.MaxGroup},
		{"while a slow one is written: only a full one", batcher{inflight: []int{8}, slow: true}, proto.MaxGroup, proto.MaxGroup, proto.MaxGroup},
		{"two are enough", batcher{inflight: []int{8, 8}}, math.MaxInt, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.pace.threshold(); got != tt.want {
				t.Errorf("want() = %d, want %d", got, tt.want)
			}
			if got := tt.pace.size(tt.waiting); tt.size > 0 && got != tt.size {
				t.Errorf("size(%d) = %d, want %d", tt.waiting, got, tt.size)
			}
		})
	}
}

func TestBatcherWaitsOnlyForReturningCallers(t *testing.T) {
	var p batcher
	slow := commitTiming{jobs: 100, took: 9 * time.Millisecond}
	end := func(c commitTiming) time.Duration { p.started(c.jobs); return p.written(c) }
	if got := end(commitTiming{jobs: 100, took: 2 * time.Millisecond}); got != 0 {
		t.Errorf("waits after 20 us per job: %v", got)
	}
	waits := 0
	for range 64 {
		limit := end(slow)
		if limit > slow.took/3 {
			t.Fatalf("waits for %v after a commit of %v", limit, slow.took)
		}
		if limit > 0 {
			waits++
			p.gathered(10, slow.jobs)
		}
	}
	if waits > 6 {
		t.Errorf("waited %d times of 64 although few came", waits)
	}
	for p.skip > 0 {
		end(slow)
	}
	p.gathered(60, slow.jobs)
	for range 2 {
		if end(slow) == 0 {
			t.Error("they come, but there is no wait")
		}
	}
}

// A fakeDisk writes groups of jobs in a time set by the test.
type fakeDisk struct {
	mu     sync.Mutex
	groups []int // as they were begun
	write  func()
}

type diskGroup struct {
	d    *fakeDisk
	jobs []*job
}

func (d *fakeDisk) begin(jobs []*job) pendingGroup {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.groups = append(d.groups, len(jobs))
	return &diskGroup{d, slices.Clone(jobs)}
}

func (d *fakeDisk) begun() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.groups)
}

func (g *diskGroup) size() int { return len(g.jobs) }
func (g *diskGroup) wait()     { g.d.write() }
func (g *diskGroup) answer() {
	for _, j := range g.jobs {
		j.call.answered()
	}
}

// put queues one job and returns a channel that receives a token with its answer,
// nil if the queue is closed.
func put(q *submitQueue) <-chan struct{} {
	c := newCall().(*call)
	c.left.Store(1)
	if !q.push([]*job{{call: c}}) {
		return nil
	}
	return c.done
}

// withIntake runs f with a queue that writes to d, with the clock of the bubble, and
// stops the queue.
func withIntake(t *testing.T, d *fakeDisk, f func(q *submitQueue)) {
	synctest.Test(t, func(t *testing.T) {
		q, begin := newSubmitQueue(), time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { q.run(ctx, func() time.Duration { return time.Since(begin) }, d.begin) })
		f(&q)
		cancel()
		wg.Wait()
		if put(&q) != nil {
			t.Error("a closed queue accepts a job")
		}
	})
}

func TestNextGroupIsSignedDuringTheWrite(t *testing.T) {
	var written chan struct{}
	d := &fakeDisk{write: func() { <-written }}
	withIntake(t, d, func(q *submitQueue) {
		written = make(chan struct{}, 4)
		check := func(when string, want ...int) {
			t.Helper()
			synctest.Wait()
			if got := d.begun(); !slices.Equal(got, want) {
				t.Fatalf("%s: groups of %v, want %v", when, got, want)
			}
		}
		var answers []<-chan struct{}
		for range 3 {
			answers = append(answers, put(q))
			synctest.Wait()
		}
		answers = append(answers, put(q), put(q))
		check("two on the way, three wait", 1, 1)
		written <- struct{}{}
		check("one is written", 1, 1, 2)
		for range 3 {
			written <- struct{}{}
		}
		check("all are written", 1, 1, 2, 1)
		for i, a := range answers {
			select {
			case <-a:
			default:
				t.Errorf("job %d was not answered", i)
			}
		}
	})
}

func TestQueuedJobsAreWrittenOnStop(t *testing.T) {
	d := &fakeDisk{write: func() { time.Sleep(time.Millisecond) }}
	withIntake(t, d, func(q *submitQueue) {
		for range 5 * proto.MaxGroup {
			put(q)
		}
	})
	sum := 0
	for _, n := range d.begun() {
		sum += n
	}
	if sum != 5*proto.MaxGroup {
		t.Errorf("%d of %d jobs were written", sum, 5*proto.MaxGroup)
	}
}

func TestSlowDiskWaitsForAnsweredCallers(t *testing.T) {
	const callers, times = 8, 20
	d := &fakeDisk{write: func() { time.Sleep(10 * time.Millisecond) }}
	withIntake(t, d, func(q *submitQueue) {
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond) // they do not begin together
				for range times {
					<-put(q)
					time.Sleep(time.Millisecond) // what it takes to make the next task
				}
			})
		}
		wg.Wait()
	})
	if n := len(d.begun()); n > times+5 {
		t.Errorf("%d groups for %d rounds of %d callers: %v", n, times, callers, d.groups)
	}
}
