package inbox

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// TestOrder checks I10 and S15: tasks of one ordering key run one after the other, over
// retries, kinds and restarts; a failing head blocks only its key.
func TestOrder(t *testing.T) {
	var log []string
	active := map[string]int{}
	s, spec := scripted(nil)
	s.f = func(_ context.Context, r *handler.Run) *handler.Result {
		k := r.Content.OrderingKey
		withLock(func() {
			if active[k]++; active[k] > 1 && k != "" {
				t.Errorf("two of key %q at a time", k)
			}
		})
		time.Sleep(100 * time.Millisecond)
		withLock(func() {
			active[k]--
			log = append(log, k+string(r.Content.Body))
		})
		if string(r.Content.Body) == "bad" {
			return &handler.Result{Outcome: handler.Retry}
		}
		return &handler.Result{Outcome: handler.Success}
	}
	second := spec
	second.Kind = "second"
	inBubble(t, Config{Slots: 8}, []Spec{spec, second}, func(f *fixture) {
		as := []Arrival{f.task(withOrder("a"), withBody("bad")), f.task(withOrder("b"), withBody("1"))}
		for i := 2; i < 6; i++ {
			as = append(as, f.task(withOrder("a"), withBody(fmt.Sprint(i)), withKind([]string{"work", "second"}[i%2])),
				f.task(withOrder("b"), withBody(fmt.Sprint(i)), withClass(proto.Class(1+i%4))))
		}
		f.accept(0, as...)
		f.run()
		wait(2 * time.Second)
		of := func(key byte) (runs []string) {
			withLock(func() {
				for _, l := range log {
					if l[0] == key {
						runs = append(runs, l)
					}
				}
			})
			return runs
		}
		b := of('b')
		if want := []string{"b1", "b2", "b3", "b4", "b5"}; !slices.Equal(b, want) {
			t.Errorf("key b ran %v next to a failing key a", b)
		}
		f.restart()
		f.run()
		wait(time.Minute)
		a := of('a')
		if want := []string{"abad", "abad", "abad", "a2", "a3", "a4", "a5"}; !slices.Equal(a, want) {
			t.Errorf("key a ran %v", a)
		}
	})
}

// TestOrderIsPerHome checks that a key of one origin does not affect another origin.
func TestOrderIsPerHome(t *testing.T) {
	_, spec := scripted(func(ctx context.Context, r *handler.Run) *handler.Result {
		if r.Origin == home {
			return blocks(ctx, r)
		}
		return &handler.Result{Outcome: handler.Success}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b := f.task(withOrder("k")), f.task(withOrder("k"), func(a *Arrival) { a.Header.Origin = other })
		f.accept(0, a, b)
		f.run()
		wait(time.Second)
		f.expect(b, succeeded)
		if rec := f.record(a); rec.State != running {
			t.Errorf("state %s", rec.State.Name())
		}
	})
}

// TestClasses checks S14: the most urgent first, and at least one low in a hundred under a
// flood of high.
func TestClasses(t *testing.T) {
	var order []proto.Class
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		withLock(func() { order = append(order, r.Content.Class) })
		return &handler.Result{Outcome: handler.Success}
	})
	inBubble(t, Config{Slots: 1}, []Spec{spec}, func(f *fixture) {
		f.accept(0, f.task(withClass(proto.Low)), f.task(withClass(proto.Low)))
		var flood []Arrival
		for range 400 {
			flood = append(flood, f.task(withClass(proto.High)))
		}
		f.accept(0, flood...)
		f.accept(0, f.task(withClass(proto.Critical)))
		f.run()
		wait(time.Minute)
		if len(order) != 403 || order[0] != proto.Critical {
			t.Fatalf("%d ran, first %s", len(order), order[0].Name())
		}
		if i := slices.Index(order, proto.Low); i > 100 {
			t.Errorf("the first low task was number %d", i)
		}
	})
}

// TestConcurrency checks the slots of the node and the limit of a kind.
func TestConcurrency(t *testing.T) {
	now, most := map[string]int{}, map[string]int{}
	s, spec := scripted(nil)
	s.f = func(_ context.Context, r *handler.Run) *handler.Result {
		count := func(n int) {
			for _, k := range []string{r.Content.Kind, "all"} {
				now[k] += n
				most[k] = max(most[k], now[k])
			}
		}
		withLock(func() { count(1) })
		time.Sleep(time.Second)
		withLock(func() { count(-1) })
		return &handler.Result{Outcome: handler.Success}
	}
	narrow := spec
	narrow.Kind, narrow.Concurrency = "narrow", 2
	inBubble(t, Config{Slots: 5}, []Spec{spec, narrow}, func(f *fixture) {
		for range 20 {
			f.accept(0, f.task(withKind("narrow")), f.task())
		}
		f.run()
		wait(2500 * time.Millisecond)
		st := f.in.Status()
		// The limit of a kind counts a run until its end is on disk, when others may have its slot.
		if n := st.Kinds[0].Running; st.Used != 5 || len(st.Kinds) != 2 || st.Kinds[0].Kind != "narrow" || n > 2 || st.Kinds[1].Running != 5-n {
			t.Errorf("status %+v", st)
		}
		if d := f.in.Running(); len(d) != 5 || d[0].Since.After(d[4].Since) {
			t.Errorf("running %+v", d)
		}
		wait(time.Minute)
		if most["narrow"] != 2 || most["all"] != 5 || f.results.count() != 40 {
			t.Errorf("at a time %v, %d ended", most, f.results.count())
		}
		if st := f.in.Status(); st.Used != 0 || st.Backlog.Live != 0 {
			t.Errorf("status at the end %+v", st)
		}
	})
}

