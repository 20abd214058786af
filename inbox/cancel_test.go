package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

func (f *fixture) mustCancel(a Arrival, hard bool, want proto.Code) Verdict {
	f.t.Helper()
	v := f.in.Cancel(context.Background(), home, a.Header.ID, hard)
	if v.Code != want {
		f.t.Fatalf("cancel: %s %q, want %s", v.Code.Name(), v.Detail, want.Name())
	}
	return v
}

// TestCancelBeforeStart checks that a waiting task ends at once and is never started (S34).
func TestCancelBeforeStart(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.mustCancel(a, false, 0)
		f.expect(a, cancelled)
		if v := f.mustCancel(a, false, proto.CodeDuplicate); v.State != cancelled {
			t.Errorf("again: %s", v.State.Name())
		}
		f.restart()
		f.run()
		f.accept(0, a)
		wait(time.Minute)
		if s.starts(a.Header.ID) != 0 {
			t.Error("it was started")
		}
	})
}

// TestCancelRunning checks that CANCELLED is reported only after the handler has returned,
// soft and hard, and that a success stands.
func TestCancelRunning(t *testing.T) {
	tests := []struct {
		name string
		hard bool
		f    func(context.Context, *handler.Run) *handler.Result
		want proto.TaskState
	}{
		{"soft", false, func(ctx context.Context, _ *handler.Run) *handler.Result {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return &handler.Result{Outcome: handler.Crashed, Reason: errText(context.Cause(ctx))}
		}, cancelled},
		{"soft, it succeeds all the same", false, func(ctx context.Context, _ *handler.Run) *handler.Result {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return &handler.Result{Outcome: handler.Success}
		}, succeeded},
		{"hard", true, func(ctx context.Context, r *handler.Run) *handler.Result {
			<-r.Kill
			if !errors.Is(context.Cause(ctx), handler.ErrCancelled) {
				return &handler.Result{Outcome: handler.Success}
			}
			time.Sleep(3 * time.Second)
			return &handler.Result{Outcome: handler.Cancelled}
		}, cancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, spec := scripted(tt.f)
			inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
				a := f.task()
				f.accept(0, a)
				f.run()
				wait(time.Second)
				f.mustCancel(a, tt.hard, 0)
				wait(2 * time.Second)
				if f.results.count() != 0 {
					t.Error("an end was reported while the handler ran")
				}
				wait(2 * time.Second)
				f.expect(a, tt.want)
				if s.starts(a.Header.ID) != 1 {
					t.Errorf("%d starts", s.starts(a.Header.ID))
				}
			})
		})
	}
}

// TestCancelThenKill checks that a soft cancel can be made hard.
func TestCancelThenKill(t *testing.T) {
	_, spec := scripted(func(_ context.Context, r *handler.Run) *handler.Result {
		<-r.Kill
		return &handler.Result{Outcome: handler.Cancelled}
	})
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Second)
		f.mustCancel(a, false, 0)
		wait(time.Minute)
		if f.results.count() != 0 {
			t.Fatal("ended")
		}
		if d := f.in.slots.running(); len(d) != 1 || d[0].why != stopCancel {
			t.Errorf("running: %+v", d)
		}
		f.mustCancel(a, true, 0)
		wait(time.Second)
		f.expect(a, cancelled)
	})
}

// TestCancelSurvivesCrash checks that an accepted cancel is durable: the task is not
// started again.
func TestCancelSurvivesCrash(t *testing.T) {
	s, spec := scripted(blocks)
	inBubble(t, Config{GracefulTimeout: time.Second}, []Spec{spec}, func(f *fixture) {
		s.f = func(_ context.Context, r *handler.Run) *handler.Result {
			<-r.Kill
			return &handler.Result{Outcome: handler.Cancelled}
		}
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(time.Second)
		f.mustCancel(a, false, 0)
		f.crash()
		s.f = succeed
		f.run()
		wait(time.Minute)
		f.expect(a, cancelled)
		if s.starts(a.Header.ID) != 1 {
			t.Errorf("%d starts", s.starts(a.Header.ID))
		}
	})
}

