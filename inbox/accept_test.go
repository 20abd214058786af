package inbox

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// TestAckLostForTenMinutes holds S04: the same tasks arrive again and again
// because no answer gets through. Each runs once.
func TestAckLostForTenMinutes(t *testing.T) {
	s, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		var as []Arrival
		for range 20 {
			as = append(as, r.task())
		}
		r.run()
		for range 60 {
			r.accept(0, as...)
			wait(10 * time.Second)
		}
		r.restart()
		r.run()
		r.accept(0, as...)
		wait(time.Minute)
		for _, a := range as {
			r.expect(a, succeeded)
			if n := s.starts(a.Header.ID); n != 1 {
				t.Errorf("%d starts, want 1 (I6)", n)
			}
		}
	})
}

// TestCopiesInOneGroup holds I12 where a task stands twice in one group, and
// that a verdict waits for the commit of the first (I8).
func TestCopiesInOneGroup(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a, b := r.task(), r.task()
		r.accept(0, a, b, a, a, b)
		if n := r.in.Status().Backlog.Live; n != 2 {
			t.Errorf("%d tasks in custody, want 2", n)
		}
	})
}

// TestCopiesAtTheSameTime holds I12 where streams race with copies of the same
// tasks, as after a reconnect.
func TestCopiesAtTheSameTime(t *testing.T) {
	_, spec := does(succeed)
	r := newRig(t, Config{Clock: clock.System()}, spec)
	defer r.close()
	var as []Arrival
	for range 200 {
		as = append(as, r.task())
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for from := 0; from < len(as); from += 20 {
				for i, v := range r.in.Accept(context.Background(), as[from:from+20]) {
					if !v.Accepted() {
						t.Errorf("arrival %d: %s", from+i, v.Code.Name())
					}
				}
			}
		})
	}
	wg.Wait()
	if n := r.in.Status().Backlog.Live; n != len(as) {
		t.Errorf("%d tasks in custody, want %d", n, len(as))
	}
	if n := r.store.Counters().Ops; n < int64(len(as)) || n > int64(len(as))+1 { // one more is the schema
		t.Errorf("%d operations for %d tasks", n, len(as))
	}
}

// TestWriteBudget holds the hot path to one operation a task, no read, and one
// commit a group.
func TestWriteBudget(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		var as []Arrival
		for range 256 {
			as = append(as, r.task())
		}
		before := r.store.Counters()
		r.accept(0, as...)
		after := r.store.Counters()
		if ops, groups, reads := after.Ops-before.Ops, after.Groups-before.Groups, after.Reads-before.Reads; ops != 256 || groups != 1 || reads != 0 {
			t.Errorf("accepting 256 tasks: %d operations, %d commits, %d reads in commits", ops, groups, reads)
		}
		before = after
		r.run()
		wait(time.Minute)
		if r.results.count() != 256 {
			t.Fatalf("%d results", r.results.count())
		}
		// start: state; end: birth away, state, and the RESULT of the outbox
		after = r.store.Counters()
		if ops := after.Ops - before.Ops; ops != 4*256 {
			t.Errorf("running 256 tasks: %d operations", ops)
		}
		before = after
		r.in.Settle(home, as[255].Header.Seq)
		wait(time.Second)
		if ops := r.store.Counters().Ops - before.Ops; ops != 257 {
			t.Errorf("settling 256 tasks: %d operations", ops)
		}
	})
}

// TestRefusalsWriteNothing holds each refusal of a stranger to cost no write
// (S54, S30).
func TestRefusalsWriteNothing(t *testing.T) {
	_, spec := does(succeed)
	spec.Allow = []string{"peer:home"}
	spec.MaxBody = 10
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		before := r.store.Counters().Ops
		r.accept(proto.CodeNoHandler, r.task(withKind("else")))
		r.accept(proto.CodeDenied, r.task(func(a *Arrival) { a.Header.Origin = other }))
		r.accept(proto.CodeDenied, r.task(func(a *Arrival) { a.Header.Origin = proto.PeerID{77} }))
		r.accept(proto.CodeTooLarge, r.task(withBody("eleven bytes")))
		r.accept(proto.CodeNeedBody, r.task(func(a *Arrival) { a.Header.SetStream(9, proto.ChunkSize) }))
		late := r.task(withTTL(time.Second))
		wait(2 * time.Second)
		r.accept(proto.CodeExpired, late)
		r.in.Drain(true)
		r.accept(proto.CodeDraining, r.task())
		r.in.Drain(false)
		if n := r.store.Counters().Ops - before; n != 0 {
			t.Errorf("%d operations", n)
		}
		r.accept(0, r.task())
	})
}

