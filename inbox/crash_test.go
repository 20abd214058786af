package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// blocks is a handler that runs until it is told to stop.
func blocks(ctx context.Context, _ *handler.Run) *handler.Result {
	<-ctx.Done()
	return &handler.Result{Outcome: handler.Cancelled}
}

// TestStopAfterEachStep stops the process before and after each step of a task and restarts
// it (S01, I1, I6, I7): the task ends once, successfully, with one successful run.
func TestStopAfterEachStep(t *testing.T) {
	for _, point := range points {
		t.Run(strings.TrimPrefix(point, "inbox/"), func(t *testing.T) {
			s, spec := scripted(succeed)
			var passed atomic.Bool
			cfg := Config{Fail: func(at string) error {
				if at == point && passed.CompareAndSwap(false, true) {
					return errors.New("stopped at " + at)
				}
				return nil
			}}
			inBubble(t, cfg, []Spec{spec}, func(f *fixture) {
				a := f.task(withKey("k"))
				f.run()
				if v := f.in.Accept(t.Context(), []Arrival{a})[0]; v.Accepted() {
					wait(time.Second)
					f.in.Settle(home, a.Header.Seq)
					wait(time.Second)
				}
				if !passed.Load() {
					t.Fatal("the point was not passed")
				}
				f.crash()
				f.run()
				if point == PointAccept || point == PointAccepted {
					f.accept(0, a) // it was not acknowledged: its origin sends it again
				}
				wait(time.Minute)
				f.expect(a, succeeded)
				atMost := 1
				if point == PointFinish || point == PointStarted {
					atMost = 2 // a crash while running
				}
				if n := s.starts(a.Header.ID); n < 1 || n > atMost {
					t.Errorf("%d starts, at most %d", n, atMost)
				}
			})
		})
	}
}

// TestProbesKeepToTheSlots checks that no more interrupted tasks are probed at once than there
// are slots, however many were running when the process died.
func TestProbesKeepToTheSlots(t *testing.T) {
	s, spec := scripted(blocks)
	var now, most, asked int
	s.probe = func(*handler.Run) handler.ProbeResult {
		withLock(func() { now++; asked++; most = max(most, now) })
		time.Sleep(time.Second)
		withLock(func() { now-- })
		return handler.Done
	}
	spec.OnCrash = OnCrashProbe
	inBubble(t, Config{Slots: 20}, []Spec{spec}, func(f *fixture) {
		var as []Arrival
		for range 20 {
			as = append(as, f.task())
		}
		f.accept(0, as...)
		f.run()
		wait(time.Second)
		f.cfg.Slots = 2
		f.crash()
		f.run()
		time.Sleep(3500 * time.Millisecond)
		if err := f.stop(); err != nil { // those that still wait are asked after the next start
			t.Fatal(err)
		}
		if asked == 20 || asked == 0 {
			t.Errorf("%d were asked before the stop", asked)
		}
		f.restart()
		f.run()
		wait(time.Minute)
		for _, a := range as {
			f.expect(a, succeeded)
		}
		if most != 2 || asked != 20 {
			t.Errorf("%d probes, %d at once, want 20 and 2", asked, most)
		}
	})
}

// TestCrashPolicies checks I7: a start without an end is handled as the handler declared,
// with a visible record.
func TestCrashPolicies(t *testing.T) {
	tests := []struct {
		name   string
		policy OnCrash
		probe  handler.ProbeResult
		mode   proto.Mode
		want   proto.TaskState
		starts int
	}{
		{"retry", OnCrashRetry, handler.Unknown, 0, succeeded, 2},
		{"probe: done", OnCrashProbe, handler.Done, 0, succeeded, 1},
		{"probe: not done", OnCrashProbe, handler.NotDone, 0, succeeded, 2},
		{"probe: unknown", OnCrashProbe, handler.Unknown, 0, deadLetter, 1},
		{"park", OnCrashPark, handler.Unknown, 0, deadLetter, 1},
		{"retry, but at most once", OnCrashRetry, handler.Unknown, proto.AtMostOnce, deadLetter, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, spec := scripted(blocks)
			s.probe = func(*handler.Run) handler.ProbeResult { return tt.probe }
			spec.OnCrash = tt.policy
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task(withMode(tt.mode))
				f.accept(0, a)
				f.run()
				wait(time.Second)
				if rec := f.record(a); rec.State != running {
					t.Fatalf("state %s before the crash", rec.State.Name())
				}
				f.crash()
				s.f = succeed
				f.run()
				wait(time.Minute)
				o := f.expect(a, tt.want)
				if n := s.starts(a.Header.ID); n != tt.starts {
					t.Errorf("%d starts, want %d", n, tt.starts)
				}
				if !abandoned(o) {
					t.Errorf("no event reports the crash: %v", o.Events)
				}
				if tt.want == deadLetter && o.Cause != proto.TaskCrashedOnce && o.Cause != proto.TaskCrashedParked {
					t.Errorf("because of %v", o.Cause)
				}
			})
		})
	}
}

