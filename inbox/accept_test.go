package inbox

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/mem"
)

// TestAckLostForTenMinutes checks S04: the same tasks arrive again and again because no
// answer gets through. Each runs once.
func TestAckLostForTenMinutes(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		var as []Arrival
		for range 20 {
			as = append(as, f.task())
		}
		f.run()
		for range 60 {
			f.accept(0, as...)
			wait(10 * time.Second)
		}
		f.restart()
		f.run()
		f.accept(0, as...)
		wait(time.Minute)
		for _, a := range as {
			f.expect(a, succeeded)
			if n := s.starts(a.Header.ID); n != 1 {
				t.Errorf("%d starts, want 1 (I6)", n)
			}
		}
	})
}

// TestCopiesInOneGroup checks I12 for a task that is twice in one group, and that each task is
// on disk when its copies have their verdicts (I8).
func TestCopiesInOneGroup(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b := f.task(), f.task()
		f.accept(0, a, b, a, a, b)
		if n := f.in.Status().Backlog.Live; n != 2 {
			t.Errorf("%d tasks in custody, want 2", n)
		}
		f.crash()
		if n := f.in.Status().Backlog.Live; n != 2 {
			t.Errorf("%d tasks on disk, want 2", n)
		}
	})
}

// TestCopiesAtTheSameTime checks I12 when streams race with copies of the same tasks, as
// after a reconnect.
func TestCopiesAtTheSameTime(t *testing.T) {
	_, spec := scripted(succeed)
	f := newFixture(t, Config{Clock: clock.System()}, spec)
	defer f.close()
	var as []Arrival
	for range 200 {
		as = append(as, f.task())
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for from := 0; from < len(as); from += 20 {
				for i, v := range f.in.Accept(context.Background(), as[from:from+20]) {
					if !v.Accepted() {
						t.Errorf("arrival %d: %s", from+i, v.Code.Name())
					}
				}
			}
		})
	}
	wg.Wait()
	if n := f.in.Status().Backlog.Live; n != len(as) {
		t.Errorf("%d tasks in custody, want %d", n, len(as))
	}
	if n := f.store.Counters().Ops; n < int64(len(as)) || n > int64(len(as))+1 { // one more is the schema
		t.Errorf("%d operations for %d tasks", n, len(as))
	}
}

// TestWriteBudget limits the hot path to one operation for each task, no read, and one
// commit for each group.
func TestWriteBudget(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		var as []Arrival
		for range 256 {
			as = append(as, f.task())
		}
		before := f.store.Counters()
		f.accept(0, as...)
		after := f.store.Counters()
		if ops, groups, reads := after.Ops-before.Ops, after.Groups-before.Groups, after.Reads-before.Reads; ops != 256 || groups != 1 || reads != 0 {
			t.Errorf("accepting 256 tasks: %d operations, %d commits, %d reads in commits", ops, groups, reads)
		}
		before = after
		f.run()
		wait(time.Minute)
		if f.results.count() != 256 {
			t.Fatalf("%d results", f.results.count())
		}
		// end: initial record deleted, state with start and end, and the outbox's RESULT; once: the boots
		after = f.store.Counters()
		if ops := after.Ops - before.Ops; ops != 3*256+1 {
			t.Errorf("running 256 tasks: %d operations", ops)
		}
		before = after
		f.in.Settle(home, as[255].Header.Seq)
		wait(time.Second)
		if ops := f.store.Counters().Ops - before.Ops; ops != 257 {
			t.Errorf("settling 256 tasks: %d operations", ops)
		}
	})
}