// TestOneBadAmongGood holds that a refusal concerns its own arrival alone.
func TestOneBadAmongGood(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		vs := r.in.Accept(t.Context(), []Arrival{r.task(), r.task(withKind("else")), r.task()})
		for i, want := range []proto.Code{0, proto.CodeNoHandler, 0} {
			if vs[i].Code != want {
				t.Errorf("arrival %d: %s, want %s", i, vs[i].Code.Name(), want.Name())
			}
		}
	})
}

// TestSettled holds I12: after the mark a copy is refused, before it accepted
// again, over restarts, and a mark never goes back.
func TestSettled(t *testing.T) {
	s, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a, b, c := r.task(), r.task(), r.task()
		r.accept(0, a, b)
		r.run()
		wait(time.Second)
		r.in.Settle(home, a.Header.Seq)
		r.in.Settle(home, proto.Seq{Boot: 0, Counter: 99})                                                // an old one, late
		if v := r.in.Accept(t.Context(), []Arrival{a})[0]; v.Code != 0 && v.Code != proto.CodeDuplicate { // by whether the mark is on disk yet
			t.Errorf("a copy that comes with the mark: %s", v.Code.Name())
		}
		wait(time.Second)
		for range 2 {
			r.accept(proto.CodeDuplicate, a)
			if v := r.accept(0, b)[0]; v.State != succeeded {
				t.Errorf("copy of a finished task: state %s", v.State.Name())
			}
			if n := r.in.Status().Ids; n != 1 {
				t.Errorf("%d ids kept, want 1", n)
			}
			r.restart()
			r.run()
		}
		r.in.Settle(other, proto.Seq{Boot: 9}) // another origin's mark says nothing about this one
		r.accept(0, c)
		r.in.Settle(home, c.Header.Seq) // settled while it waits: it runs all the same
		wait(time.Second)
		r.in.Settle(other, proto.Seq{Boot: 10}) // what ended in that very moment goes with the next settlement, of anybody
		wait(time.Minute)
		r.expect(c, succeeded)
		if n := r.in.Status().Ids; n != 0 {
			t.Errorf("%d ids kept, want none", n)
		}
		for _, x := range []Arrival{a, b, c} {
			r.accept(proto.CodeDuplicate, x)
			if s.starts(x.Header.ID) != 1 {
				t.Errorf("%d starts", s.starts(x.Header.ID))
			}
		}
	})
}

// TestReplayAfterDays holds S05 and I12 for an origin that never settles: the
// id is kept until every copy is refused by its age, also when the clock goes
// back afterwards.
func TestReplayAfterDays(t *testing.T) {
	for _, after := range []time.Duration{25 * time.Hour, 8 * 24 * time.Hour} {
		t.Run(after.String(), func(t *testing.T) {
			s, spec := does(succeed)
			wall := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			begin := wall.Clock().Now()
			bubble(t, Config{Clock: wall.Clock()}, []Spec{spec}, func(r *rig) {
				short, long := r.task(), r.task(withTTL(30*24*time.Hour))
				r.accept(0, short, long)
				r.run()
				wait(time.Second)
				wall.Advance(after)
				wait(ageEvery + time.Second)
				r.accept(proto.CodeExpired, short)
				r.accept(0, long) // still remembered
				if n := r.in.Status().Ids; n != 1 {
					t.Errorf("%d ids kept, want 1", n)
				}
				wall.SetWall(begin) // the floor holds under any clock
				r.accept(proto.CodeExpired, short)
				r.restart()
				r.run()
				r.accept(proto.CodeExpired, short)
				r.accept(0, long)
				wait(time.Minute)
				if s.starts(short.Header.ID) != 1 || s.starts(long.Header.ID) != 1 {
					t.Error("ran again")
				}
			})
		})
	}
}

// TestIdsFull holds I12: when no more ids may be kept the answer is BUSY, and
// nothing is forgotten; settling makes room.
func TestIdsFull(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{MaxKept: 3}, []Spec{spec}, func(r *rig) {
		a, b, c, d := r.task(), r.task(), r.task(), r.task()
		r.accept(0, a, b, c)
		r.run()
		wait(time.Second)
		r.accept(proto.CodeBusy, d)
		r.accept(0, a)
		r.in.Settle(home, a.Header.Seq)
		wait(time.Second)
		r.accept(0, d)
	})
}

