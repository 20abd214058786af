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
	"github.com/balefire/balefire/wire"
)

// newJumpingMesh creates a mesh in which the clock of the node at place is wrong by the
// stored value.
func newJumpingMesh(t *testing.T, nodes, place int) (w *simMesh, by *atomic.Int64) {
	by = new(atomic.Int64)
	link := transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}
	w = newSimMeshWith(t, nodes, 1, link, func(s *simNode, cfg *Config) {
		quietMesh(s, cfg)
		if s.place == place {
			cfg.Clock = clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(by.Load()) })
		}
	})
	time.Sleep(5 * time.Second)
	return w, by
}

// sleepTask is a task that runs for d.
func sleepTask(d time.Duration, target string) wire.Request {
	p := plan{takes: d, class: proto.Normal}
	p.body = fmt.Appendf(nil, "%d 0 false %d;", d, time.Now().UnixNano())
	return p.request(target)
}

// mustSubmit submits a task.
func (s *simNode) mustSubmit(r wire.Request) string {
	s.mesh.t.Helper()
	task, err := s.node.Submit(s.mesh.t.Context(), r)
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	return task.ID
}

// waitState fails the test unless the task reaches the state within limit.
func (s *simNode) waitState(id, state string, limit time.Duration) wire.Task {
	s.mesh.t.Helper()
	var task wire.Task
	for began := time.Now(); time.Since(began) < limit; time.Sleep(100 * time.Millisecond) {
		if task, _ = s.node.Views.Task(s.mesh.t.Context(), id); task.State == state {
			return task
		}
	}
	why, _ := s.node.Explainer.Why(s.mesh.t.Context(), id)
	s.mesh.t.Errorf("the task is %s (%s), want %s: %+v", task.State, task.Reason, state, why)
	return task
}

// runsOf counts the starts of a task.
func (c *checker) runsOf(id string) int {
	task, err := proto.ParseTaskID(id)
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entry(task).runs)
}

// addSharedQueue makes this node the home of the queue shared, which all nodes serve.
func (s *simNode) addSharedQueue() {
	s.mesh.t.Helper()
	if _, err := s.node.Queues.Set(s.mesh.t.Context(), "shared", wire.QueueSettings{Home: "here"}); err != nil {
		s.mesh.t.Fatal(err)
	}
}

// checkOneRun checks that a task that has ended ran once.
func (sm *simMesh) checkOneRun(id string) {
	sm.t.Helper()
	if runs := sm.checker.runsOf(id); runs != 1 {
		sm.t.Errorf("task %s ran %d times", id, runs)
	}
}

// clockOffsets are the clock errors used by the tests of I14, ordered for [eachNth].
var clockOffsets = []time.Duration{
	240 * time.Hour, -20 * year, 10 * time.Second, -240 * time.Hour, time.Hour, -10 * time.Second, -time.Hour, 3 * time.Minute,
}

// I14: the result of a task reaches its home however wrong the clock of its target was
// when the run ended, and for however long.
func TestResultOfATargetWhoseClockWasWrong(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 5)
	const forGood = year
	for _, off := range clockOffsets {
		for _, lasts := range []time.Duration{4 * time.Second, time.Minute, forGood} {
			run(fmt.Sprint(off, " for ", lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, by := newJumpingMesh(t, 2, 1)
					defer w.close()
					id := w.nodes[0].mustSubmit(sleepTask(10*time.Second, "n1"))
					time.Sleep(8 * time.Second)
					by.Store(int64(off))
					if time.Sleep(min(lasts, clock.BelieveAfter+time.Minute)); lasts < forGood {
						by.Store(0)
					}
					w.nodes[0].waitState(id, "SUCCESS", 5*time.Minute)
				})
			})
		}
	}
}