// TestIdempotencyKey checks I6 for two tasks with one key: the second waits while the first
// runs, and gets its outcome.
func TestIdempotencyKey(t *testing.T) {
	var runs atomic.Int32
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		n := runs.Add(1)
		time.Sleep(time.Second)
		if n == 1 {
			return &handler.Result{Outcome: handler.Fail, Code: 65}
		}
		return &handler.Result{Outcome: handler.Success, Output: []byte("the effect"), ContentType: "text/plain"}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b, c := f.task(withKey("k")), f.task(withKey("k")), f.task(withKey("k"))
		foreign := f.task(withKey("k"), func(a *Arrival) { a.Header.Origin = other })
		f.accept(0, a, b, c)
		f.run()
		wait(500 * time.Millisecond)
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs of one key at a time", n)
		}
		wait(time.Minute)
		f.expect(a, failed)
		first, second := f.expect(b, succeeded), f.expect(c, succeeded)
		if runs.Load() != 2 || string(second.Body) != "the effect" || second.ContentType != first.ContentType || len(second.Attempts) != 0 {
			t.Errorf("%d runs, second outcome %v", runs.Load(), second)
		}
		f.restart()
		f.run()
		d := f.task(withKey("k"))
		f.accept(0, d, foreign)
		wait(time.Minute)
		if o := f.expect(d, succeeded); string(o.Body) != "the effect" || runs.Load() != 3 {
			t.Errorf("after a restart: %d runs, %v", runs.Load(), o)
		}
		f.expect(foreign, succeeded)
	})
}

// TestIdempotencyKeyOfLargeResult checks that the second task succeeds even if the result
// of the first is too large to keep.
func TestIdempotencyKeyOfLargeResult(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		return &handler.Result{Outcome: handler.Success, File: "out", Size: 1 << 20, Digest: make([]byte, 32)}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b := f.task(withKey("k")), f.task(withKey("k"))
		f.accept(0, a, b)
		f.run()
		wait(time.Minute)
		if f := f.results.of(a.Header.ID)[0]; f.File != "out" || f.Outcome.BodySize != 1<<20 {
			t.Errorf("first: %+v", f)
		}
		if o := f.expect(b, succeeded); o.BodySize != 0 || o.Reason == "" {
			t.Errorf("second: %v", o)
		}
	})
}

// TestManyFailures is the owner's part of S17: thousands of dead letters leave nothing here
// once they are settled.
func TestManyFailures(t *testing.T) {
	const n = 5000
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		return &handler.Result{Outcome: handler.Fail, Reason: "no"}
	})
	inBubble(t, Config{Slots: 16}, []Spec{spec}, func(f *fixture) {
		f.run()
		var last Arrival
		for range n / 500 {
			var as []Arrival
			for range 500 {
				last = f.task()
				as = append(as, last)
			}
			f.accept(0, as...)
		}
		wait(time.Minute)
		if f.results.count() != n {
			t.Fatalf("%d ended", f.results.count())
		}
		again := f.task(func(a *Arrival) { a.Content.RedriveOf = last.Header.ID[:] })
		f.accept(0, again) // a redrive is another task: it is not deduplicated
		f.in.Settle(home, again.Header.Seq)
		wait(time.Minute)
		f.expect(again, failed)
		if s := f.in.Status(); f.in.dedup.size() != 0 || s.Backlog.Live != 0 || s.Backlog.Kept != 0 {
			t.Errorf("left: %+v", s)
		}
		if n := f.engine.Stats().Keys; n > 5100 { // the results of the fixture, mark, schema
			t.Errorf("%d keys on disk", n)
		}
	})
}

// TestTimeoutCountsSuspendedTime checks I14: time during which the machine sleeps counts
// against the timeout of a handler.
func TestTimeoutCountsSuspendedTime(t *testing.T) {
	_, spec := scripted(func(ctx context.Context, _ *handler.Run) *handler.Result {
		<-ctx.Done()
		return &handler.Result{Outcome: handler.Cancelled, Reason: errText(context.Cause(ctx))}
	})
	spec.Timeout, spec.MaxAttempts = 30*time.Minute, 1
	m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	inBubble(t, Config{Clock: m.Clock()}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Minute)
		m.Suspend(31 * time.Minute)
		wait(time.Minute)
		if o := f.expect(a, timedOut); o.Reason != handler.ErrTimeout.Error() {
			t.Errorf("reason %q", o.Reason)
		}
	})
}