// TestCapacity holds that a full inbox and a full disk refuse new work alone
// (I13): what is here runs and ends.
func TestCapacity(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{MaxTasks: 2}, []Spec{spec}, func(r *rig) {
		vs := r.in.Accept(t.Context(), []Arrival{r.task(), r.task(), r.task()})
		if !vs[0].Accepted() || !vs[1].Accepted() || vs[2].Code != proto.CodeFull {
			t.Errorf("verdicts %+v", vs)
		}
		r.run()
		wait(time.Second)
		if r.results.count() != 2 {
			t.Errorf("%d ended", r.results.count())
		}
		r.accept(0, r.task())
	})
}

func TestDiskFull(t *testing.T) {
	_, spec := does(succeed)
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, spec)
		r.store.Close()
		var mu sync.Mutex
		free := int64(1 << 30)
		space := func() (int64, int64, error) { mu.Lock(); defer mu.Unlock(); return free, 1 << 40, nil }
		s, err := store.Open(mem.New(), store.Config{Clock: r.cfg.Clock, Space: space, Reserve: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		r.store, r.results.store = s, s
		if r.in, err = Open(s, r.parts, r.cfg); err != nil {
			t.Fatal(err)
		}
		r.in.Register(spec)
		a, b := r.task(), r.task()
		r.accept(0, a)
		mu.Lock()
		free = 0
		mu.Unlock()
		wait(time.Minute)
		r.accept(proto.CodeFull, b)
		r.accept(0, a) // it is here
		r.run()
		wait(time.Second)
		r.expect(a, succeeded)
		mu.Lock()
		free = 1 << 30
		mu.Unlock()
		wait(time.Minute)
		r.accept(0, b)
		wait(time.Second)
		r.expect(b, succeeded)
		r.close()
	})
}

// TestImposter holds that another task with an id that is taken is not run, nor
// taken for the first.
func TestImposter(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		for name, change := range map[string]func(*Arrival){
			"other body":     withBody("other"),
			"other origin":   func(x *Arrival) { x.Header.Origin, x.Header.Seq = other, a.Header.Seq },
			"other sequence": func(x *Arrival) {},
		} {
			x := r.task(func(x *Arrival) { x.Header.ID = a.Header.ID }, change)
			if v := r.in.Accept(t.Context(), []Arrival{x})[0]; v.Code != proto.CodeBusy {
				t.Errorf("%s: %s", name, v.Code.Name())
			}
		}
		r.run()
		wait(time.Second)
		r.expect(a, succeeded)
	})
}

// TestGrantWithdrawn holds I17: the allow list counts at the time of the start.
func TestGrantWithdrawn(t *testing.T) {
	s, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		spec.Allow = []string{"peer:other"}
		if err := r.in.Register(spec); err != nil {
			t.Fatal(err)
		}
		r.run()
		wait(time.Second)
		if o := r.expect(a, deadLetter); !strings.Contains(o.Reason, "allow list") || s.starts(a.Header.ID) != 0 {
			t.Errorf("reason %q, %d starts", o.Reason, s.starts(a.Header.ID))
		}
	})
}

// TestWithoutHandlerItWaits holds S30: a node whose handler went away does not
// touch the task until it is back, or until its time has passed.
func TestWithoutHandlerItWaits(t *testing.T) {
	s, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a, b := r.task(), r.task(withTTL(2*time.Hour))
		r.accept(0, a, b)
		r.in.Unregister("work")
		r.run()
		wait(time.Hour - time.Second)
		if r.results.count() != 0 || r.record(a).State != accepted {
			t.Fatalf("%d ended, state %s", r.results.count(), r.record(a).State.Name())
		}
		wait(2 * time.Second)
		r.expect(a, expired)
		if err := r.in.Register(spec); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		r.expect(b, succeeded)
		if s.starts(a.Header.ID) != 0 {
			t.Error("an expired task was started")
		}
	})
}

// TestManyExpireAtOnce holds that tasks past their time all end, in bounded steps.
func TestManyExpireAtOnce(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		var as []Arrival
		for i := range 3000 {
			as = append(as, r.task(withKey(fmt.Sprint("key ", i%7))))
		}
		r.accept(0, as...)
		wait(2 * time.Hour)
		r.run()
		wait(time.Minute)
		for _, a := range as {
			r.expect(a, expired)
		}
	})
}
