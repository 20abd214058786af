package mail

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// I14: by a doubted clock no mail ends, and mail of other nodes waits at them (BUSY), even if
// the home starts with it.
func TestDoubtedClockEndsNoMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: homeID})
		f.mailbox("agent:a")
		f.send("agent:a", "ends in an hour")
		begin := time.Now()
		slept := 50 * 365 * 24 * time.Hour
		guard := clock.NewGuard(clock.WithSuspend(clock.Runtime(), func() time.Duration { return slept }))
		guard.Bound(begin, begin, begin.AddDate(1, 0, 0))
		f.cfg.Clock = guard.Clock()
		f.restart()
		arrive := func() *proto.Bundled {
			t.Helper()
			m := bundleOf(t, f.cfg.Clock.Now(), 1, 1)
			m.Generation = 0
			a, err := f.Arrive(originID, m, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := a.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		time.Sleep(time.Minute)
		if i := f.info("agent:a"); i.Waiting != 1 || !f.cfg.Clock.Doubted() {
			t.Errorf("doubted %v: %+v", f.cfg.Clock.Doubted(), i)
		}
		if got := arrive(); got.GetCode() != proto.CodeBusy {
			t.Errorf("mail of another node: %v, want BUSY", got)
		}
		f.stop()
		slept += clock.BelieveAnyway
		f.start()
		time.Sleep(time.Minute)
		if i := f.info("agent:a"); i.EndedAs(box.Expired) != 1 || f.cfg.Clock.Doubted() {
			t.Errorf("doubted %v: %+v", f.cfg.Clock.Doubted(), i)
		}
		if got := arrive(); got.GetCode() != proto.CodeOK {
			t.Errorf("mail of another node: %v, want OK", got)
		}
	})
}

// Mail that is done while a home doubts its clock is kept as long as any other, counted from the
// end of the doubt.
func TestMailDoneUnderADoubtedClockIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{Self: homeID})
		f.stop()
		var ahead atomic.Int64
		guard := clock.NewGuard(clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(ahead.Load()) }))
		guard.Bound(time.Now(), time.Now(), time.Now().AddDate(1, 0, 0))
		f.cfg.Clock = guard.Clock()
		f.start()
		if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:a", Kind: box.Mailbox, Keep: time.Hour}); err != nil {
			t.Fatal(err)
		}
		kept := func() (n int) {
			if err := f.View(t.Context(), func(s *box.State) {
				for range s.Kept(1, 0) {
					n++
				}
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		f.send("agent:a", "done in doubt")
		ahead.Store(int64(2 * 365 * 24 * time.Hour))
		time.Sleep(2 * time.Hour)
		d, _ := f.next(f.read("agent:a", 1), 1)
		f.settle("agent:a", d[0], box.Ack, proto.CodeOK)
		if !f.cfg.Clock.Doubted() {
			t.Fatal("the clock is not doubted")
		}
		ahead.Store(0)
		time.Sleep(55 * time.Minute)
		if n := kept(); n != 1 {
			t.Errorf("%d mails are kept for most of an hour after the doubt", n)
		}
		time.Sleep(15 * time.Minute)
		if n := kept(); n != 0 {
			t.Errorf("%d mails are kept for more than an hour after the doubt", n)
		}
	})
}
