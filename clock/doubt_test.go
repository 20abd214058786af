package clock

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const aDay = 24 * time.Hour

var doubtStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A testGuard is a guard over a wall clock with an error that the test sets.
type testGuard struct {
	*Guard
	m   *Manual
	off time.Duration
}

func newTestGuard() *testGuard {
	g := &testGuard{m: NewManual(doubtStart)}
	g.Guard = NewGuard(WithOffset(g.m.Clock(), func() time.Duration { return g.off }))
	g.Clock().Now()
	return g
}

// run lets d pass second by second and returns the largest error of the effective time.
func (g *testGuard) run(d time.Duration) (worst time.Duration) {
	for ; d > 0; d -= time.Second {
		g.m.Advance(time.Second)
		if off := g.Clock().Now().Sub(g.m.Clock().Now()); off.Abs() > worst.Abs() {
			worst = off
		}
	}
	return worst
}

// I14: a temporary jump changes nothing. A lasting one is believed after ten minutes, or
// when a peer confirms it. A small one causes no doubt.
func TestJumpsOfTheWallClock(t *testing.T) {
	for _, off := range []time.Duration{10 * time.Second, -10 * time.Second, time.Hour, -time.Hour, 10 * aDay, -10 * aDay, -20 * 365 * aDay} {
		small := off.Abs() < time.Minute
		for _, lasts := range []time.Duration{4 * time.Second, time.Minute} {
			t.Run(fmt.Sprint(off, " for ", lasts), func(t *testing.T) {
				g := newTestGuard()
				g.run(time.Hour)
				g.off = off
				worst := g.run(lasts)
				if doubted := g.Clock().Doubted(); doubted == small || small != (worst != 0) {
					t.Errorf("doubted %v, wrong by %v", doubted, worst)
				}
				g.off = 0
				if worst := g.run(time.Minute); worst != 0 || g.Clock().Doubted() {
					t.Errorf("afterwards: doubted %v, wrong by %v", g.Clock().Doubted(), worst)
				}
			})
		}
		t.Run(fmt.Sprint(off, " permanently"), func(t *testing.T) {
			g := newTestGuard()
			g.run(time.Hour)
			g.off = off
			if worst := g.run(BelieveAfter); g.Clock().Doubted() == small || small != (worst != 0) {
				t.Errorf("in the first ten minutes: doubted %v, wrong by %v", g.Clock().Doubted(), worst)
			}
			g.run(2 * time.Second)
			if g.Clock().Doubted() || g.Clock().Now().Sub(g.m.Clock().Now()) != off {
				t.Errorf("then: doubted %v, now %v", g.Clock().Doubted(), g.Clock().Now())
			}
		})
	}
}

// A peer that is refused contradicts a doubted clock, and never confirms it.
func TestRefusedPeerConfirmsNothing(t *testing.T) {
	g := newTestGuard()
	g.off = -90 * aDay
	g.run(time.Second)
	g.ObserveRefused(g.m.Clock().Now().Add(g.off))
	if !g.Clock().Doubted() || g.State().Denied {
		t.Fatalf("doubted %v, state %+v, after a peer that is as wrong as this node", g.Clock().Doubted(), g.State())
	}
	g.ObserveRefused(g.m.Clock().Now())
	if !g.State().Denied {
		t.Error("a peer that is right does not contradict the clock")
	}
}

// A peer that agrees with a doubted clock ends the doubt; one that disagrees prolongs it,
// for a day at most. A believed clock stays believed whatever peers report.
func TestPeerClock(t *testing.T) {
	g := newTestGuard()
	g.run(time.Minute)
	g.ObservePeer(g.m.Clock().Now().Add(aDay))
	if g.Clock().Doubted() {
		t.Fatal("a peer made a believed clock doubted")
	}
	g.off = time.Hour
	g.run(time.Second)
	g.ObservePeer(g.m.Clock().Now().Add(time.Hour + time.Second)) // as wrong as this one
	if g.Clock().Doubted() || !g.Clock().Now().Equal(g.m.Clock().Now().Add(time.Hour)) {
		t.Fatal("doubted although a peer agrees")
	}

	g.off = 0
	g.run(time.Second)
	for range 23 * 60 {
		if worst := g.run(time.Minute); worst != time.Hour || !g.Clock().Doubted() {
			t.Fatalf("doubted %v, wrong by %v, although a peer contradicts the clock", g.Clock().Doubted(), worst)
		}
		g.ObservePeer(g.m.Clock().Now().Add(time.Hour))
		if s := g.State(); !s.Denied || s.Left > BelieveAfter || s.Left <= 0 || s.Off != -time.Hour {
			t.Fatalf("state %+v", s)
		}
	}
	for range 90 {
		g.run(time.Minute)
		g.ObservePeer(g.m.Clock().Now().Add(time.Hour))
	}
	if g.Clock().Doubted() {
		t.Error("a peer keeps it doubted for more than a day")
	}

	g = newTestGuard()
	g.off = aDay
	g.run(time.Second)
	g.ObservePeer(g.m.Clock().Now())
	if g.run(BelieveAfter - time.Minute); !g.Clock().Doubted() {
		t.Error("believed although a peer just contradicted it")
	}
	if g.run(2 * time.Minute); g.Clock().Doubted() {
		t.Error("doubted ten minutes after the last message of a peer that left")
	}
}

// Small steps in one direction are followed, like slewing and leap seconds.
func TestADriftingClockIsFollowed(t *testing.T) {
	g := newTestGuard()
	for range 100 {
		g.off += time.Minute
		g.run(time.Minute)
	}
	if g.Clock().Doubted() || g.Clock().Now().Sub(g.m.Clock().Now()) != g.off {
		t.Errorf("doubted %v at %v", g.Clock().Doubted(), g.Clock().Now())
	}
}

