package settings

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/wire"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "7": 7, "7B": 7, "1KiB": 1024, "1 kB": 1000, "64MiB": 64 << 20, "1.5GB": 1_500_000_000, "0.5KiB": 512, "none": -1,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "1e", "1 XiB", "InfGiB", "9e30TiB", "1.5"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q = %d", text, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "90s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "0.5d": 12 * time.Hour, "1h30m": 90 * time.Minute,
	} {
		if got, err := wire.ParseDuration(text); err != nil || time.Duration(got) != want {
			t.Errorf("%q = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "7", "d", "-1d", "1d-5h", "NaNd", "1w", "99999d9999999h"} {
		if got, err := wire.ParseDuration(text); err == nil {
			t.Errorf("%q = %v", text, time.Duration(got))
		}
	}
}

// Formatting a value and parsing the result returns the same value.
func TestUnitsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "bytes"))
		if got, err := ParseBytes(b.String()); err != nil || got != b {
			t.Fatalf("%d is formatted as %s and parsed as %d, %v", b, b, got, err)
		}
		d := wire.Duration(rapid.Int64Range(0, int64(90000*time.Hour)).Draw(t, "duration"))
		if got, err := wire.ParseDuration(d.String()); err != nil || got != d {
			t.Fatalf("%d is formatted as %s and parsed as %d, %v", d, d, got, err)
		}
	})
}