// TestStartedNotice checks that the origin is told once about a run that lasts.
func TestStartedNotice(t *testing.T) {
	var started []Started
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		if string(r.Content.Body) == "long" {
			time.Sleep(time.Minute)
		}
		return &handler.Result{Outcome: handler.Success}
	})
	inBubble(t, Config{OnStarted: func(s Started) { started = append(started, s) }}, []Spec{spec}, func(f *fixture) {
		short, long := f.task(), f.task(withBody("long"))
		f.accept(0, short, long)
		f.run()
		wait(2 * time.Minute)
		if len(started) != 1 {
			t.Fatalf("reported %d times", len(started))
		}
		if s := started[0].Statement; started[0].Origin != home || s.Task != long.Header.ID || s.Fact != proto.FactStarted || s.Epoch != long.Header.Seq || s.Attempt != 1 || s.Node != self {
			t.Errorf("reported %+v", started[0])
		}
	})
}

// With one ordering key used by two origins, one task runs at a time if the handler shares
// its lanes, even over a restart, and two if it does not (I10).
func TestLanesOfAHandler(t *testing.T) {
	for shared, want := range map[bool]int{false: 2, true: 1} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			active, most, runs := 0, 0, 0
			s, spec := scripted(nil)
			s.f = func(context.Context, *handler.Run) *handler.Result {
				withLock(func() {
					active, runs = active+1, runs+1
					most = max(most, active)
				})
				time.Sleep(time.Second)
				withLock(func() { active-- })
				return &handler.Result{Outcome: handler.Success}
			}
			spec.SharedLanes = shared
			inBubble(t, Config{Slots: 8}, []Spec{spec}, func(f *fixture) {
				var as []Arrival
				for i := range 6 {
					as = append(as, f.task(withOrder("a"), func(a *Arrival) { a.Header.Origin = proto.PeerID{byte(i%2 + 1)} }))
				}
				f.accept(0, as...)
				f.restart()
				f.run()
				wait(time.Minute)
				withLock(func() {
					if most != want || runs != 6 {
						t.Errorf("%d were running at a time, want %d; %d ran", most, want, runs)
					}
				})
			})
		})
	}
}

// A change of the setting counts for the tasks that are accepted afterwards, also over a restart:
// those that wait already run as the setting was when they came (I10).
func TestLanesOfAHandlerChange(t *testing.T) {
	for before, after := range map[bool]bool{false: true, true: false} {
		t.Run(fmt.Sprint("shared ", after), func(t *testing.T) {
			active, most, runs := map[string]int{}, map[string]int{}, 0
			s, spec := scripted(nil)
			s.f = func(_ context.Context, r *handler.Run) *handler.Result {
				body, _ := io.ReadAll(r.Body)
				when := string(body)
				withLock(func() {
					active[when], runs = active[when]+1, runs+1
					most[when] = max(most[when], active[when])
				})
				time.Sleep(time.Second)
				withLock(func() { active[when]-- })
				return &handler.Result{Outcome: handler.Success}
			}
			spec.SharedLanes = before
			inBubble(t, Config{Slots: 16}, []Spec{spec}, func(f *fixture) {
				acceptSix := func(when string) {
					var as []Arrival
					for i := range 6 {
						as = append(as, f.task(withOrder("a"), withBody(when), func(a *Arrival) { a.Header.Origin = proto.PeerID{byte(i%2 + 1)} }))
					}
					f.accept(0, as...)
				}
				acceptSix("before")
				f.specs[0].SharedLanes = after
				if err := f.in.Register(f.specs[0]); err != nil {
					t.Fatal(err)
				}
				acceptSix("after")
				f.restart()
				f.run()
				wait(time.Minute)
				want := map[bool]int{false: 2, true: 1}
				withLock(func() {
					if most["before"] != want[before] || most["after"] != want[after] || runs != 12 {
						t.Errorf("%v were running at a time, want %d and %d; %d ran", most, want[before], want[after], runs)
					}
				})
			})
		})
	}
}

// In a shared lane of a handler a task that waits for its next attempt holds up those of
// other origins, and one that is dead does not, even if it was told to block: it blocks at
// its home (I10).
func TestHeadOfASharedLane(t *testing.T) {
	var started []proto.PeerID
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		withLock(func() { started = append(started, r.Origin) })
		if r.Origin == home {
			return &handler.Result{Outcome: handler.Retry}
		}
		return &handler.Result{Outcome: handler.Success}
	})
	spec.SharedLanes, spec.MaxAttempts = true, 3
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		first := f.task(withOrder("a"), func(a *Arrival) { a.Content.OnDead = "block" })
		second := f.task(withOrder("a"), func(a *Arrival) { a.Header.Origin = other })
		f.accept(0, first, second)
		f.run()
		wait(10 * time.Minute)
		f.expect(first, deadLetter)
		f.expect(second, succeeded)
		withLock(func() {
			if !slices.Equal(started, []proto.PeerID{home, home, home, other}) {
				t.Errorf("started for %v", started)
			}
		})
	})
}
