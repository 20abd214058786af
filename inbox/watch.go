package inbox

import (
	"context"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	noticeAfter = time.Second            // a run that lasts so long is told to its origin
	watchEvery  = 500 * time.Millisecond // between two looks at what runs
)

// watch ends runs that are out of time by the machine's own clock, which counts
// suspended time as timers do not (I14), and tells origins, or the homes of leases, of runs that last.
// While nothing runs it sleeps.
func (in *Inbox) watch(ctx context.Context) {
	for {
		if in.desk.quiet() {
			select {
			case <-ctx.Done():
			case <-in.desk.begun:
			}
		}
		pause(ctx, watchEvery)
		if ctx.Err() != nil {
			return
		}
		late, lasting := in.desk.look(in.cfg.Clock.Boot())
		for _, c := range late {
			in.desk.stop(c, stopTimeout, false)
		}
		for _, c := range lasting {
			in.notice(c)
		}
	}
}

// look returns the runs that are out of time, and those that have lasted long
// enough to be told of for the first time.
func (d *desk) look(boot time.Duration) (late, lasting []*claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.claims {
		if !c.slot || c.began.IsZero() {
			continue
		}
		if c.limit > 0 && boot >= c.limit {
			late = append(late, c)
		}
		if c.noticed > 0 && boot >= c.noticed {
			c.noticed = 0
			lasting = append(lasting, c)
		}
	}
	return late, lasting
}

func (in *Inbox) notice(c *claim) {
	s := Started{Origin: c.origin, Statement: proto.Statement{
		Fact: proto.FactStarted, Mesh: in.cfg.Mesh, Task: c.key.ID, Node: in.cfg.Self,
		Time: c.began.UnixMilli(), Epoch: c.epoch, Attempt: c.attempt,
	}}
	if c.lease != nil {
		s.Home = c.lease.Home
	}
	in.cfg.OnStarted(s)
}
