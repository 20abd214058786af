package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

func (r *rig) mustCancel(a Arrival, hard bool, want proto.Code) Verdict {
	r.t.Helper()
	v := r.in.Cancel(context.Background(), home, a.Header.ID, hard)
	if v.Code != want {
		r.t.Fatalf("cancel: %s %q, want %s", v.Code.Name(), v.Detail, want.Name())
	}
	return v
}

// TestCancelBeforeStart holds that a task that waits ends at once and is never
// started (S34).
func TestCancelBeforeStart(t *testing.T) {
	s, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		r.mustCancel(a, false, 0)
		r.expect(a, cancelled)
		if v := r.mustCancel(a, false, proto.CodeDuplicate); v.State != cancelled {
			t.Errorf("again: %s", v.State.Name())
		}
		r.restart()
		r.run()
		r.accept(0, a)
		wait(time.Minute)
		if s.starts(a.Header.ID) != 0 {
			t.Error("it was started")
		}
	})
}

// TestCancelRunning holds that CANCELLED is said only after the handler has
// returned, soft and hard, and that a success stands.
func TestCancelRunning(t *testing.T) {
	tests := []struct {
		name string
		hard bool
		f    func(context.Context, *Run) *Result
		want proto.TaskState
	}{
		{"soft", false, func(ctx context.Context, _ *Run) *Result {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return &Result{Outcome: Crashed, Reason: errText(context.Cause(ctx))}
		}, cancelled},
		{"soft, it succeeds all the same", false, func(ctx context.Context, _ *Run) *Result {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			return &Result{Outcome: Success}
		}, succeeded},
		{"hard", true, func(ctx context.Context, r *Run) *Result {
			<-r.Kill
			if !errors.Is(context.Cause(ctx), ErrCancelled) {
				return &Result{Outcome: Success}
			}
			time.Sleep(3 * time.Second)
			return &Result{Outcome: Stopped}
		}, cancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, spec := does(tt.f)
			bubble(t, Config{}, []Spec{spec}, func(r *rig) {
				a := r.task()
				r.accept(0, a)
				r.run()
				wait(time.Second)
				r.mustCancel(a, tt.hard, 0)
				wait(2 * time.Second)
				if r.results.count() != 0 {
					t.Error("an end was told while the handler ran")
				}
				wait(2 * time.Second)
				r.expect(a, tt.want)
				if s.starts(a.Header.ID) != 1 {
					t.Errorf("%d starts", s.starts(a.Header.ID))
				}
			})
		})
	}
}

// TestCancelThenKill holds that a soft wish can be made hard.
func TestCancelThenKill(t *testing.T) {
	_, spec := does(func(_ context.Context, r *Run) *Result { <-r.Kill; return &Result{Outcome: Stopped} })
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		r.run()
		wait(time.Second)
		r.mustCancel(a, false, 0)
		wait(time.Minute)
		if r.results.count() != 0 {
			t.Fatal("ended")
		}
		if d := r.in.Running(); len(d) != 1 || d[0].Stopped != "cancelled" {
			t.Errorf("running: %+v", d)
		}
		r.mustCancel(a, true, 0)
		wait(time.Second)
		r.expect(a, cancelled)
	})
}

// TestCancelSurvivesCrash holds that a wish that was taken is kept: the task is
// not started again.
func TestCancelSurvivesCrash(t *testing.T) {
	s, spec := does(blocks)
	bubble(t, Config{GracefulTimeout: time.Second}, []Spec{spec}, func(r *rig) {
		s.f = func(_ context.Context, r *Run) *Result { <-r.Kill; return &Result{Outcome: Stopped} }
		a := r.task()
		r.accept(0, a)
		r.run()
		wait(time.Second)
		r.mustCancel(a, false, 0)
		r.crash()
		s.f = succeed
		r.run()
		wait(time.Minute)
		r.expect(a, cancelled)
		if s.starts(a.Header.ID) != 1 {
			t.Errorf("%d starts", s.starts(a.Header.ID))
		}
	})
}

