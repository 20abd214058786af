package store

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHorizon tests the decision on what has expired, reading by reading.
func TestHorizon(t *testing.T) {
	const at = int64(1_800_000_000_000)
	minute, hour := time.Minute.Milliseconds(), time.Hour.Milliseconds()
	steps := []struct {
		name string
		wall int64
		mono time.Duration
		want int64
	}{
		{"first", at, 0, at},
		{"forward", at + hour, 1, at + hour},
		{"a little back", at + hour - 5*minute, 2, at + hour},
		{"too far back", at + hour - 5*minute - 1, 3, nothingExpired},
		{"still", at, 4, nothingExpired},
		{"nearly right again", at + hour - minute, 5, at + hour},
		{"far back", 0, 6, nothingExpired},
		{"almost a day", 10, 5 + maxDoubt, nothingExpired},
		{"a day", 20, 6 + maxDoubt, 20},
		{"forward from there", 30, 7 + maxDoubt, 30},
	}
	var h expiryHorizon
	for _, s := range steps {
		if got := h.observe(s.wall, s.mono); got != s.want {
			t.Errorf("%s: horizon %d, want %d", s.name, got, s.want)
		}
	}
}

// TestHorizonNeverRunsAhead (I14): nothing expires before a reading of the wall clock has
// reached its expiry.
func TestHorizonNeverRunsAhead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h expiryHorizon
		var mono time.Duration
		highest := int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "readings") {
			wall := rapid.Int64Range(0, 1<<42).Draw(t, "wall")
			mono += time.Duration(rapid.Int64Range(0, int64(2*maxDoubt)).Draw(t, "mono"))
			highest = max(highest, wall)
			got := h.observe(wall, mono)
			if got > highest {
				t.Fatalf("horizon %d, the highest reading is %d", got, highest)
			}
			if got > wall+backLimit.Milliseconds() {
				t.Fatalf("horizon %d although the clock reads %d", got, wall)
			}
		}
	})
}

// FuzzUnwrap: a damaged record is an error or a value, never a panic.
func FuzzUnwrap(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, expiryLen))
	f.Add([]byte("\x00\x00\x01\x9a\x00\x00\x00\x00value"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		_, val, err := unwrap(raw)
		if (err == nil) != (len(raw) >= expiryLen) || err == nil && len(val) != len(raw)-expiryLen {
			t.Errorf("%x gives %x, %v", raw, val, err)
		}
	})
}

// TestReserveOf: the default reserve is the larger of 256 MiB and 5 %.
func TestReserveOf(t *testing.T) {
	tests := []struct{ configured, total, want int64 }{
		{0, 1 << 30, 256 << 20},
		{0, 100 << 30, 5 << 30},
		{1000, 100 << 30, 1000},
		{-1, 100 << 30, 0},
	}
	for _, tt := range tests {
		if got := reserveOf(tt.configured, tt.total); got != tt.want {
			t.Errorf("reserve of %d on %d = %d, want %d", tt.configured, tt.total, got, tt.want)
		}
	}
}
