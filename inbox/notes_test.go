package inbox

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// TestPoisonAtOnce checks S16 and I6 for a repeatable handler that kills the process before its
// start is written: after the first death its starts are durable, so the others count. The
// tasks next to it keep their attempts.
func TestPoisonAtOnce(t *testing.T) {
	s, spec := scripted(nil)
	var p poison
	s.f = p.run
	inBubble(t, Config{Slots: 4, MaxAbandons: 5}, []Spec{spec}, func(f *fixture) {
		bad := f.task()
		p.id, p.deadly = bad.Header.ID, make(chan struct{}, 1)
		as := []Arrival{f.task(), f.task(), f.task()}
		f.accept(0, append([]Arrival{bad}, as...)...)
		deaths := 0
		for ; len(f.results.of(p.id)) == 0 && deaths < 50; deaths++ {
			f.run()
			select {
			case <-p.deadly: // no time has passed since the start
			case <-time.After(3 * time.Minute):
			}
			f.crash()
		}
		o := f.expect(bad, deadLetter)
		if o.Cause != proto.TaskCrashedOften || s.starts(p.id) != 5+1 {
			t.Errorf("%d starts, because of %v", s.starts(p.id), o.Cause)
		}
		f.run()
		wait(2 * time.Minute)
		for _, a := range as {
			if o := f.expect(a, succeeded); len(o.Attempts) > 3 {
				t.Errorf("another task was started %d times", len(o.Attempts))
			}
		}
	})
}

// TestPowerCutStartsEachTaskOnceMore checks I7 for tasks whose starts were not on disk, or
// were, at a power cut: each is started at most once more for each cut, says so, and ends.
func TestPowerCutStartsEachTaskOnceMore(t *testing.T) {
	for _, age := range []time.Duration{0, time.Second} {
		s, spec := scripted(blocks)
		inBubble(t, Config{Slots: 8}, []Spec{spec}, func(f *fixture) {
			var as []Arrival
			for range 20 {
				as = append(as, f.task())
			}
			f.accept(0, as...)
			const cuts = 3
			for cut := 1; cut <= cuts; cut++ {
				f.run()
				synctest.Wait()
				wait(age)
				f.crash()
				for _, a := range as {
					if n := s.starts(a.Header.ID); n > cut {
						t.Errorf("%d starts after %d cuts", n, cut)
					}
				}
			}
			s.f = succeed
			f.run()
			wait(5 * time.Minute)
			for _, a := range as {
				o := f.expect(a, succeeded)
				if n := s.starts(a.Header.ID); n > cuts+1 || n > 1 && !abandoned(o) && !restarted(o) {
					t.Errorf("%d starts after %d cuts, events %v", n, cuts, o.Events)
				}
			}
		})
	}
}

func restarted(o *proto.Outcome) bool {
	for _, e := range o.Events {
		if e.Cause == proto.TaskRestarted {
			return true
		}
	}
	return false
}

// A task that may have run before a power cut does not end as if it had not.
func TestEndAfterALostStartSaysSo(t *testing.T) {
	_, spec := scripted(blocks)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		synctest.Wait()
		f.crash()
		if v := f.in.Cancel(t.Context(), home, a.Header.ID, false); !v.Accepted() {
			t.Fatal(v)
		}
		if o := f.expect(a, cancelled); o.Cause != proto.TaskCancelledUnstarted || !o.MayHaveRun {
			t.Errorf("because of %v, may have run %v", o.Cause, o.MayHaveRun)
		}
	})
}

// TestStopInOrderLeavesNoDoubt checks that a task which waited at a stop in order is started
// like any other: only its end is written.
func TestStopInOrderLeavesNoDoubt(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.in.Suspend(spec.Kind, "program gone")
		f.run()
		wait(time.Second)
		f.restart()
		if len(f.in.boots) != 2 {
			t.Error("the stop was not in order")
		}
		before := f.store.Counters().Ops
		f.run()
		wait(time.Second)
		if o := f.expect(a, succeeded); restarted(o) {
			t.Errorf("events %v", o.Events)
		}
		if ops := f.store.Counters().Ops - before; ops != 1+3 {
			t.Errorf("%d operations", ops)
		}
		f.crash()
		if len(f.in.boots) != 1 {
			t.Error("a power cut counts as a stop in order")
		}
	})
}

