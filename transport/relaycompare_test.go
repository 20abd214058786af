package transport

import (
	"testing"
	"time"
)

// TestComparisonsAreRare checks that circuits are compared only while work waits, at once
// when it begins to wait longer, and ever more rarely while no relay is better.
func TestComparisonsAreRare(t *testing.T) {
	if trainPings*fullPing > 64<<10 {
		t.Errorf("a train has %d bytes", trainPings*fullPing)
	}
	w := new(relayWatch)
	if w.due(time.Minute, 0, 0) || w.due(time.Minute, compareAfter/2, compareAfter/2) {
		t.Error("compared although no work waits")
	}
	count := func(from, to, late time.Duration) (n int) {
		for now := from; now < to; now += time.Second {
			if w.due(now, time.Minute, late) {
				n++
				w.decide(now, switchMargin, false)
			}
		}
		return n
	}
	if n := count(0, time.Hour, time.Second); n < 10 || n > 20 {
		t.Errorf("%d comparisons in an hour in which no relay is better", n)
	}
	if n := count(time.Hour, time.Hour+2*time.Second, lateAfter); n != 1 {
		t.Errorf("%d comparisons when acknowledgments begin to be late, want 1", n)
	}
	if n := count(time.Hour+2*time.Second, 2*time.Hour, time.Minute); n > 15 {
		t.Errorf("%d comparisons in an hour in which no relay carries anything", n)
	}
}

// TestRelayIsLeftOnce checks that a small gain must be found twice, that a path changes at
// most once a minute, and that a circuit that hardly carries anything is left sooner.
func TestRelayIsLeftOnce(t *testing.T) {
	tests := []struct {
		name   string
		at     time.Duration
		gain   float64
		broken bool
		want   bool
	}{
		{"nothing better", 0, 0.05, false, false},
		{"a little better, once", 10 * time.Second, 0.2, false, false},
		{"not better in between", 20 * time.Second, 0, false, false},
		{"a little better, once more", 25 * time.Second, 0.2, false, false},
		{"again", 30 * time.Second, 0.2, false, true},
		{"clearly better, but too soon", 50 * time.Second, 0.5, false, false},
		{"broken", 55 * time.Second, 0.5, true, true},
		{"broken, but too soon", 60 * time.Second, 0.5, true, false},
		{"clearly better", 2 * time.Minute, 0.5, false, true},
	}
	w := new(relayWatch)
	for _, tt := range tests {
		if got := w.decide(tt.at, tt.gain, tt.broken); got != tt.want {
			t.Errorf("%s: moves %v", tt.name, got)
		}
	}
}

// TestRelayIsLeftToTheOtherSide checks that the relay is left to the other side while that
// sends, and for longer than between two of its comparisons.
func TestRelayIsLeftToTheOtherSide(t *testing.T) {
	if comparesFor <= compareLongest+compareAfter {
		t.Errorf("left to the other side for %v, which compares every %v", comparesFor, compareLongest)
	}
	tests := []struct {
		name          string
		now, compared time.Duration
		bytes         uint64
		want          bool
	}{
		{"never compared", time.Minute, 0, 1, false},
		{"compared", time.Minute, time.Minute, 2, true},
		{"no work since", time.Minute, time.Minute, 2, false},
		{"compared some minutes ago", time.Minute + comparesFor - 1, time.Minute, 3, true},
		{"compared long ago", time.Minute + comparesFor, time.Minute, 4, false},
	}
	o := new(theirChoice)
	for _, tt := range tests {
		if got := o.holds(tt.now, tt.bytes, tt.compared); got != tt.want {
			t.Errorf("%s: holds %v", tt.name, got)
		}
	}
}