// TestCancelWinsOverRetry holds that a wish that comes while a run that ran out
// of time ends is fulfilled at once, also when the handler is gone meanwhile.
func TestCancelWinsOverRetry(t *testing.T) {
	s, spec := does(func(ctx context.Context, _ *Run) *Result {
		<-ctx.Done()
		time.Sleep(10 * time.Second)
		return &Result{Outcome: Stopped}
	})
	spec.Timeout = time.Second
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		r.run()
		wait(5 * time.Second)
		r.mustCancel(a, false, 0)
		r.in.Unregister("work")
		wait(7 * time.Second)
		if o := r.expect(a, cancelled); s.starts(a.Header.ID) != 1 || len(o.Attempts) != 1 {
			t.Errorf("%d starts, attempts %v", s.starts(a.Header.ID), o.Attempts)
		}
	})
}

// TestCancelBetweenAttempts holds that a task that waits for its next attempt
// ends at once.
func TestCancelBetweenAttempts(t *testing.T) {
	_, spec := does(func(context.Context, *Run) *Result { return &Result{Outcome: Retry, Reason: "not yet"} })
	spec.MaxAttempts = 100
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		r.run()
		wait(10 * time.Second)
		if rec := r.record(a); rec.State != retrying {
			t.Fatalf("state %s", rec.State.Name())
		}
		r.mustCancel(a, false, 0)
		if o := r.expect(a, cancelled); !strings.Contains(o.Reason, "between") || len(o.Attempts) == 0 {
			t.Errorf("reason %q, attempts %v", o.Reason, o.Attempts)
		}
	})
}

// TestCancelBeforeArrival holds that a task that was cancelled before it arrived
// ends as CANCELLED when it does and is never started, also after a restart and
// without a handler for it; nothing of the wish is left then.
func TestCancelBeforeArrival(t *testing.T) {
	s, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a, b, c, d := r.task(), r.task(), r.task(withKind("else")), r.task()
		for _, x := range []Arrival{a, a, b, c} {
			r.mustCancel(x, false, 0)
		}
		r.run()
		r.accept(0, a)
		wait(time.Second)
		r.expect(a, cancelled)
		r.restart()
		r.accept(0, b, c)
		r.accept(0, b)
		r.crash()
		r.run()
		r.accept(0, d)
		wait(time.Minute)
		for _, x := range []Arrival{a, b, c} {
			r.expect(x, cancelled)
			r.accept(0, x)
			if s.starts(x.Header.ID) != 0 {
				t.Error("it was started")
			}
		}
		r.expect(d, succeeded)
		r.in.Settle(home, d.Header.Seq)
		wait(time.Second)
		if st := r.in.Status(); st.Ids != 0 || st.Backlog.Kept != 0 || len(st.Kinds) != 1 {
			t.Errorf("left: %+v", st)
		}
	})
}

// TestCancelOfAnotherBeforeArrival holds that nobody can bar what is not theirs.
func TestCancelOfAnotherBeforeArrival(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.in.Cancel(t.Context(), other, a.Header.ID, true)
		r.run()
		r.accept(0, a)
		wait(time.Second)
		r.expect(a, succeeded)
	})
}

// TestBarsAreForgotten holds that the wish for a task that never arrives is kept
// as long as a copy of it may live, and no longer.
func TestBarsAreForgotten(t *testing.T) {
	_, spec := does(succeed)
	m := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	bubble(t, Config{Clock: m.Clock()}, []Spec{spec}, func(r *rig) {
		a, b := r.task(withTTL(proto.MaxTTL)), r.task()
		r.mustCancel(a, false, 0)
		r.mustCancel(b, false, 0)
		r.run()
		m.Advance(proto.MaxTTL - time.Minute)
		wait(ageEvery + time.Second)
		r.accept(0, a)
		wait(time.Second)
		r.expect(a, cancelled)
		m.Advance(time.Hour)
		wait(ageEvery + time.Second)
		r.accept(proto.CodeExpired, b)
		if st := r.in.Status(); st.Ids != 0 || st.Backlog.Kept != 0 {
			t.Errorf("left: %+v", st)
		}
	})
}

func TestCancelOfAnother(t *testing.T) {
	_, spec := does(succeed)
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		a := r.task()
		r.accept(0, a)
		if v := r.in.Cancel(t.Context(), other, a.Header.ID, true); v.Code != proto.CodeDenied {
			t.Errorf("%s", v.Code.Name())
		}
		r.run()
		wait(time.Second)
		r.expect(a, succeeded)
	})
}