// I14: a result that waits at its target while the clock there is wrong is not dropped, whether
// it was made before that or by the wrong clock, although the target restarts meanwhile: it
// reaches its home once the clock is right.
func TestResultOfATargetThatRestarts(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 5)
	for _, off := range []time.Duration{10 * time.Second, -10 * time.Second, time.Hour, -time.Hour, 240 * time.Hour, -240 * time.Hour, 20 * year, -20 * year} {
		for _, lasts := range []time.Duration{5 * time.Second, clock.BelieveAfter + time.Minute} {
			for _, before := range []bool{false, true} {
				run(fmt.Sprintf("%s for %s, made before %v", off, lasts, before), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w, by := newJumpingMesh(t, 2, 1)
						defer w.close()
						home, target := w.nodes[0], w.nodes[1]
						id := home.mustSubmit(sleepTask(10*time.Second, "n1"))
						time.Sleep(8 * time.Second)
						w.Unplug(1)
						if !before {
							by.Store(int64(off))
						}
						time.Sleep(4 * time.Second)
						target.halt()
						by.Store(int64(off))
						target.start()
						time.Sleep(lasts)
						if n := target.node.outbox.Results(); n != 1 {
							t.Errorf("%d results are pending", n)
						}
						by.Store(0)
						w.Plug(1)
						home.waitState(id, "SUCCESS", 5*time.Minute)
						if runs := w.checker.runsOf(id); runs != 1 {
							t.Errorf("it ran %d times", runs)
						}
					})
				})
			}
		}
	}
}

// I14: a task that its target accepted before the power failed, in the first minute of its life,
// runs there once, although the clock is wrong from the start on, and its result reaches its
// home once the clock is right. It waits a minute for the clock of its home. By a clock that is
// 40 days ahead its time is over: then it waits for longer, also if that clock is believed meanwhile.
func TestAcceptedTaskStartsUnderAWrongClock(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 3)
	for _, off := range []time.Duration{40 * 24 * time.Hour, -time.Hour, -40 * 24 * time.Hour, -20 * year} {
		for _, lasts := range []time.Duration{30 * time.Second, clock.BelieveAfter + time.Minute} {
			waits := off > proto.MaxTTL || lasts < time.Minute
			run(fmt.Sprintf("%s for %s", off, lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, by := newJumpingMesh(t, 2, 1)
					defer w.close()
					home, target := w.nodes[0], w.nodes[1]
					var ids []string
					for range simSlots + 1 {
						ids = append(ids, home.mustSubmit(sleepTask(10*time.Second, "n1")))
					}
					last := ids[simSlots]
					time.Sleep(5 * time.Second)
					home.waitState(last, "ACCEPTED", time.Second)
					target.crash()
					w.Unplug(1)
					if runs := w.checker.runsOf(last); runs != 0 {
						t.Errorf("it ran %d times before the crash", runs)
					}
					by.Store(int64(off))
					target.start()
					time.Sleep(lasts)
					want := len(ids)
					if waits {
						want = 0
					}
					if n := target.node.outbox.Results(); n != want {
						t.Errorf("%d results are pending, want %d", n, want)
					}
					why, err := target.node.Explainer.Why(t.Context(), last)
					if err != nil || waits != (why.Cause.Code == wire.NoteHomeClock) {
						t.Errorf("why %s at its target: %+v, %v", last, why, err)
					}
					by.Store(0)
					w.Plug(1)
					for _, id := range ids {
						home.waitState(id, "SUCCESS", 5*time.Minute)
					}
					if runs := w.checker.runsOf(last); runs != 1 {
						t.Errorf("it ran %d times", runs)
					}
				})
			})
		}
	}
}