// TestRefusalsWriteNothing checks that refusing a stranger costs no write (S54, S30).
func TestRefusalsWriteNothing(t *testing.T) {
	_, spec := scripted(succeed)
	spec.Allow = []string{"peer:home"}
	spec.MaxBody = 10
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.accept(0, f.task())
		before := f.store.Counters().Ops
		f.accept(proto.CodeNoHandler, f.task(withKind("else")))
		f.accept(proto.CodeDenied, f.task(func(a *Arrival) { a.Header.Origin = other }))
		f.accept(proto.CodeDenied, f.task(func(a *Arrival) { a.Header.Origin = proto.PeerID{77} }))
		f.accept(proto.CodeTooLarge, f.task(withBody("eleven bytes")))
		f.accept(proto.CodeNeedBody, f.task(withStream(9)))
		late := f.task(withTTL(time.Second))
		wait(2 * time.Second)
		f.accept(proto.CodeExpired, late)
		f.in.slots.halt()
		f.accept(proto.CodeDraining, f.task())
		if n := f.store.Counters().Ops - before; n != 0 {
			t.Errorf("%d operations", n)
		}
	})
}

// TestOneBadAmongGood checks that a refusal affects only its own arrival.
func TestOneBadAmongGood(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		vs := f.in.Accept(t.Context(), []Arrival{f.task(), f.task(withKind("else")), f.task()})
		for i, want := range []proto.Code{0, proto.CodeNoHandler, 0} {
			if vs[i].Code != want {
				t.Errorf("arrival %d: %s, want %s", i, vs[i].Code.Name(), want.Name())
			}
		}
	})
}

// TestSettled checks I12: once settled a copy is refused, before that it is accepted again,
// even after restarts, and a watermark never decreases.
func TestSettled(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b, c := f.task(), f.task(), f.task()
		f.accept(0, a, b)
		f.run()
		wait(time.Second)
		f.in.Settle(home, a.Header.Seq)
		f.in.Settle(home, proto.Seq{Boot: 0, Counter: 99})                                                // an old mark, delayed
		if v := f.in.Accept(t.Context(), []Arrival{a})[0]; v.Code != 0 && v.Code != proto.CodeDuplicate { // depends on whether the watermark is on disk yet
			t.Errorf("a copy that arrives with the mark: %s", v.Code.Name())
		}
		wait(time.Second)
		for range 2 {
			f.accept(proto.CodeDuplicate, a)
			if v := f.accept(0, b)[0]; v.State != succeeded {
				t.Errorf("copy of a finished task: state %s", v.State.Name())
			}
			if n := f.in.dedup.size(); n != 1 {
				t.Errorf("%d ids kept, want 1", n)
			}
			f.restart()
			f.run()
		}
		f.in.Settle(other, proto.Seq{Boot: 9}) // the mark of another origin does not apply to this one
		f.accept(0, c)
		f.in.Settle(home, c.Header.Seq) // settled while it waits: it still runs
		wait(time.Second)
		wait(time.Minute)
		f.expect(c, succeeded)
		if n := f.in.dedup.size(); n != 0 {
			t.Errorf("%d ids kept, want none", n)
		}
		for _, x := range []Arrival{a, b, c} {
			f.accept(proto.CodeDuplicate, x)
			if s.starts(x.Header.ID) != 1 {
				t.Errorf("%d starts", s.starts(x.Header.ID))
			}
		}
	})
}

// TestSettledWhileItsEndIsWritten checks that a task that is settled between its last
// look at the mark and its end on disk is forgotten too, without a further mark.
func TestSettledWhileItsEndIsWritten(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.results.during = func() {
			f.in.Settle(home, a.Header.Seq)
			time.Sleep(time.Second) // the mark is written meanwhile
		}
		f.accept(0, a)
		f.run()
		wait(time.Minute)
		if n := f.in.dedup.size(); n != 0 {
			t.Errorf("%d ids kept, want none", n)
		}
		f.accept(proto.CodeDuplicate, a)
	})
}

