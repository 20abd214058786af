package mailbox

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/wire"
)

// I14: time in which the machine sleeps counts to the time limit of a handler.
func TestHandlerLimitCountsSuspendedTime(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		causes := make(chan error, 1)
		f.programs.run = func(ctx context.Context, _ *handler.Run, _ string) *handler.Result {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return &handler.Result{Outcome: handler.Fail}
		}
		f.handle(wire.MailHandler{Timeout: wire.Duration(30 * time.Minute)})
		f.mailbox("raw", func(s *wire.MailboxSettings) { s.Lease = ptr(wire.Duration(12 * time.Hour)) })
		f.sendRaw(wire.Mail{})
		time.Sleep(time.Second)
		f.slept.Store(int64(29 * time.Minute))
		time.Sleep(58 * time.Second)
		select {
		case err := <-causes:
			t.Fatalf("it was stopped early: %v", err)
		default:
		}
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case err := <-causes:
			if !errors.Is(err, handler.ErrTimeout) {
				t.Error(err)
			}
		default:
			t.Error("it runs after its time")
		}
	})
}

// A handler that was suspended with the machine for longer than its lease keeps its mail.
func TestSuspendCostsAHandlerNoAttempt(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var runs atomic.Int32
		f.programs.run = func(ctx context.Context, _ *handler.Run, _ string) *handler.Result {
			runs.Add(1)
			select {
			case <-ctx.Done():
				return &handler.Result{Outcome: handler.Fail}
			case <-time.After(3 * time.Minute):
				return &handler.Result{Outcome: handler.Success}
			}
		}
		f.handle(wire.MailHandler{})
		f.mailbox("raw", nil)
		f.sendRaw(wire.Mail{})
		for range 4 {
			time.Sleep(33 * time.Second)
			f.slept.Add(int64(time.Minute))
		}
		time.Sleep(time.Minute)
		if v := f.box("raw"); v.Ended.Done != 1 || v.Waiting != 0 || runs.Load() != 1 {
			t.Errorf("%d runs, %+v", runs.Load(), v)
		}
	})
}

// What remains of the lease of a mail of another node counts suspended time, as its home does.
func TestLeaseAwayCountsSuspendedTime(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		h := newFakeHome(f)
		r, session := h.session(10)
		h.must(h.deliver(session, 2, 100)) // for 30 s
		for _, tt := range []struct{ slept, left time.Duration }{{20 * time.Second, 10 * time.Second}, {40 * time.Second, 0}} {
			f.slept.Store(int64(tt.slept))
			given, err := r.Next(t.Context(), 1)
			f.must(err)
			if left := given[0].Until.Sub(f.cfg.Clock.Now()); left != tt.left {
				t.Errorf("after a suspend of %s %s are left, want %s", tt.slept, left, tt.left)
			}
		}
	})
}
