package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/idempotency"
)

// TestNoClockRunsAKeyTwice holds I6 and I14: whatever the wall clock does, while
// the node runs and over a restart, a key that has succeeded does not run again
// for seven days of running.
func TestNoClockRunsAKeyTwice(t *testing.T) {
	for _, years := range []int{10, -10} {
		t.Run(fmt.Sprint(years), func(t *testing.T) {
			var runs atomic.Int32
			_, spec := does(func(context.Context, *Run) *Result {
				runs.Add(1)
				return &Result{Outcome: Success, Output: []byte("the effect")}
			})
			m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			bubble(t, Config{Clock: m.Clock()}, []Spec{spec}, func(r *rig) {
				pass := func(d time.Duration) {
					for ; d > 0; d -= time.Minute {
						m.Advance(time.Minute)
						wait(time.Minute)
					}
				}
				jump := func() { m.SetWall(m.Clock().Now().AddDate(years, 0, 0)) }
				again := func(want int32, say string) {
					t.Helper()
					a := r.task(withKey("k"))
					r.accept(0, a)
					pass(2 * time.Minute)
					if o := r.expect(a, succeeded); string(o.Body) != "the effect" || runs.Load() != want {
						t.Errorf("%s: %d runs, want %d; %v", say, runs.Load(), want, o)
					}
				}
				r.run()
				again(1, "first")
				pass(time.Hour)
				jump()
				pass(time.Hour)
				again(1, "after a jump")
				r.restart()
				jump()
				r.run()
				pass(time.Hour)
				again(1, "after a jump over a stop")
				r.crash()
				jump()
				r.run()
				again(1, "after a jump over a kill")
				pass(7*24*time.Hour - 4*time.Hour)
				again(1, "before the horizon")
				pass(2 * time.Hour)
				again(2, "after the horizon")
			})
		})
	}
}

// TestSuccessOfAnEarlierVersion holds I6 over an upgrade: a success that was kept
// until a wall time is found and kept on.
func TestSuccessOfAnEarlierVersion(t *testing.T) {
	script, spec := does(func(context.Context, *Run) *Result { return &Result{Outcome: Success, Output: []byte("again")} })
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		old := success{id: proto.NewTaskID(time.Now()), record: &proto.Record{Result: []byte("the effect")}}
		val, err := old.encode()
		if err != nil {
			t.Fatal(err)
		}
		var b store.Batch
		b.PutUntil(store.Dedup, append([]byte("s"), successKey(home, "k")...), val, time.Now().Add(time.Hour))
		if err := r.store.Apply(context.Background(), &b); err != nil {
			t.Fatal(err)
		}
		r.crash()
		r.run()
		wait(24 * time.Hour)
		a := r.task(withKey("k"))
		r.accept(0, a)
		wait(time.Minute)
		if o := r.expect(a, succeeded); string(o.Body) != "the effect" || script.starts(a.Header.ID) != 0 {
			t.Errorf("%d starts, %v", script.starts(a.Header.ID), o)
		}
	})
}

// TestNoMoreSuccessesThanMay holds I12's manner for keys: at the limit a task with
// a new key is told BUSY and nothing is forgotten, also over a restart. What ends
// without a success gives its place back.
func TestNoMoreSuccessesThanMay(t *testing.T) {
	_, spec := does(func(_ context.Context, r *Run) *Result {
		time.Sleep(10 * time.Millisecond) // what ends in the millisecond in which the count begins is counted twice until the next
		if r.Content.IdempotencyKey == "bad" {
			return &Result{Outcome: Fail, ExitCode: 65}
		}
		return &Result{Outcome: Success, Output: []byte("the effect")}
	})
	bubble(t, Config{Keys: idempotency.Limits{Max: 2}}, []Spec{spec}, func(r *rig) {
		a, bad := r.task(withKey("a")), r.task(withKey("bad"))
		r.accept(0, a, bad, a)
		r.accept(proto.CodeBusy, r.task(withKey("c")))
		r.accept(0, r.task())
		r.crash()
		r.accept(proto.CodeBusy, r.task(withKey("c")))
		r.run()
		wait(time.Minute)
		r.expect(bad, failed)
		c := r.task(withKey("c"))
		r.accept(0, c)
		r.accept(proto.CodeBusy, r.task(withKey("d")))
		wait(time.Minute)
		r.expect(c, succeeded)
		for range 2 {
			r.restart()
			r.run()
			wait(time.Minute)
			r.accept(proto.CodeBusy, r.task(withKey("d")))
			again := r.task(withKey("a"))
			r.accept(0, again)
			wait(time.Minute)
			r.expect(again, succeeded)
			if n := r.in.keys.Count(); n != 2 {
				t.Errorf("%d keys, want 2", n)
			}
		}
	})
}
