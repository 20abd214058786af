package outbox

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// A pendingGroup is a group on its way to the disk.
type pendingGroup interface {
	size() int // jobs
	wait()     // until it is on disk, or refused
	answer()   // its callers, after that
}

// A batcher says when the jobs that wait become the next group. The disk sets it, so
// that under load many tasks share one signature and one fsync:
//
//	idle      a group is whatever waits
//	quick     the next group is signed and queued while the last is being written,
//	          once it is as large: then the disk never waits for a signature
//	slow      the next group is made once the last is answered and those who were
//	          answered had a moment to queue again: the larger group is worth more
type batcher struct {
	inflight []int // jobs of the groups that are not on disk yet, the oldest first
	slow     bool  // the last commit was
	skip     int   // slow commits after which nobody is waited for
	misses   int   // how often in a row few came, roughly doubled each time
}

// A commitTiming is how one group was written.
type commitTiming struct {
	jobs int
	took time.Duration
}

// slowCommit and slowJob are the time of a commit, and of each job in it, from
// which on the disk and not the processor is what it waits for.
const (
	slowCommit = time.Millisecond
	slowJob    = 10 * time.Microsecond
)

func (c commitTiming) slow() bool { return c.took > slowCommit+time.Duration(c.jobs)*slowJob }

// maxInflight is how many groups are on their way to the disk.
const maxInflight = 2

// threshold returns how many jobs have to wait to become a group now.
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

// size returns how many of those that wait become the group: beside another only
// half of all that are known, so that groups grow equally large and not one large
// and one small.
func (p *batcher) size(waiting int) int {
	if len(p.inflight) == 0 || waiting >= proto.MaxGroup {
		return min(waiting, proto.MaxGroup)
	}
	return min(waiting, (waiting+p.inflight[0]+1)/2)
}

func (p *batcher) started(jobs int) { p.inflight = append(p.inflight, jobs) }

// written notes that the oldest group is on disk, and returns how long those who
// were answered are waited for.
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

// gathered notes how many came of those who were waited for. Where they do not
// come they are waited for less and less often.
func (p *batcher) gathered(came, answered int) {
	if 2*came >= answered {
		p.misses = 0
		return
	}
	p.misses = min(2*p.misses+1, 31)
	p.skip = p.misses
}

// run begins group after group until ctx is done; then it closes the intake and
// writes what is in it.
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

// answerGroups waits for the groups that were begun, one after the other, and answers
// them. After a quick commit it says first that it has ended, after a slow one
// when all were answered: see pace.
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

// gather waits for as many jobs as there were answered, and returns how many came.
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