func abandoned(o *proto.Outcome) bool {
	for _, e := range o.Events {
		switch e.Cause {
		case proto.TaskCrashed, proto.TaskCrashedOften, proto.TaskCrashedOnce, proto.TaskCrashedParked, proto.TaskProbed:
			return true
		}
	}
	return false
}

// A poison is a task that kills the process when its handler has started. Its fields are
// set in the bubble of the test.
type poison struct {
	id     proto.TaskID
	deadly chan struct{}
}

// run takes 10 s for other tasks.
func (p *poison) run(ctx context.Context, r *handler.Run) *handler.Result {
	if r.ID == p.id {
		p.deadly <- struct{}{}
		return blocks(ctx, r)
	}
	select {
	case <-time.After(10 * time.Second):
		return &handler.Result{Outcome: handler.Success}
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled}
	}
}

// TestPoison checks S16: a task that kills the process each time it runs is the only one
// that fails; tasks that ran next to it keep their attempts and succeed.
func TestPoison(t *testing.T) {
	s, spec := scripted(nil)
	var p poison
	s.f = p.run
	inBubble(t, Config{Slots: 4}, []Spec{spec}, func(f *fixture) {
		bad := f.task()
		p.id, p.deadly = bad.Header.ID, make(chan struct{}, 1)
		as := []Arrival{f.task(), f.task(), f.task()}
		f.accept(0, append(as, bad)...)
		deaths := 0
		for ; len(f.results.of(p.id)) == 0 && deaths < 50; deaths++ {
			f.run()
			select {
			case <-p.deadly:
			case <-time.After(3 * time.Minute):
			}
			f.crash()
		}
		if o := f.expect(bad, deadLetter); deaths > 12 || o.Cause != proto.TaskCrashedOften {
			t.Errorf("%d deaths, because of %v", deaths, o.Cause)
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

// TestGracefulStop checks S32: a stop spends no attempt and no abandon; a handler that
// finishes in time may do so.
func TestGracefulStop(t *testing.T) {
	var r0 *fixture
	s, spec := scripted(nil)
	s.f = func(ctx context.Context, r *handler.Run) *handler.Result {
		if string(r.Content.Body) == "quick" {
			time.Sleep(5 * time.Second)
			return &handler.Result{Outcome: handler.Success}
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), handler.ErrStopping) {
			r0.t.Errorf("told to stop because %v", context.Cause(ctx))
		}
		return &handler.Result{Outcome: handler.Crashed, Code: 143}
	}
	inBubble(t, Config{GracefulTimeout: 10 * time.Second}, []Spec{spec}, func(f *fixture) {
		r0 = f
		quick, slow, waiting := f.task(withBody("quick")), f.task(), f.task()
		f.accept(0, quick, slow)
		f.run()
		wait(time.Second)
		begin := time.Now()
		f.cancel()
		wait(time.Second)
		f.accept(proto.CodeDraining, waiting)
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 11*time.Second {
			t.Errorf("the stop took %s", took)
		}
		f.expect(quick, succeeded)
		rec := f.record(slow)
		if rec.State != accepted || rec.Attempts != 0 || rec.Abandons != 0 {
			t.Errorf("after the stop: %s, %d attempts, %d abandons", rec.State.Name(), rec.Attempts, rec.Abandons)
		}
		s.f = succeed
		f.crash()
		f.run()
		wait(time.Second)
		if o := f.expect(slow, succeeded); o.Attempts[len(o.Attempts)-1].Number != 1 {
			t.Errorf("attempts %v", o.Attempts)
		}
	})
}

// TestStubbornHandler checks that a handler that ignores the request to stop is killed
// after a grace period, and that Run waits for it.
func TestStubbornHandler(t *testing.T) {
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		<-r.Kill
		return &handler.Result{Outcome: handler.Crashed}
	})
	inBubble(t, Config{GracefulTimeout: time.Second}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Second)
		begin := time.Now()
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != time.Second+stopGrace {
			t.Errorf("the stop took %s", took)
		}
		if rec := f.record(a); rec.State != accepted || rec.Attempts != 0 {
			t.Errorf("%s, %d attempts", rec.State.Name(), rec.Attempts)
		}
	})
}

