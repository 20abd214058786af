package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/idempotency"
)

// TestNoClockRunsAKeyTwice checks I6 and I14: whatever the wall clock does, while the node
// runs and over a restart, a key that has succeeded does not run again for seven days of
// running time.
func TestNoClockRunsAKeyTwice(t *testing.T) {
	for _, years := range []int{10, -10} {
		t.Run(fmt.Sprint(years), func(t *testing.T) {
			var runs atomic.Int32
			_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
				runs.Add(1)
				return &handler.Result{Outcome: handler.Success, Output: []byte("the effect")}
			})
			m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
			inBubble(t, Config{Clock: m.Clock()}, []Spec{spec}, func(f *fixture) {
				pass := func(d time.Duration) {
					for ; d > 0; d -= time.Minute {
						m.Advance(time.Minute)
						wait(time.Minute)
					}
				}
				jump := func() { m.SetWall(m.Clock().Now().AddDate(years, 0, 0)) }
				again := func(want int32, say string) {
					t.Helper()
					a := f.task(withKey("k"))
					f.accept(0, a)
					pass(2 * time.Minute)
					if o := f.expect(a, succeeded); string(o.Body) != "the effect" || runs.Load() != want {
						t.Errorf("%s: %d runs, want %d; %v", say, runs.Load(), want, o)
					}
				}
				f.run()
				again(1, "first")
				pass(time.Hour)
				jump()
				pass(time.Hour)
				again(1, "after a jump")
				f.restart()
				jump()
				f.run()
				pass(time.Hour)
				again(1, "after a jump over a stop")
				f.crash()
				jump()
				f.run()
				again(1, "after a jump over a kill")
				pass(7*24*time.Hour - 4*time.Hour)
				again(1, "before the horizon")
				pass(2 * time.Hour)
				again(2, "after the horizon")
			})
		})
	}
}

// TestSuccessesOfKeysAreBounded checks the rule of I12 for keys: at the limit a task with a
// new key is answered BUSY and nothing is forgotten, even over a restart. A task that ends
// without a success gives its place back.
func TestSuccessesOfKeysAreBounded(t *testing.T) {
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		time.Sleep(10 * time.Millisecond) // a task that ends in the millisecond in which the count begins is counted twice until the next
		if r.Content.IdempotencyKey == "bad" {
			return &handler.Result{Outcome: handler.Fail, Code: 65}
		}
		return &handler.Result{Outcome: handler.Success, Output: []byte("the effect")}
	})
	inBubble(t, Config{Keys: idempotency.Limits{Max: 2}}, []Spec{spec}, func(f *fixture) {
		a, bad := f.task(withKey("a")), f.task(withKey("bad"))
		f.accept(0, a, bad, a)
		f.accept(proto.CodeBusy, f.task(withKey("c")))
		f.accept(0, f.task())
		f.crash()
		f.accept(proto.CodeBusy, f.task(withKey("c")))
		f.run()
		wait(time.Minute)
		f.expect(bad, failed)
		c := f.task(withKey("c"))
		f.accept(0, c)
		f.accept(proto.CodeBusy, f.task(withKey("d")))
		wait(time.Minute)
		f.expect(c, succeeded)
		for range 2 {
			f.restart()
			f.run()
			wait(time.Minute)
			f.accept(proto.CodeBusy, f.task(withKey("d")))
			again := f.task(withKey("a"))
			f.accept(0, again)
			wait(time.Minute)
			f.expect(again, succeeded)
			if n := f.in.keys.Count(); n != 2 {
				t.Errorf("%d keys, want 2", n)
			}
		}
	})
}
