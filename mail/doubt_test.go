package mail

import (
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