// TestStoreFails checks that Run ends with the failure of the store, and that work
// continues from what was on disk.
func TestStoreFails(t *testing.T) {
	s, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		time.Sleep(time.Second)
		return &handler.Result{Outcome: handler.Success}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(100 * time.Millisecond)
		next := f.engine.Reopen()
		if err := <-f.done; err == nil {
			t.Error("Run returned nil")
		}
		f.cancel()
		f.cancel = nil
		if v := f.in.Accept(t.Context(), []Arrival{f.task()})[0]; v.Accepted() {
			t.Error("accepted what cannot be written (I8)")
		}
		f.store.Close()
		f.engine = next
		f.open()
		f.run()
		wait(time.Minute)
		f.expect(a, succeeded)
		if n := s.starts(a.Header.ID); n != 2 {
			t.Errorf("%d starts", n)
		}
	})
}

// TestInterruptedWithoutHandler checks that a start without an end whose handler is gone
// waits for the handler, and ends when its time has passed (I20).
func TestInterruptedWithoutHandler(t *testing.T) {
	_, spec := scripted(blocks)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Second)
		f.specs = nil
		f.crash()
		f.run()
		wait(30 * time.Minute)
		if rec := f.record(a); rec.State != running {
			t.Errorf("state %s", rec.State.Name())
		}
		wait(time.Hour)
		f.expect(a, deadLetter)
	})
}

// TestInterruptedIsAskedLater checks that a handler whose program cannot be started is asked
// about an interrupted task, sent to this node or granted to it, once it can be started, and
// that the task is not given up before its time is over (I7, I20).
func TestInterruptedIsAskedLater(t *testing.T) {
	suspended := func(f *fixture, on bool) { f.in.Suspend("work", map[bool]string{true: "no program"}[on]) }
	for _, tt := range []struct {
		name    string
		prevent func(f *fixture, s *script, on bool)
	}{
		{"no program", func(f *fixture, _ *script, on bool) { suspended(f, on) }},
		{"no descriptors for the program", func(_ *fixture, s *script, on bool) {
			withLock(func() {
				s.probe = func(*handler.Run) (found handler.ProbeResult) {
					withLock(func() { found = map[bool]handler.ProbeResult{true: handler.NotAsked, false: handler.Done}[on] })
					return found
				}
			})
		}},
		{"no descriptors for the body", func(f *fixture, _ *script, on bool) {
			f.bodies.mu.Lock()
			defer f.bodies.mu.Unlock()
			f.bodies.busy = map[bool]int{true: 1e6}[on]
		}},
	} {
		for _, back := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, back %v", tt.name, back), func(t *testing.T) {
				s, spec := scripted(blocks)
				s.probe = func(*handler.Run) handler.ProbeResult { return handler.Done }
				spec.OnCrash = OnCrashProbe
				inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
					sent, granted := f.task(withFile), f.task(withFile)
					for _, a := range []Arrival{sent, granted} {
						f.bodies.add(a.Header.ObjectFile(), []byte("body"))
					}
					f.accept(0, sent)
					f.run()
					wait(time.Second)
					f.crash()
					g := new(grants)
					f.in.Connect(g)
					tt.prevent(f, s, true)
					f.in.Lease(Leased{ID: granted.Header.ID, Kind: "work", Origin: home, Home: other, Envelope: granted.Envelope, Body: granted.Header.ObjectFile(), Interrupted: &LeaseStart{Attempt: 1}})
					f.run()
					wait(30 * time.Minute)
					if _, found := g.soFar(); f.record(sent).State != running || len(found) > 0 {
						t.Fatalf("it is %+v, and %v was found", f.record(sent), found)
					}
					want, found := deadLetter, handler.Unknown
					if back {
						want, found = succeeded, handler.Done
						tt.prevent(f, s, false)
						wait(2 * time.Minute)
					} else {
						wait(time.Hour)
					}
					f.expect(sent, want)
					if _, got := g.soFar(); len(got) != 1 || got[0] != found || s.starts(granted.Header.ID) > 0 {
						t.Errorf("about the granted one %v was found, with %d starts", got, s.starts(granted.Header.ID))
					}
				})
			})
		}
	}
}

// withFile makes the body of an arrival a stream of its bytes.
func withFile(a *Arrival) {
	size := len(a.Content.Body)
	sum := sha256.Sum256(a.Content.Body)
	a.Content.BodySize, a.Content.BodyDigest = uint64(size), sum[:]
	withStream(size)(a)
}
