package node

import (
	"testing"

	"github.com/balefire/balefire/datadir"
)

// TestLimitsFollowTheMemoryLimit: the default limits are proportional to the memory
// limit; explicit settings stay.
func TestLimitsFollowTheMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		memory  int64
		engine  string
		pending int
		bytes   int64
		keys    int
	}{
		{384 << 20, datadir.EngineNuts, 100_000, 256 << 20, 200_000},
		{384 << 20, datadir.EnginePebble, 100_000, 256 << 20, 1_000_000},
		{96 << 20, datadir.EngineNuts, 25_000, 64 << 20, 50_000},
		{-1, datadir.EngineNuts, 100_000, 256 << 20, 200_000},
		{1 << 50, datadir.EngineNuts, 10_000_000, 1 << 50 / 3 * 2, 10_000_000},
	} {
		l := Limits{}.withDefaults(tt.memory, tt.engine)
		if l.MaxPending != tt.pending || l.MaxInbox != tt.pending || l.MaxPendingBytes != tt.bytes || l.MaxInboxBytes != tt.bytes || l.MaxKeys != tt.keys {
			t.Errorf("with %d bytes on %s: %+v", tt.memory, tt.engine, l)
		}
	}
	if l := (Limits{MaxPending: 7, MaxKeys: 8}).withDefaults(96<<20, datadir.EngineNuts); l.MaxPending != 7 || l.MaxKeys != 8 {
		t.Errorf("explicit settings were changed: %+v", l)
	}
}
