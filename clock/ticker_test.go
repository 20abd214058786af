package clock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestTickersTickTogether makes tickers and timers of several periods at odd moments: all fire
// at multiples of their periods from the phase of the clock, none before its period is over.
func TestTickersTickTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Runtime()
		c.phase = 4321 * time.Millisecond
		var moments []time.Duration
		for i, d := range []time.Duration{time.Second, time.Second, 2 * time.Second, 5 * time.Second} {
			time.Sleep(time.Duration(i) * 137 * time.Millisecond)
			made := c.Mono()
			tick := c.Ticker(d)
			defer tick.Stop()
			for range 3 {
				<-tick.C
				moments = append(moments, c.Mono()+c.phase)
			}
			if first := moments[len(moments)-3] - made - c.phase; first < d || first > 2*d {
				t.Errorf("the first tick of %v comes after %v", d, first)
			}
			if at := moments[len(moments)-1]; at%d != 0 || moments[len(moments)-2] != at-d {
				t.Errorf("a ticker of %v ticks at %v", d, moments[len(moments)-3:])
			}
		}
		if slices.ContainsFunc(moments, func(at time.Duration) bool { return at%time.Second != 0 }) {
			t.Errorf("ticks at %v", moments)
		}
	})
}

func TestStoppedTickerIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Runtime()
		time.Sleep(300 * time.Millisecond)
		tick := c.Ticker(time.Second)
		time.Sleep(100 * time.Millisecond)
		tick.Stop() // before it is aligned
		select {
		case <-tick.C:
			t.Error("a stopped ticker ticks")
		case <-time.After(time.Minute):
		}
	})
}

func TestUntilTheNextMultiple(t *testing.T) {
	for _, c := range []struct{ now, period, want time.Duration }{
		{0, 10, 10}, {3, 10, 7}, {5, 10, 15}, {7, 10, 13}, {9, 10, 11}, {20, 10, 10},
	} {
		at := Clock{mono: func() time.Duration { return c.now }}
		if got := at.Until(c.period); got != c.want {
			t.Errorf("at %d a wait of %d is %d, want %d", c.now, c.period, got, c.want)
		}
	}
}

func TestUntilTheMultipleAfter(t *testing.T) {
	for _, c := range []struct{ now, wait, want time.Duration }{
		{0, 0, 0}, {0, 1, 10}, {3, 0, 7}, {3, 7, 7}, {3, 8, 17}, {9, -5, 1}, {20, 100, 100},
	} {
		at := Clock{mono: func() time.Duration { return c.now }}
		if got := at.UntilAfter(c.wait, 10); got != c.want {
			t.Errorf("at %d the tick after %d is in %d, want %d", c.now, c.wait, got, c.want)
		}
	}
}
