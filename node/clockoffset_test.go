package node

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

const year = 365 * day

// newOffsetMesh creates two nodes, each the home of a queue. The clock of the node at place
// is off from its first start on.
func newOffsetMesh(t *testing.T, place int, off time.Duration) (w *simMesh, by *atomic.Int64) {
	by = new(atomic.Int64)
	by.Store(int64(off))
	w = newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
		quietMesh(s, cfg)
		if s.place == place {
			cfg.Clock = clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(by.Load()) })
		}
	})
	time.Sleep(5 * time.Second)
	return w, by
}

// I14: however far the clocks of two nodes are apart, tasks and their results go both ways,
// directly and through the queues of both; both report the difference, and so they do after
// a restart, and once the clock is right it is not reported any more.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 3)
	for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute, 10 * day, -10 * day, -20 * year} {
		for place := range 2 {
			run(fmt.Sprintf("node %d is %s off", place, off), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, by := newOffsetMesh(t, place, off)
					defer w.close()
					for i, s := range w.nodes {
						if _, err := s.node.Queues.Set(t.Context(), fmt.Sprintf("q%d", i), wire.QueueSettings{Home: "here"}); err != nil {
							t.Fatal(err)
						}
					}
					time.Sleep(15 * time.Second)
					w.exchange("at first")
					w.reportClocks(true)
					w.nodes[place].halt()
					w.nodes[place].start()
					time.Sleep(15 * time.Second)
					w.exchange("after a restart")
					time.Sleep(clock.BelieveAfter + time.Minute)
					w.exchange("later")
					by.Store(0)
					time.Sleep(10 * time.Second)
					w.exchange("with right clocks")
					w.reportClocks(false)
				})
			})
		}
	}
}

// exchange sends tasks from each node to the other and to both queues, and expects their
// results within ten seconds of their end.
func (sm *simMesh) exchange(when string) {
	sm.t.Helper()
	type sent struct {
		by *simNode
		id string
	}
	var all []sent
	for i, s := range sm.nodes {
		for _, to := range []string{sm.nodes[1-i].name, "queue:q0", "queue:q1", "queue:q0", "queue:q1"} {
			all = append(all, sent{s, s.mustSubmit(sleepTask(time.Second, to))})
		}
	}
	for _, x := range all {
		if task := x.by.waitState(x.id, "SUCCESS", 11*time.Second); task.State != "SUCCESS" {
			sm.t.Errorf("%s: the task of %s for %s", when, x.by.name, task.Target)
		}
		if runs := sm.checker.runsOf(x.id); runs != 1 {
			sm.t.Errorf("%s: it ran %d times", when, runs)
		}
	}
}

// reportClocks checks whether both nodes report that the other's clock differs.
func (sm *simMesh) reportClocks(want bool) {
	sm.t.Helper()
	for i, s := range sm.nodes {
		other := sm.nodes[1-i].name
		status := s.node.Views.Status(sm.t.Context())
		if noted(status.Warnings, wire.NotePeerClock) != want {
			sm.t.Errorf("status of %s: %+v", s.name, status.Warnings)
		}
		p, err := s.node.Views.Peer(other)
		if err != nil || p.State != "CONNECTED" || (p.Clock != 0) != want {
			sm.t.Errorf("%s for %s: %+v, %v", other, s.name, p, err)
		}
		why, err := s.node.Explainer.Why(sm.t.Context(), other)
		if err != nil || noted(why.Steps, wire.NotePeerClock) != want {
			sm.t.Errorf("why %s at %s: %+v, %v", other, s.name, why, err)
		}
	}
}

// I14: a difference of 30 s is reported at both ends, a smaller one is not.
func TestSmallDifferencesOfClocks(t *testing.T) {
	for off, want := range map[time.Duration]bool{29 * time.Second: false, 31 * time.Second: true, -31 * time.Second: true} {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, _ := newOffsetMesh(t, 1, off)
				defer w.close()
				w.reportClocks(want)
			})
		})
	}
}

// I14: two nodes whose clocks are twenty years apart refuse each other, and both name the
// clock as the cause. Nothing is ended, purged or dropped meanwhile, and once the clock is
// right all that waits is done within ten seconds.
func TestClockTwentyYearsAhead(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 2)
	for place := range 2 {
		run(fmt.Sprintf("node %d", place), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, by := newOffsetMesh(t, place, 0)
				defer w.close()
				wrong := w.nodes[place]
				for i, s := range w.nodes {
					if _, err := s.node.Queues.Set(t.Context(), fmt.Sprintf("q%d", i), wire.QueueSettings{Home: "here"}); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(10 * time.Second)
				ended := map[string]*simNode{}
				for i, s := range w.nodes {
					ended[s.mustSubmit(sleepTask(time.Second, w.nodes[1-i].name))] = s
				}
				time.Sleep(5 * time.Second)
				w.Unplug(place)
				time.Sleep(30 * time.Second)
				waits := map[string]*simNode{}
				for i, s := range w.nodes {
					for _, to := range []string{w.nodes[1-i].name, fmt.Sprintf("queue:q%d", 1-i)} {
						waits[s.mustSubmit(sleepTask(time.Second, to))] = s
					}
				}
				wrong.halt()
				by.Store(int64(20 * year))
				wrong.forgetClock()
				wrong.start()
				w.Plug(place)
				time.Sleep(clock.BelieveAfter + 2*time.Minute)
				for i, s := range w.nodes {
					w.refusedByClocks(s, w.nodes[1-i].name)
				}
				for id, s := range waits {
					s.waitState(id, "PENDING", time.Second)
				}
				for id, s := range ended {
					s.waitState(id, "SUCCESS", time.Second)
				}
				by.Store(0)
				for id, s := range waits {
					s.waitState(id, "SUCCESS", 10*time.Second)
					if runs := w.checker.runsOf(id); runs != 1 {
						t.Errorf("it ran %d times", runs)
					}
				}
				for id, s := range ended {
					s.waitState(id, "SUCCESS", time.Second)
				}
			})
		})
	}
}

// forgetClock removes what a stopped node knows of the time.
func (s *simNode) forgetClock() {
	s.mesh.t.Helper()
	s.engine = s.engine.Reopen()
	st, err := store.Open(s.engine, store.Config{SweepEvery: -1, CompactEvery: -1})
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	var b store.Batch
	b.Delete(store.Meta, clockKey)
	if err := errors.Join(st.Apply(s.mesh.t.Context(), &b), st.Close()); err != nil {
		s.mesh.t.Fatal(err)
	}
}

// refusedByClocks checks that a node states everywhere that the clocks keep it from another.
func (sm *simMesh) refusedByClocks(s *simNode, other string) {
	sm.t.Helper()
	status := s.node.Views.Status(sm.t.Context())
	if !noted(status.Warnings, wire.NotePeerClock) {
		sm.t.Errorf("status of %s: %+v", s.name, status.Warnings)
	}
	p, err := s.node.Views.Peer(other)
	if err != nil || p.State == "CONNECTED" || time.Duration(p.Clock*float64(time.Second)).Abs() < 19*year {
		sm.t.Errorf("%s for %s: %+v, %v", other, s.name, p, err)
	}
	why, err := s.node.Explainer.Why(sm.t.Context(), other)
	if err != nil || why.Cause.Code != wire.NoteClocksDiffer {
		sm.t.Errorf("why %s at %s: %+v, %v", other, s.name, why, err)
	}
}