// TestReplayAfterDays checks S05 and I12 for an origin that never settles: an id is kept
// however old it is, until its origin is no longer a member. Then the mark covers it, under
// any clock, also if the origin becomes a member again.
func TestReplayAfterDays(t *testing.T) {
	for _, after := range []time.Duration{25 * time.Hour, 8 * 24 * time.Hour} {
		t.Run(after.String(), func(t *testing.T) {
			s, spec := scripted(succeed)
			wall := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			begin := wall.Clock().Now()
			inBubble(t, Config{Clock: wall.Clock()}, []Spec{spec}, func(f *fixture) {
				short, long := f.task(), f.task(withTTL(30*24*time.Hour))
				f.accept(0, short, long)
				f.run()
				wait(time.Second)
				wall.Advance(after)
				wait(ageEvery + time.Second)
				f.accept(0, short, long) // still remembered
				members := f.parts.Members.(members)
				was := members[home]
				f.stop()
				delete(members, home)
				f.crash()
				f.run()
				wait(ageEvery + time.Second)
				if n := f.in.dedup.size(); n != 1 {
					t.Errorf("%d ids kept, want 1", n)
				}
				wall.SetWall(begin)
				f.stop()
				members[home] = was
				f.crash()
				f.run()
				f.accept(proto.CodeDuplicate, short)
				f.accept(0, long)
				wait(time.Minute)
				if s.starts(short.Header.ID) != 1 || s.starts(long.Header.ID) != 1 {
					t.Error("ran again")
				}
			})
		})
	}
}

// I12, I14: while the clock is doubted the id of a task of a former member and the cancel of
// a task that has not arrived are kept, however old they seem.
func TestDoubtedClockForgetsNothing(t *testing.T) {
	_, spec := scripted(succeed)
	wall := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	inBubble(t, Config{Clock: wall.Clock()}, []Spec{spec}, func(f *fixture) {
		ended, awaited := f.task(), f.task()
		f.accept(0, ended)
		f.mustCancel(awaited, false, 0)
		f.run()
		wait(time.Second)
		f.expect(ended, succeeded)
		f.stop()
		delete(f.parts.Members.(members), home)
		begin := wall.Clock().Now()
		wall.Advance(50 * 365 * 24 * time.Hour)
		guard := clock.NewGuard(wall.Clock())
		guard.Bound(begin, begin, begin.AddDate(1, 0, 0))
		f.cfg.Clock = guard.Clock()
		f.crash()
		f.run()
		wait(2 * ageEvery)
		if n := f.in.dedup.size(); n != 2 || !f.cfg.Clock.Doubted() {
			t.Errorf("%d of 2 ids are kept, doubted %v", n, f.cfg.Clock.Doubted())
		}
		wall.Advance(clock.BelieveAnyway)
		wait(ageEvery)
		if n := f.in.dedup.size(); n != 0 || f.cfg.Clock.Doubted() {
			t.Errorf("%d ids are kept, doubted %v", n, f.cfg.Clock.Doubted())
		}
	})
}

// I12, I14: the stamps of an origin whose clock was far ahead refuse none of its tasks once
// that clock is right, and none of another origin.
func TestWrongStampsRefuseNoLaterTask(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.run()
		wrong := f.task(withTTL(time.Minute))
		wrong.Ahead = 240 * time.Hour
		wrong.Header.Created += wrong.Ahead.Milliseconds()
		wrong.Header.NotAfter += wrong.Ahead.Milliseconds()
		f.accept(0, wrong)
		wait(time.Second)
		f.expect(wrong, succeeded)
		wait(2 * ageEvery)
		f.accept(0, f.task(), f.task(func(a *Arrival) { a.Header.Origin = other }))
	})
}

// I3, I14: the time of a task counts on the boot clock of the node that accepted it: a wall
// clock that is set forward afterwards does not end it, and one that is set back does not
// start it too late.
func TestTimeLeftCountsOnTheBootClock(t *testing.T) {
	_, spec := scripted(succeed)
	for name, tt := range map[string]struct {
		passes time.Duration
		days   int
		want   proto.TaskState
	}{
		"set forward before its end": {30 * time.Minute, 10, succeeded},
		"set forward after its end":  {2 * time.Hour, 10, expired},
		"set back before its end":    {30 * time.Minute, -10, succeeded},
		"set back after its end":     {2 * time.Hour, -10, expired},
	} {
		t.Run(name, func(t *testing.T) {
			wall := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			inBubble(t, Config{Clock: wall.Clock()}, []Spec{spec}, func(f *fixture) {
				a := f.task()
				f.accept(0, a)
				wall.Advance(tt.passes)
				wall.SetWall(wall.Clock().Now().AddDate(0, 0, tt.days))
				f.run()
				wait(time.Minute)
				f.expect(a, tt.want)
			})
		})
	}
}