// I14: a home whose clock is wrong for some seconds does not end, forget or delay
// anything: neither ended and running tasks nor those submitted and sent in the
// meantime.
func TestBrieflyWrongClockOfAHome(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 3)
	for _, off := range clockOffsets {
		for _, lasts := range []time.Duration{4 * time.Second, time.Minute} {
			run(fmt.Sprint(off, " for ", lasts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, by := newJumpingMesh(t, 2, 0)
					defer w.close()
					home, other := w.nodes[0], w.nodes[1]
					home.addSharedQueue()
					ended := home.mustSubmit(sleepTask(time.Second, "n1"))
					home.waitState(ended, "SUCCESS", time.Minute)
					runs := home.mustSubmit(sleepTask(20*time.Second, "n1"))
					time.Sleep(5 * time.Second)
					by.Store(int64(off))
					time.Sleep(lasts / 2)
					var made []string
					for _, to := range []string{"n1", "n1", "n0"} {
						r := sleepTask(time.Second, to)
						r.Order = "lane"
						made = append(made, home.mustSubmit(r))
					}
					shared := home.mustSubmit(sleepTask(time.Second, "queue:shared"))
					came := other.mustSubmit(sleepTask(time.Second, "n0"))
					if off.Abs() > clock.DoubtBeyond && !noted(home.node.Views.Status(t.Context()).Warnings, wire.NoteClockDoubted) {
						t.Error("the status does not report it")
					}
					time.Sleep(lasts / 2)
					by.Store(0)
					after := sleepTask(time.Second, "n1")
					after.Order = "lane"
					for _, id := range append(made, ended, runs, shared, home.mustSubmit(after)) {
						home.waitState(id, "SUCCESS", 2*time.Minute)
					}
					w.checkOneRun(shared)
					other.waitState(came, "SUCCESS", time.Minute)
				})
			})
		}
	}
}

// I14: a clock that is permanently wrong, and that a connected node contradicts, does
// not end, forget or delay anything either, even after the time in which an
// uncontradicted clock becomes trusted.
func TestClockThatStaysWrong(t *testing.T) {
	t.Parallel()
	run := eachNth(t, 3)
	for _, off := range clockOffsets {
		run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, by := newJumpingMesh(t, 2, 0)
				defer w.close()
				home, other := w.nodes[0], w.nodes[1]
				home.addSharedQueue()
				ended := home.mustSubmit(sleepTask(time.Second, "n1"))
				home.waitState(ended, "SUCCESS", time.Minute)
				runs, waits := home.mustSubmit(sleepTask(20*time.Second, "n1")), sleepTask(time.Second, "n1")
				waits.Delay = wire.Duration(clock.BelieveAfter + 3*time.Minute)
				delayed := home.mustSubmit(waits)
				time.Sleep(5 * time.Second)
				by.Store(int64(off))
				for _, later := range []time.Duration{2 * time.Second, clock.BelieveAfter + time.Minute} {
					time.Sleep(later)
					shared := home.mustSubmit(sleepTask(time.Second, "queue:shared"))
					for _, id := range []string{ended, runs, home.mustSubmit(sleepTask(time.Second, "n1")), home.mustSubmit(sleepTask(time.Second, "n0")), shared} {
						home.waitState(id, "SUCCESS", time.Minute)
					}
					w.checkOneRun(shared)
					other.waitState(other.mustSubmit(sleepTask(time.Second, "n0")), "SUCCESS", time.Minute)
				}
				home.waitState(delayed, "SUCCESS", 5*time.Minute)
			})
		})
	}
}

// I14: a machine that was off for longer than the lifetime of a task ends the task, but
// not before its clock is trusted: a minute after the start it is unknown whether it was
// off for long or its clock is wrong.
func TestAfterALongStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newJumpingMesh(t, 2, 0)
		defer w.close()
		home := w.nodes[0]
		w.nodes[1].halt()
		id := home.mustSubmit(sleepTask(time.Second, "n1"))
		home.halt()
		time.Sleep(8 * 24 * time.Hour)
		home.start()
		time.Sleep(time.Minute)
		home.waitState(id, "PENDING", time.Second)
		if why, err := home.node.Explainer.Why(t.Context(), id); err != nil || why.Steps[0].Clock == nil || !why.Steps[0].Clock.Stopped {
			t.Errorf("why: %+v, %v", why, err)
		}
		home.waitState(id, "EXPIRED", clock.BelieveAfter)
	})
}

