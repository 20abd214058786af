package node

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// jumping makes a world of so many nodes, in which the clock of the node at place
// is wrong by what is stored.
func jumping(t *testing.T, nodes, place int) (w *world, by *atomic.Int64) {
	by = new(atomic.Int64)
	link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
	w = newWorldWith(t, nodes, 1, link, func(s *simulated, cfg *Config) {
		if s.place == place {
			cfg.Clock = clock.Wrong(clock.Runtime(), func() time.Duration { return time.Duration(by.Load()) })
		}
	})
	time.Sleep(5 * time.Second)
	return w, by
}

// takes is a task that runs for d.
func takes(d time.Duration, target string) Request {
	p := plan{takes: d, class: proto.Class_CLASS_NORMAL}
	p.body = fmt.Appendf(nil, "%d 0 false %d;", d, time.Now().UnixNano())
	return p.request(target)
}

// must submits a task.
func (s *simulated) must(r Request) string {
	s.world.t.Helper()
	task, err := s.node.Submit(s.world.t.Context(), r)
	if err != nil {
		s.world.t.Fatal(err)
	}
	return task.ID
}

// becomes fails the test unless the task is in the state within so much time.
func (s *simulated) becomes(id, state string, limit time.Duration) Task {
	s.world.t.Helper()
	var task Task
	for began := time.Now(); time.Since(began) < limit; time.Sleep(100 * time.Millisecond) {
		if task, _ = s.node.Task(s.world.t.Context(), id); task.State == state {
			return task
		}
	}
	why, _ := s.node.Why(s.world.t.Context(), id)
	s.world.t.Errorf("the task is %s (%s) and not %s: %+v", task.State, task.Reason, state, why)
	return task
}

// wrongBy are the errors of a clock that the tests of I14 go through.
var wrongBy = []time.Duration{
	3 * time.Minute, -time.Hour, time.Hour, 240 * time.Hour, 960 * time.Hour, -960 * time.Hour, -20 * 365 * 24 * time.Hour,
}

// I14: the result of a task comes home however wrong the clock of its target was
// while the run ended.
func TestResultOfATargetWhoseClockWasWrong(t *testing.T) {
	for _, off := range wrongBy {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, by := jumping(t, 2, 1)
				defer w.close()
				id := w.nodes[0].must(takes(10*time.Second, "n1"))
				time.Sleep(8 * time.Second)
				by.Store(int64(off))
				time.Sleep(4 * time.Second)
				by.Store(0)
				w.nodes[0].becomes(id, "SUCCESS", 5*time.Minute)
			})
		})
	}
}