// A slowEngine takes a while to commit.
type slowEngine struct {
	*mem.Engine
	delay *atomic.Int64
}

func (e slowEngine) Commit(ops []store.Op) error {
	time.Sleep(time.Duration(e.delay.Load()))
	return e.Engine.Commit(ops)
}

// openSlow replaces the inbox of the fixture by one whose commits last as long as delay says, on a
// disk with so many free bytes.
func (f *fixture) openSlow(spec Spec) (delay, free *atomic.Int64) {
	f.t.Helper()
	f.store.Close()
	delay, free = new(atomic.Int64), new(atomic.Int64)
	free.Store(1 << 30)
	space := func() (int64, int64, error) { return free.Load(), 1 << 40, nil }
	s, err := store.Open(slowEngine{mem.New(), delay}, store.Config{Clock: f.cfg.Clock, Space: space, Reserve: 1 << 20})
	if err != nil {
		f.t.Fatal(err)
	}
	f.store, f.results.store = s, s
	if f.in, err = Open(s, f.parts, f.cfg); err != nil {
		f.t.Fatal(err)
	}
	if err := f.in.Register(spec); err != nil {
		f.t.Fatal(err)
	}
	return delay, free
}

// A start is reported to the origin of its task only once it is on disk, however long the handler
// of a repeatable task has been running before that.
func TestStartIsReportedOnceItIsWritten(t *testing.T) {
	var reports atomic.Int64
	var delay *atomic.Int64
	s, spec := scripted(func(ctx context.Context, r *handler.Run) *handler.Result {
		delay.Store(int64(10 * time.Second)) // of the record of this start
		return blocks(ctx, r)
	})
	cfg := Config{OnStarted: func(Started) { reports.Add(1) }}
	inBubble(t, cfg, []Spec{spec}, func(f *fixture) {
		delay, _ = f.openSlow(spec)
		f.run()
		synctest.Wait()
		a := f.task()
		f.accept(0, a)
		wait(9 * time.Second)
		if n := reports.Load(); s.starts(a.Header.ID) != 1 || n != 0 {
			t.Errorf("%d starts and %d reports before the start is written", s.starts(a.Header.ID), n)
		}
		wait(2 * time.Second)
		if n := reports.Load(); n != 1 {
			t.Errorf("%d reports when the start is written", n)
		}
	})
}

// stalledGrants takes a while to store the end of a granted task.
type stalledGrants struct {
	*grants
	delay time.Duration
	ends  *atomic.Int64
}

func (g stalledGrants) Ended(context.Context, proto.TaskID, LeaseEnd) {
	time.Sleep(g.delay)
	g.ends.Add(1)
}

// unwrittenCases are nodes whose store stalls, with space, without, and with large outputs.
var unwrittenCases = []struct {
	name   string
	slots  int
	free   int64 // on the disk
	output int
	bound  int64 // of starts without a durable end
}{
	{"stalled", 4, 1 << 30, 0, minUnwritten},
	{"stalled with many slots", 20, 1 << 30, 0, 20 * unwrittenPerSlot},
	{"stalled and full", 4, 0, 0, 4},
	{"stalled with large outputs", 4, 1 << 30, proto.MaxInlineBody, maxEndBytes/proto.MaxInlineBody + 3},
}

// unwritten counts starts, durable ends, and the most starts without one.
type unwritten struct{ starts, ends, most atomic.Int64 }

func (u *unwritten) handler(output int) Spec {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		u.most.Store(max(u.most.Load(), u.starts.Add(1)-u.ends.Load()))
		return &handler.Result{Outcome: handler.Success, Output: make([]byte, output)}
	})
	return spec
}