// I3, I14: after the machine was off only wall clocks tell whether the time of a task is over, and
// that of its home decides: until it has told its clock the task waits, a minute if it is in
// time by the clock of this node.
func TestTimeOfATaskEndsByTheClockOfItsHome(t *testing.T) {
	type told struct {
		ahead time.Duration
		ok    bool
	}
	const dated = 3 * time.Hour // ahead of this node was its home when it sent the task
	silent := func() Members { return members{} }
	for name, tt := range map[string]struct {
		home    told
		here    time.Duration  // how far this node's clock is wrong after the stop
		members func() Members // if not those of the fixture
		lapsed  bool           // by this node's clock the membership of its home is over
		want    proto.TaskState
		later   time.Duration // the clock is not told, and the task ends as at last all the same
		last    proto.TaskState
	}{
		"the clocks agree":             {home: told{0, true}, want: expired},
		"its home is ahead":            {home: told{10 * time.Minute, true}, want: expired},
		"its home is behind":           {home: told{-240 * time.Hour, true}, want: succeeded},
		"this node is behind":          {home: told{240 * time.Hour, true}, here: -240 * time.Hour, want: expired},
		"its home has not told":        {want: accepted, last: expired},
		"it will tell that it is late": {home: told{240 * time.Hour, false}, here: -240 * time.Hour, want: accepted, last: expired},
		"its home never tells":         {want: accepted, later: homeWait - time.Minute, last: expired},
		"nobody tells that it is late": {here: -240 * time.Hour, want: accepted, later: time.Second, last: succeeded},
		"its home is no member":        {members: silent, want: expired},
		"a home behind is no member":   {home: told{-240 * time.Hour, true}, members: silent, want: expired},
		"its home seems no member":     {lapsed: true, want: accepted, last: expired},
		"its home has just less to go": {home: told{-61 * time.Minute, true}, want: succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			s, spec := scripted(succeed)
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task(func(a *Arrival) {
					a.Ahead = dated
					a.Header.Created += dated.Milliseconds()
					a.Header.NotAfter += dated.Milliseconds()
				})
				f.accept(0, a)
				var heard atomic.Bool
				heard.Store(tt.home.ok)
				f.cfg.BootID = proto.BootID{1} // another start of the machine
				f.cfg.Clock = clock.WithOffset(f.cfg.Clock, func() time.Duration { return tt.here })
				f.parts.Ahead = func(proto.PeerID) (time.Duration, bool) { return tt.home.ahead + dated, heard.Load() }
				if tt.members != nil {
					f.parts.Members = tt.members()
				}
				if tt.lapsed {
					f.parts.Gone = func(proto.PeerID) bool { return true }
					f.parts.Revoked = func(proto.PeerID) bool { return false }
				}
				time.Sleep(2 * time.Hour)
				f.crash()
				f.run()
				wait(startWait - time.Second)
				if tt.want != accepted {
					f.expect(a, tt.want)
					return
				}
				if f.results.count() != 0 || s.starts(a.Header.ID) != 0 {
					t.Fatalf("%d results, %d starts", f.results.count(), s.starts(a.Header.ID))
				}
				if tt.later > 0 {
					wait(tt.later)
				} else {
					heard.Store(true)
				}
				wait(time.Minute)
				f.expect(a, tt.last)
			})
		})
	}
}

