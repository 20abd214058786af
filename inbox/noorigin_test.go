package inbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// untold returns a config that collects the tasks whose origins get no result.
func untold(into *[]proto.TaskID) Config {
	return Config{OnUntold: func(f *Finished) { withLock(func() { *into = append(*into, f.ID) }) }}
}

// works returns a handler with one place that makes the number of its run.
func works() Spec {
	n := 0
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		n++
		return &handler.Result{Outcome: handler.Success, Output: fmt.Append(nil, n)}
	})
	spec.Concurrency = 1
	return spec
}

// A task whose origin is gone ends without a result: somebody here is told, and what waits for
// the place of its kind and of its ordering key runs. It is not run again.
func TestATaskDoesNotWaitForAnOriginThatIsGone(t *testing.T) {
	var lost []proto.TaskID
	inBubble(t, untold(&lost), []Spec{works()}, func(f *fixture) {
		f.in.parts.Results = refusingResults{f.results, always(fmt.Errorf("%w: it was removed", ErrNoOrigin)), "1"}
		f.run()
		gone, next := f.task(withOrder("k")), f.task(withOrder("k"))
		f.accept(0, gone, next)
		wait(2 * time.Minute)
		if f.results.of(gone.Header.ID) != nil || !slices.Equal(lost, []proto.TaskID{gone.Header.ID}) {
			t.Errorf("told %v, untold %v", f.results.of(gone.Header.ID), lost)
		}
		if o := f.expect(next, proto.Success); string(o.Body) != "2" {
			t.Errorf("the next one made %q", o.Body)
		}
		f.restart()
		f.run()
		wait(2 * time.Minute)
		if n := f.results.count(); n != 1 || len(lost) != 1 {
			t.Errorf("%d results, untold %v", n, lost)
		}
	})
}

// A task that ended without a result for its origin stays known until its time is over, also
// if its origin settled it long ago: it asks for the task when it comes back, and would send
// one again that is not known here (I6).
func TestAnUntoldEndIsRemembered(t *testing.T) {
	var lost []proto.TaskID
	wall := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	cfg := untold(&lost)
	cfg.Clock = wall.Clock()
	inBubble(t, cfg, []Spec{works()}, func(f *fixture) {
		gone, told := f.task(), f.task()
		f.in.parts.Results = refusingResults{f.results, always(ErrNoOrigin), "1"}
		f.accept(0, gone, told)
		f.in.Settle(home, told.Header.Seq)
		f.run()
		known := func(when string, want bool) {
			t.Helper()
			if !f.in.Knows(gone.Header.ID) == want || f.in.Knows(told.Header.ID) {
				t.Errorf("%s: the untold task is known: %v, want %v; the told one: %v", when, f.in.Knows(gone.Header.ID), want, f.in.Knows(told.Header.ID))
			}
		}
		wait(2 * time.Minute)
		f.expect(told, proto.Success)
		if len(lost) != 1 {
			t.Fatalf("untold %v", lost)
		}
		known("after its end", true)
		f.in.Settle(home, proto.Seq{Boot: 1, Counter: 99})
		wait(time.Minute)
		known("after a later mark", true)
		f.restart()
		f.run()
		wait(2 * ageEvery)
		known("after a restart", true)
		f.accept(0, gone) // a copy of it
		wall.Advance(time.Hour + 2*proto.Skew)
		wait(2 * ageEvery)
		known("after its time", false)
	})
}

// An origin that was removed and is introduced again soon gets its result.
func TestAnOriginThatComesBackIsTold(t *testing.T) {
	var lost []proto.TaskID
	inBubble(t, untold(&lost), []Spec{works()}, func(f *fixture) {
		back := f.cfg.Clock.Now().Add(20 * time.Second)
		f.in.parts.Results = refusingResults{f.results, func() error {
			if f.cfg.Clock.Now().Before(back) {
				return ErrNoOrigin
			}
			return nil
		}, "1"}
		f.run()
		a := f.task()
		f.accept(0, a)
		wait(time.Minute)
		f.expect(a, proto.Success)
		if len(lost) > 0 {
			t.Errorf("untold %v", lost)
		}
	})
}
