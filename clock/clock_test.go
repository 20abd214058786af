package clock

import (
	"testing"
	"time"
)

func TestManualMovesOnlyWhatItIsTold(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	m := NewManual(start)
	c := m.Clock()

	m.Advance(time.Second)
	m.Suspend(time.Minute)
	if got, want := c.Now(), start.Add(61*time.Second); !got.Equal(want) {
		t.Errorf("wall = %v, want %v", got, want)
	}
	if got := c.Mono(); got != time.Second {
		t.Errorf("mono = %v, want 1s: it stands still in suspend", got)
	}
	if got := c.Boot(); got != 61*time.Second {
		t.Errorf("boot = %v, want 61s: it runs on in suspend", got)
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