// TestPreview checks that a preview answers as Accept does, writes nothing and takes no
// custody, also of a task that was cancelled before it arrived.
func TestPreview(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		const body = "0123456789"
		signed := func(a *Arrival) { *a = seal(t, *a) }
		task, gone, unknown := f.task(withBody(body), signed, withStream(10)), f.task(withStream(10)), f.task(withKind("else"))
		f.mustCancel(gone, false, 0)
		preview := func(a Arrival, want proto.Code) {
			t.Helper()
			before := f.store.Counters().Ops
			if v := f.in.Preview(&a); v.Code != want {
				t.Errorf("preview: %s %q, want %s", v.Code.Name(), v.Detail, want.Name())
			}
			if f.store.Counters().Ops != before {
				t.Error("a preview has written")
			}
		}
		preview(unknown, proto.CodeNoHandler)
		for _, a := range []Arrival{task, gone} {
			preview(a, proto.CodeNeedBody)
			f.accept(proto.CodeNeedBody, a)
			f.bodies.add(a.Header.ObjectFile(), []byte(body))
			preview(a, 0)
			if f.in.Holds(a.Header.ID) {
				t.Fatal("a preview has taken custody")
			}
			f.accept(0, a)
			preview(a, 0)
		}
		f.run()
		wait(time.Second)
		f.expect(task, succeeded)
		f.expect(gone, cancelled)
	})
}

// TestIdsFull checks I12: when no more ids can be kept the answer is BUSY, and nothing is
// forgotten; settling makes room.
func TestIdsFull(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{MaxKept: 3}, []Spec{spec}, func(f *fixture) {
		a, b, c, d := f.task(), f.task(), f.task(), f.task()
		f.accept(0, a, b, c)
		f.run()
		wait(time.Second)
		f.accept(proto.CodeBusy, d)
		f.accept(0, a)
		f.in.Settle(home, a.Header.Seq)
		wait(time.Second)
		f.accept(0, d)
	})
}

// TestCapacity checks that a full inbox refuses only new work (I13): accepted tasks run and end.
func TestCapacity(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{MaxTasks: 2}, []Spec{spec}, func(f *fixture) {
		vs := f.in.Accept(t.Context(), []Arrival{f.task(), f.task(), f.task()})
		if !vs[0].Accepted() || !vs[1].Accepted() || vs[2].Code != proto.CodeFull {
			t.Errorf("verdicts %+v", vs)
		}
		f.run()
		wait(time.Second)
		if f.results.count() != 2 {
			t.Errorf("%d ended", f.results.count())
		}
		f.accept(0, f.task())
	})
}

// I13: below the reserve of the disk only new work is refused: accepted tasks run and end.
func TestDiskFull(t *testing.T) {
	_, spec := scripted(succeed)
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{}, spec)
		f.store.Close()
		var mu sync.Mutex
		free := int64(1 << 30)
		space := func() (int64, int64, error) { mu.Lock(); defer mu.Unlock(); return free, 1 << 40, nil }
		s, err := store.Open(mem.New(), store.Config{Clock: f.cfg.Clock, Space: space, Reserve: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		f.store, f.results.store = s, s
		if f.in, err = Open(s, f.parts, f.cfg); err != nil {
			t.Fatal(err)
		}
		f.in.Register(spec)
		a, b := f.task(), f.task()
		f.accept(0, a)
		mu.Lock()
		free = 0
		mu.Unlock()
		wait(time.Minute)
		f.accept(proto.CodeFull, b)
		f.accept(0, a) // it is already here
		f.run()
		wait(time.Second)
		f.expect(a, succeeded)
		mu.Lock()
		free = 1 << 30
		mu.Unlock()
		wait(time.Minute)
		f.accept(0, b)
		wait(time.Second)
		f.expect(b, succeeded)
		f.close()
	})
}

// TestConflictingID checks that another task with the id of a known one is not run, and not
// mistaken for it.
func TestConflictingID(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		for name, change := range map[string]func(*Arrival){
			"other body":     withBody("other"),
			"other origin":   func(x *Arrival) { x.Header.Origin, x.Header.Seq = other, a.Header.Seq },
			"other sequence": func(x *Arrival) {},
		} {
			x := f.task(func(x *Arrival) { x.Header.ID = a.Header.ID }, change)
			if v := f.in.Accept(t.Context(), []Arrival{x})[0]; v.Code != proto.CodeBusy {
				t.Errorf("%s: %s", name, v.Code.Name())
			}
		}
		f.run()
		wait(time.Second)
		f.expect(a, succeeded)
	})
}