// The stamp of an earlier start determines whether the clock is doubted at this one.
func TestClockAfterAStop(t *testing.T) {
	tests := []struct {
		name    string
		machine [2]string     // before and after
		away    time.Duration // real duration
		off     time.Duration // of the clock afterwards
		doubted bool
		wrong   time.Duration // error of the effective time
	}{
		{"a restart", [2]string{"m", "m"}, time.Minute, 0, false, 0},
		{"a restart after hours", [2]string{"m", "m"}, 8 * time.Hour, 0, false, 0},
		{"a restart after hours, with a wrong clock", [2]string{"m", "m"}, 8 * time.Hour, 240 * time.Hour, true, 0},
		{"a quick reboot", [2]string{"m", "n"}, 2 * time.Minute, 0, false, 0},
		{"off for 8 days", [2]string{"m", "n"}, 8 * aDay, 0, true, 0},
		{"off for 8 days, with a clock without a battery", [2]string{"m", "n"}, 8 * aDay, -40 * aDay, true, -8 * aDay},
		{"off for an hour, with a clock that is ahead", [2]string{"m", "n"}, time.Hour, 10 * aDay, true, 10 * aDay},
		{"a machine without a boot id", [2]string{"", ""}, time.Hour, 0, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			old := newTestGuard()
			old.raw.machine = tt.machine[0]
			old.run(time.Hour)
			stamp := old.Stamp()
			old.m.Advance(tt.away)
			boot := old.raw.boot()
			if tt.machine[0] != tt.machine[1] {
				boot = time.Second
			}
			g := &testGuard{m: NewManual(old.m.Clock().Now()), off: tt.off}
			g.m.boot = boot
			g.Guard = NewGuard(WithOffset(g.m.Clock(), func() time.Duration { return g.off }))
			g.raw.machine = tt.machine[1]
			if err := g.Resume(stamp); err != nil {
				t.Fatal(err)
			}
			worst := g.run(time.Minute)
			if g.Clock().Doubted() != tt.doubted || worst.Round(time.Minute) != tt.wrong {
				t.Errorf("doubted %v, wrong by %v", g.Clock().Doubted(), worst)
			}
			if g.off = 0; tt.doubted && tt.wrong != 0 { // NTP
				g.run(time.Second)
				if off := g.Clock().Now().Sub(g.m.Clock().Now()); off != 0 {
					t.Errorf("wrong by %v when the clock is right", off)
				}
			}
			if g.run(BelieveAfter + time.Second); g.Clock().Doubted() {
				t.Error("still doubted after being right for ten minutes")
			}
		})
	}
}

// I14: a clock at which this node's certificate cannot be valid is doubted from the first
// reading. Before the certificate time goes on from its beginning; after it by the clock,
// which is believed after a day without a peer that contradicts it. A right clock is
// believed at once.
func TestImplausibleClock(t *testing.T) {
	bounded := func(off time.Duration) *testGuard {
		g := &testGuard{m: NewManual(doubtStart), off: off}
		g.Guard = NewGuard(WithOffset(g.m.Clock(), func() time.Duration { return g.off }))
		g.Bound(doubtStart.Add(-91*aDay), doubtStart.Add(-aDay), doubtStart.Add(455*aDay))
		return g
	}
	t.Run("behind", func(t *testing.T) {
		g := bounded(-20 * 365 * aDay)
		if got := g.Clock().Now(); !got.Equal(doubtStart.Add(-aDay)) {
			t.Errorf("the time is %v", got)
		}
		if worst := g.run(2 * aDay); worst != -aDay || !g.State().Doubted || !g.State().Outside {
			t.Errorf("after two days the time is %v off, %+v", worst, g.State())
		}
		g.off = 0
		if worst := g.run(time.Second); worst != 0 || g.State().Outside {
			t.Errorf("a right clock is %v off, %+v", worst, g.State())
		}
	})
	t.Run("ahead", func(t *testing.T) {
		g := bounded(20 * 365 * aDay)
		for range 30 {
			g.run(time.Hour)
			g.ObservePeer(g.m.Clock().Now())
		}
		if s := g.State(); !s.Doubted || !s.Outside || !s.Denied || s.Left < 23*time.Hour {
			t.Errorf("contradicted: %+v", s)
		}
		g.off = 0
		if g.run(time.Second) != 0 || g.State().Doubted {
			t.Errorf("a right clock: %v, %+v", g.Clock().Now(), g.State())
		}
	})
	t.Run("ahead and alone", func(t *testing.T) {
		g := bounded(500 * aDay)
		if g.run(BelieveAnyway - time.Minute); !g.State().Doubted {
			t.Error("it is believed within a day")
		}
		g.run(2 * time.Minute)
		g.Extend(doubtStart.Add(900 * aDay)) // its certificate was renewed
		if g.run(aDay); g.State().Doubted {
			t.Errorf("after a day: %+v", g.State())
		}
	})
}

// FuzzStamp parses arbitrary stamps.
func FuzzStamp(f *testing.F) {
	g := newTestGuard()
	g.raw.machine = "m"
	f.Add(g.Stamp())
	f.Add([]byte(nil))
	f.Add(slices.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, stamp []byte) {
		g := newTestGuard()
		g.raw.machine = "m"
		if err := g.Resume(stamp); (err == nil) != (len(stamp) >= stampSize) {
			t.Fatal(err)
		}
		g.run(BelieveAfter + 2*time.Second)
		if g.Clock().Doubted() || !g.Clock().Now().Equal(g.m.Clock().Now()) {
			t.Errorf("at %v, and not %v", g.Clock().Now(), g.m.Clock().Now())
		}
	})
}