// TestCancelWinsOverRetry checks that a cancel that arrives while a timed-out run ends
// takes effect at once, even if the handler is gone.
func TestCancelWinsOverRetry(t *testing.T) {
	s, spec := scripted(func(ctx context.Context, _ *handler.Run) *handler.Result {
		<-ctx.Done()
		time.Sleep(10 * time.Second)
		return &handler.Result{Outcome: handler.Cancelled}
	})
	spec.Timeout = time.Second
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(5 * time.Second)
		f.mustCancel(a, false, 0)
		f.in.Unregister("work")
		wait(7 * time.Second)
		if o := f.expect(a, cancelled); s.starts(a.Header.ID) != 1 || len(o.Attempts) != 1 {
			t.Errorf("%d starts, attempts %v", s.starts(a.Header.ID), o.Attempts)
		}
	})
}

// TestCancelBetweenAttempts checks that a task that waits for its next attempt ends at
// once.
func TestCancelBetweenAttempts(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result {
		return &handler.Result{Outcome: handler.Retry, Reason: "not yet"}
	})
	spec.MaxAttempts = 100
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		f.run()
		wait(10 * time.Second)
		if rec := f.record(a); rec.State != retrying {
			t.Fatalf("state %s", rec.State.Name())
		}
		f.mustCancel(a, false, 0)
		if o := f.expect(a, cancelled); o.Cause != proto.TaskCancelledBetween || len(o.Attempts) == 0 {
			t.Errorf("because of %v, attempts %v", o.Cause, o.Attempts)
		}
	})
}

// TestCancelBeforeArrival checks that a task that was cancelled before it arrived ends as
// CANCELLED and is never started, even after a restart and without a handler for it; no
// tombstone is left then.
func TestCancelBeforeArrival(t *testing.T) {
	s, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a, b, c, d := f.task(), f.task(), f.task(withKind("else")), f.task()
		for _, x := range []Arrival{a, a, b, c} {
			f.mustCancel(x, false, 0)
		}
		f.run()
		f.accept(0, a)
		wait(time.Second)
		f.expect(a, cancelled)
		f.restart()
		f.accept(0, b, c)
		f.accept(0, b)
		f.crash()
		f.run()
		f.accept(0, d)
		wait(time.Minute)
		for _, x := range []Arrival{a, b, c} {
			f.expect(x, cancelled)
			f.accept(0, x)
			if s.starts(x.Header.ID) != 0 {
				t.Error("it was started")
			}
		}
		f.expect(d, succeeded)
		f.in.Settle(home, d.Header.Seq)
		wait(time.Second)
		if st := f.in.Status(); f.in.dedup.size() != 0 || st.Backlog.Kept != 0 || len(st.Kinds) != 1 {
			t.Errorf("left: %+v", st)
		}
	})
}

// TestCancelOfAnotherBeforeArrival checks that a node cannot cancel the task of another in
// advance.
func TestCancelOfAnotherBeforeArrival(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.in.Cancel(t.Context(), other, a.Header.ID, true)
		f.run()
		f.accept(0, a)
		wait(time.Second)
		f.expect(a, succeeded)
	})
}

// TestTombstonesAreForgotten checks that the cancel of a task that never arrives is kept as
// long as a copy may be accepted, and no longer.
func TestTombstonesAreForgotten(t *testing.T) {
	_, spec := scripted(succeed)
	m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	inBubble(t, Config{Clock: m.Clock()}, []Spec{spec}, func(f *fixture) {
		a, b := f.task(withTTL(proto.MaxTTL)), f.task()
		f.mustCancel(a, false, 0)
		f.mustCancel(b, false, 0)
		f.run()
		m.Advance(proto.MaxTTL - time.Minute)
		wait(ageEvery + time.Second)
		f.accept(0, a)
		wait(time.Second)
		f.expect(a, cancelled)
		f.in.Settle(home, a.Header.Seq)
		m.Advance(time.Hour)
		wait(ageEvery + time.Second)
		f.accept(proto.CodeExpired, b)
		if st := f.in.Status(); f.in.dedup.size() != 0 || st.Backlog.Kept != 0 {
			t.Errorf("left: %+v", st)
		}
	})
}

func TestCancelOfAnother(t *testing.T) {
	_, spec := scripted(succeed)
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		a := f.task()
		f.accept(0, a)
		if v := f.in.Cancel(t.Context(), other, a.Header.ID, true); v.Code != proto.CodeDenied {
			t.Errorf("%s", v.Code.Name())
		}
		f.run()
		wait(time.Second)
		f.expect(a, succeeded)
	})
}