// TestGrantWithdrawn checks I17, and I2: the allow list is applied at the start, to those who are
// members then, and the origin is told DENIED as for a task that is refused when it arrives.
func TestGrantWithdrawn(t *testing.T) {
	for name, withdraw := range map[string]func(*fixture, Spec) error{
		"the list names another one": func(f *fixture, spec Spec) error {
			spec.Allow = []string{"peer:other"}
			return f.in.Register(spec)
		},
		"its origin is revoked": func(f *fixture, _ Spec) error {
			delete(f.parts.Members.(members), home)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, spec := scripted(succeed)
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task()
				f.accept(0, a)
				if err := withdraw(f, spec); err != nil {
					t.Fatal(err)
				}
				f.run()
				wait(time.Second)
				if o := f.expect(a, deadLetter); o.Cause != proto.TaskNotAllowed || o.Code != proto.CodeDenied || s.starts(a.Header.ID) != 0 {
					t.Errorf("because of %v, code %s, %d starts", o.Cause, o.Code.Name(), s.starts(a.Header.ID))
				}
			})
		})
	}
}

// TestTasksWaitForAHandler checks S30: a node whose handler is gone leaves the task alone
// until the handler is back or the task's time has passed.
func TestTasksWaitForAHandler(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b := f.task(), f.task(withTTL(2*time.Hour))
		f.accept(0, a, b)
		f.in.Unregister("work")
		f.run()
		wait(time.Hour - time.Second)
		if f.results.count() != 0 || f.record(a).State != accepted {
			t.Fatalf("%d ended, state %s", f.results.count(), f.record(a).State.Name())
		}
		wait(2 * time.Second)
		f.expect(a, expired)
		if err := f.in.Register(spec); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		f.expect(b, succeeded)
		if s.starts(a.Header.ID) != 0 {
			t.Error("an expired task was started")
		}
	})
}

// TestManyExpireAtOnce checks that all expired tasks end, in bounded steps.
func TestManyExpireAtOnce(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		var as []Arrival
		for i := range 3000 {
			as = append(as, f.task(withKey(fmt.Sprint("key ", i%7))))
		}
		f.accept(0, as...)
		wait(2 * time.Hour)
		var mu sync.Mutex
		now, most := 0, 0
		step := func(by int) {
			mu.Lock()
			defer mu.Unlock()
			now += by
			most = max(most, now)
		}
		slowly := func() error { step(1); time.Sleep(time.Millisecond); step(-1); return nil }
		f.in.parts.Results = refusingResults{f.results, slowly, ""}
		f.run()
		wait(time.Minute)
		for _, a := range as {
			f.expect(a, expired)
		}
		if most > f.in.slots.maxUnwritten {
			t.Errorf("%d end at once, want at most %d", most, f.in.slots.maxUnwritten)
		}
	})
}

// TestExpiresWhileItIsAccepted lets a task expire after it is on disk and before that is known:
// once it has ended it is not live.
func TestExpiresWhileItIsAccepted(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task(func(a *Arrival) { a.Header.NotAfter = a.Header.Created + 1 })
		cg := &commitGroup{done: make(chan struct{})}
		f.in.dedup.mu.Lock()
		f.in.dedup.startCommit(&a, cg)
		f.in.dedup.mu.Unlock()
		added := backlog.NewEntry{Key: backlog.TaskKey(a.Header.ID), Stored: &a.initial("", &f.in.cfg).stored}
		if err := f.in.queue.Add(t.Context(), []backlog.NewEntry{added})[0]; err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		f.run()
		wait(time.Minute)
		f.in.dedup.finishCommit(cg, []Arrival{a}, []int{0}, []error{nil})
		wait(time.Minute)
		f.expect(a, expired)
		if f.in.Holds(a.Header.ID) {
			t.Error("it counts as live")
		}
	})
}
