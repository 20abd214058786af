package inbox

import (
	"context"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

const (
	notifyAfter = time.Second            // a run that lasts this long is reported
	watchEvery  = 500 * time.Millisecond // between two checks of running handlers
)

// watch stops runs that are out of time by the boot clock, which unlike timers counts
// suspended time (I14), and reports runs that last to their origins or homes. It sleeps
// while nothing runs.
func (in *Inbox) watch(ctx context.Context) {
	for {
		if in.slots.idle() {
			select {
			case <-ctx.Done():
			case <-in.slots.begun:
			}
		}
		clock.Pause(ctx, watchEvery)
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

// due returns the runs that are out of time, and those that have lasted long enough to be
// reported for the first time, and whose starts are on disk.
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
		if j.notifyAt > 0 && boot >= j.notifyAt && j.note == noteWritten {
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