// check checks the bound, after all tasks, n or more, have ended.
func (u *unwritten) check(t *testing.T, n, bound int64) {
	t.Helper()
	if u.starts.Load() < n || u.starts.Load() != u.ends.Load() {
		t.Errorf("%d starts, %d ends", u.starts.Load(), u.ends.Load())
	}
	if u.most.Load() > bound {
		t.Errorf("%d starts without a durable end, the bound is %d", u.most.Load(), bound)
	}
}

// TestUnwrittenEndsOfLeasesAreBounded checks the same as TestUnwrittenEndsAreBounded for granted
// tasks of shared queues, whose ends are stored with their leases.
func TestUnwrittenEndsOfLeasesAreBounded(t *testing.T) {
	for _, tt := range unwrittenCases {
		t.Run(tt.name, func(t *testing.T) {
			var u unwritten
			spec := u.handler(tt.output)
			inBubble(t, Config{Slots: tt.slots}, []Spec{spec}, func(f *fixture) {
				_, free := f.openSlow(spec)
				free.Store(tt.free)
				wait(time.Minute)
				f.in.Connect(stalledGrants{&grants{onReady: func() {}}, 10 * time.Second, &u.ends})
				f.run()
				for range 500 {
					a := f.task()
					f.in.Lease(Leased{ID: a.Header.ID, Queue: "q", Kind: "work", Origin: home, Home: other, Envelope: a.Envelope})
				}
				wait(time.Hour)
				u.check(t, 500, tt.bound)
			})
		})
	}
}

// TestUnwrittenEndsAreBounded checks that a node whose store stalls, with space, without, and
// with large outputs, starts no more than it may: the starts without a durable end stay within
// the bound.
func TestUnwrittenEndsAreBounded(t *testing.T) {
	for _, tt := range unwrittenCases {
		t.Run(tt.name, func(t *testing.T) {
			var u unwritten
			spec := u.handler(tt.output)
			cfg := Config{Slots: tt.slots, OnChange: func(_ proto.TaskID, r *proto.Record) {
				if r.State.Terminal() {
					u.ends.Add(1)
				}
			}}
			inBubble(t, cfg, []Spec{spec}, func(f *fixture) {
				delay, free := f.openSlow(spec)
				for range 500 {
					f.accept(0, f.task())
				}
				free.Store(tt.free)
				wait(time.Minute)
				f.run()
				synctest.Wait()
				delay.Store(int64(10 * time.Second))
				for range 500 {
					f.in.Accept(t.Context(), []Arrival{f.task()})
				}
				delay.Store(0)
				free.Store(1 << 30)
				wait(time.Hour)
				u.check(t, 500, tt.bound)
			})
		})
	}
}

// TestConcurrencyLastsUntilTheEndIsDurable checks that the limit of a kind and an ordering
// key count a run until its end is on disk, although its slot is free.
func TestConcurrencyLastsUntilTheEndIsDurable(t *testing.T) {
	for name, change := range map[string]func(*Spec, *Arrival){
		"concurrency":     func(s *Spec, _ *Arrival) { s.Concurrency = 1 },
		"ordering key":    func(_ *Spec, a *Arrival) { a.Content.OrderingKey = "k" },
		"idempotency key": func(_ *Spec, a *Arrival) { a.Content.IdempotencyKey = "k" },
	} {
		t.Run(name, func(t *testing.T) {
			s, spec := scripted(succeed)
			change(&spec, &Arrival{Content: &proto.Content{}})
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				with := func(a *Arrival) { change(new(Spec), a) }
				a, b := f.task(with), f.task(with)
				f.results.stuck = "work"
				f.accept(0, a, b)
				f.run()
				wait(3 * time.Second)
				if s.starts(a.Header.ID) != 1 || s.starts(b.Header.ID) != 0 {
					t.Errorf("%d and %d starts before the first end is durable", s.starts(a.Header.ID), s.starts(b.Header.ID))
				}
				if st := f.in.Status(); st.Used != 0 {
					t.Errorf("%d slots in use", st.Used)
				}
				f.results.mu.Lock()
				f.results.stuck = ""
				f.results.mu.Unlock()
				wait(time.Minute)
				f.expect(a, succeeded)
				f.expect(b, succeeded)
			})
		})
	}
}
