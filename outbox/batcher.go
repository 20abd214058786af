package outbox

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// A pendingGroup is a group being written to disk.
type pendingGroup interface {
	size() int // number of jobs
	wait()     // until it is on disk or refused
	answer()   // answers its callers, after wait
}

// A batcher decides when the waiting jobs become the next group. The disk sets
// the group size, so that under load many tasks share one signature and one
// fsync:
//
//	idle      a group is whatever is waiting
//	fast      the next group is signed and queued while the previous one is being
//	          written, once it is as large: the disk never waits for a signature
//	slow      the next group starts once the previous one has been answered and its
//	          callers had a moment to queue again: the larger group is worth the wait
type batcher struct {
	inflight []int // jobs of each group that is not on disk yet, oldest first
	slow     bool  // whether the last commit was slow
	skip     int   // slow commits after which not to wait for callers
	misses   int   // how often in a row few jobs came, roughly doubled each time
}

// A commitTiming records how long a group took to write.
type commitTiming struct {
	jobs int
	took time.Duration
}

// slowCommit and slowJob are the time of a commit, and of each job in it, above
// which the disk, not the processor, is the bottleneck.
const (
	slowCommit = time.Millisecond
	slowJob    = 10 * time.Microsecond
)

func (c commitTiming) slow() bool { return c.took > slowCommit+time.Duration(c.jobs)*slowJob }

// maxInflight is the largest number of groups being written at once.
const maxInflight = 2

// threshold returns how many jobs must be waiting to start a group now.
func (p *batcher) threshold() int {
	switch {
	case len(p.inflight) == 0:
		return 1
	case len(p.inflight) == maxInflight:
		return math.MaxInt
	case p.slow:
		return proto.MaxGroup
	}
	return min(p.inflight[0], proto.MaxGroup)
}

// size returns how many of the waiting jobs form the group. While another group
// is in flight it is half of all known jobs, so that groups become equally large
// instead of one large and one small.
func (p *batcher) size(waiting int) int {
	if len(p.inflight) == 0 || waiting >= proto.MaxGroup {
		return min(waiting, proto.MaxGroup)
	}
	return min(waiting, (waiting+p.inflight[0]+1)/2)
}

func (p *batcher) started(jobs int) { p.inflight = append(p.inflight, jobs) }

// written records that the oldest group is on disk, and returns how long to wait
// for its callers to queue again.
func (p *batcher) written(c commitTiming) time.Duration {
	p.inflight = append(p.inflight[:0], p.inflight[1:]...)
	p.slow = c.slow()
	switch {
	case !p.slow || len(p.inflight) > 0:
		return 0
	case p.skip > 0:
		p.skip--
		return 0
	}
	return c.took / 3
}

// gathered records how many jobs came during such a wait. If few come, later
// waits are skipped, with growing gaps.
func (p *batcher) gathered(came, answered int) {
	if 2*came >= answered {
		p.misses = 0
		return
	}
	p.misses = min(2*p.misses+1, 31)
	p.skip = p.misses
}

// run starts group after group until ctx is done; then it closes the queue and
// writes what is left.
func (q *submitQueue) run(ctx context.Context, mono func() time.Duration, begin func([]*job) pendingGroup) {
	var p batcher
	var jobs []*job
	var answering sync.WaitGroup
	begun, ended := make(chan pendingGroup, maxInflight), make(chan commitTiming, maxInflight)
	answering.Go(func() { answerGroups(begun, ended, mono) })
	defer answering.Wait()
	defer close(begun)
	for done := ctx.Done(); done != nil || q.size() > 0; {
		select {
		case <-q.ready(p.threshold()):
			jobs = q.take(jobs, p.size(q.size()))
			p.started(len(jobs))
			begun <- begin(jobs)
			clear(jobs)
		case c := <-ended:
			if limit := p.written(c); limit > 0 {
				p.gathered(q.gather(c.jobs, limit), c.jobs)
			}
		case <-done:
			q.close()
			done = nil
		}
	}
}

// answerGroups waits for the started groups, one after the other, and answers
// them. After a fast commit it reports the end before it answers, after a slow
// one once all callers were answered: see batcher.
func answerGroups(begun <-chan pendingGroup, ended chan<- commitTiming, mono func() time.Duration) {
	for w := range begun {
		start := mono()
		w.wait()
		c := commitTiming{w.size(), mono() - start}
		if c.slow() {
			w.answer()
			ended <- c
			continue
		}
		ended <- c
		w.answer()
	}
}

// gather waits for as many jobs as were answered, and returns how many came.
func (q *submitQueue) gather(answered int, limit time.Duration) int {
	before := q.size()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-q.ready(before + answered):
	case <-t.C:
	}
	return q.size() - before
}
