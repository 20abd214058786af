package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestManualMovesOnlyOnRequest(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := NewManual(start)
	c := m.Clock()

	m.Advance(time.Second)
	m.Suspend(time.Minute)
	if got, want := c.Now(), start.Add(61*time.Second); !got.Equal(want) {
		t.Errorf("wall = %v, want %v", got, want)
	}
	if got := c.Mono(); got != time.Second {
		t.Errorf("mono = %v, want 1s: it stops during suspend", got)
	}
	if got := c.Boot(); got != 61*time.Second {
		t.Errorf("boot = %v, want 61s: it continues during suspend", got)
	}

	m.SetWall(start.AddDate(-10, 0, 0))
	if got := c.Mono(); got != time.Second {
		t.Errorf("mono moved to %v with a wall clock jump", got)
	}
	if got := c.Now(); !got.Equal(start.AddDate(-10, 0, 0)) {
		t.Errorf("wall = %v after the jump", got)
	}
}

func TestSystemClockGoesForward(t *testing.T) {
	for name, c := range map[string]Clock{"system": System(), "runtime": Runtime()} {
		mono, boot := c.Mono(), c.Boot()
		for c.Mono() == mono {
		}
		if c.Boot() < boot {
			t.Errorf("%s: boot time went back", name)
		}
		if d := time.Since(c.Now()); d < -time.Minute || d > time.Minute {
			t.Errorf("%s: wall is %v away", name, d)
		}
	}
	if !(Clock{}).IsZero() || System().IsZero() {
		t.Error("IsZero")
	}
}

func TestBootTimeIsReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, suspended := 0, time.Duration(0)
		start := time.Now()
		b := newBootReader(start, func() time.Duration { asked++; return time.Since(start) + suspended })
		const calls = 200
		last := time.Duration(0)
		for range calls {
			now := b.now()
			if now < last-bootSlack {
				t.Fatalf("boot time went back from %v to %v", last, now)
			}
			last = now
			time.Sleep(bootEvery / 10)
		}
		if asked != calls/10 {
			t.Errorf("boot time was read %d times in %d calls, want once each %v", asked, calls, bootEvery)
		}

		suspended = time.Hour
		time.Sleep(bootEvery)
		if now := b.now(); now < time.Hour {
			t.Errorf("boot time = %v does not include the hour of suspension", now)
		}
	})
}

func TestWithSuspend(t *testing.T) {
	m := NewManual(time.Unix(1000, 0))
	var slept time.Duration
	c := WithSuspend(m.Clock(), func() time.Duration { return slept })
	slept = time.Hour
	m.Advance(time.Second)
	if got := c.Now().Sub(time.Unix(1000, 0)); got != time.Hour+time.Second {
		t.Errorf("wall moved by %v", got)
	}
	if c.Boot() != time.Hour+time.Second || c.Mono() != time.Second {
		t.Errorf("boot %v, mono %v", c.Boot(), c.Mono())
	}
}

func TestWithOffset(t *testing.T) {
	m := NewManual(time.Unix(1000, 0))
	var by time.Duration
	c := WithOffset(m.Clock(), func() time.Duration { return by })
	by = -time.Hour
	m.Advance(time.Second)
	if got := c.Now().Sub(time.Unix(1000, 0)); got != time.Second-time.Hour {
		t.Errorf("wall moved by %v", got)
	}
	if c.Boot() != time.Second || c.Mono() != time.Second {
		t.Errorf("boot %v, mono %v", c.Boot(), c.Mono())
	}
}