// I14: tasks that a home creates while its clock is wrong, trusted or doubted, are
// delivered once its clock is correct, run once and have their full lifetime; their
// results reach the home.
func TestTasksMadeUnderAWrongClock(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{time.Hour, 240 * time.Hour, -20 * 365 * 24 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, by := newJumpingMesh(t, 2, 0)
				defer w.close()
				home, target := w.nodes[0], w.nodes[1]
				target.halt()
				before := home.mustSubmit(sleepTask(time.Second, "n1"))
				by.Store(int64(off))
				time.Sleep(clock.BelieveAfter + time.Minute)
				believed := off > -day // an earlier one cannot be right
				if home.node.guard.State().Doubted == believed {
					t.Fatal("the clock is doubted although no peer contradicts it, or believed although it cannot be right")
				}
				made, delayed := map[string]time.Time{before: time.Now().Add(-clock.BelieveAfter - time.Minute)}, ""
				make1 := func(delay time.Duration, to string) {
					r := sleepTask(time.Second, to)
					r.Delay = wire.Duration(delay)
					id := home.mustSubmit(r)
					if made[id] = time.Now(); delay > 0 {
						delayed = id
					}
				}
				make1(0, "n1")
				make1(0, "n0")
				by.Store(0)
				time.Sleep(2 * time.Second)
				if home.node.guard.State().Doubted != believed {
					t.Fatal("the clock is not doubted although it jumped, or is although it is right")
				}
				make1(0, "n1")
				make1(10*time.Minute, "n1")
				make1(0, "n0")
				target.start()
				for id, at := range made {
					task := home.waitState(id, "SUCCESS", 20*time.Minute)
					if off := task.Created.Sub(at).Abs(); id == delayed && off > 2*time.Second {
						t.Errorf("the creation time of the task for %s is %s off", task.Target, off)
					}
					if runs := w.checker.runsOf(id); runs != 1 {
						t.Errorf("it ran %d times", runs)
					}
				}
			})
		})
	}
}

// I3: a result that arrives after its home has marked the task EXPIRED by its own clock
// ends the task with the outcome of the result.
func TestResultAfterTheHomeGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := newJumpingMesh(t, 2, 0)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		r := sleepTask(10*time.Second, "n1")
		r.TTL = wire.Duration(time.Minute)
		id := home.mustSubmit(r)
		time.Sleep(5 * time.Second)
		w.Unplug(1)
		time.Sleep(10 * time.Second)
		if n := target.node.outbox.Results(); n != 1 {
			t.Errorf("%d results are pending", n)
		}
		target.halt()
		home.halt()
		time.Sleep(26 * time.Hour)
		home.start()
		home.waitState(id, "EXPIRED", clock.BelieveAfter+time.Minute)
		w.Plug(1)
		target.start()
		home.waitState(id, "SUCCESS", time.Hour)
	})
}

// I14: tasks for the home itself that wait for a slot when its clock is finally
// corrected do not expire because of that.
func TestOwnTasksSurviveAWrongClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var by atomic.Int64
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			if s.place == 0 {
				cfg.Limits.Slots = 1
				cfg.Clock = clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(by.Load()) })
			}
		})
		defer w.close()
		home := w.nodes[0]
		w.nodes[1].halt()
		home.halt()
		time.Sleep(20 * 24 * time.Hour)
		by.Store(int64(-10 * 24 * time.Hour))
		home.start()
		time.Sleep(clock.BelieveAfter + time.Minute)
		var ids []string
		for range 2 {
			ids = append(ids, home.mustSubmit(sleepTask(3*time.Minute, "n0")))
		}
		time.Sleep(time.Minute)
		home.waitState(ids[1], "ACCEPTED", time.Second)
		by.Store(0)
		w.nodes[1].start() // whose clock agrees
		for _, id := range ids {
			home.waitState(id, "SUCCESS", time.Hour)
		}
	})
}
