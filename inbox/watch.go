package inbox

import (
	"context"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	notifyAfter = time.Second            // a run that lasts so long is told to its origin
	watchEvery  = 500 * time.Millisecond // between two looks at what runs
)

// watch ends runs that are out of time by the machine's own clock, which counts
// suspended time as timers do not (I14), and tells origins, or the homes of leases, of runs that last.
// While nothing runs it sleeps.
func (in *Inbox) watch(ctx context.Context) {
	for {
		if in.slots.idle() {
			select {
			case <-ctx.Done():
			case <-in.slots.begun:
			}
		}
		pause(ctx, watchEvery)
		if ctx.Err() != nil {
			return
		}
		late, lasting := in.slots.due(in.cfg.Clock.Boot())
		for _, j := range late {
			in.slots.stop(j, stopTimeout, false)
		}
		for _, j := range lasting {
			in.notifyStarted(j)
		}
	}
}

// due returns the runs that are out of time, and those that have lasted long
// enough to be told of for the first time.
func (s *slots) due(boot time.Duration) (late, lasting []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if !j.slot || j.began.IsZero() {
			continue
		}
		if j.limit > 0 && boot >= j.limit {
			late = append(late, j)
		}
		if j.notifyAt > 0 && boot >= j.notifyAt {
			j.notifyAt = 0
			lasting = append(lasting, j)
		}
	}
	return late, lasting
}

func (in *Inbox) notifyStarted(j *job) {
	s := Started{Origin: j.origin, Statement: proto.Statement{
		Fact: proto.FactStarted, Mesh: in.cfg.Mesh, Task: j.key.ID, Node: in.cfg.Self,
		Time: j.began.UnixMilli(), Epoch: j.epoch, Attempt: j.attempt,
	}}
	if j.lease != nil {
		s.Home = j.lease.Home
	}
	in.cfg.OnStarted(s)
}
