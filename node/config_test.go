package node

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/memory"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/wire"
)

// TestLimitsFollowTheMemoryLimit: the default limits are proportional to the memory
// limit; explicit settings stay.
func TestLimitsFollowTheMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		memory  int64
		engine  string
		pending int
		bytes   settings.Bytes
		keys    int
		done    int
		dead    int
	}{
		{384 << 20, datadir.EngineNuts, 100_000, 256 << 20, 200_000, 50_000, 10_000},
		{384 << 20, datadir.EnginePebble, 100_000, 256 << 20, 1_000_000, 50_000, 10_000},
		{-1, datadir.EngineNuts, 100_000, 256 << 20, 200_000, 50_000, 10_000},
		{96 << 20, datadir.EngineNuts, 25_000, 64 << 20, 50_000, 12_500, 2500},
		{1 << 50, datadir.EngineNuts, 10_000_000, 1 << 50 / 3 * 2, 10_000_000, 10_000_000, 10_000_000},
	} {
		l := computed(settings.Default().Limits, tt.memory, tt.engine)
		if l.MaxPending != tt.pending || l.MaxInbox != tt.pending || l.MaxPendingBytes != tt.bytes || recordBytes(tt.memory) != int64(tt.bytes) || l.MaxKeys != tt.keys ||
			l.DoneCount != tt.done || l.DeadCount != tt.dead {
			t.Errorf("with %d bytes on %s: %+v", tt.memory, tt.engine, l)
		}
	}
	if l := computed(settings.Limits{MaxPending: 7, MaxKeys: 8, DoneCount: 9, DeadCount: 10}, 96<<20, datadir.EngineNuts); l.MaxPending != 7 || l.MaxKeys != 8 || l.DoneCount != 9 || l.DeadCount != 10 {
		t.Errorf("explicit settings were changed: %+v", l)
	}
}

// TestComputedDefaultsAreDocumented checks that the numbers in the texts of the limits that
// follow the memory limit are those that the node computes.
func TestComputedDefaultsAreDocumented(t *testing.T) {
	nuts, pebble := computed(settings.Limits{}, memory.MaxDefault, datadir.EngineNuts), computed(settings.Limits{}, memory.MaxDefault, datadir.EnginePebble)
	for _, f := range settings.Fields(reflect.TypeFor[settings.Settings]()) {
		text, ok := strings.CutSuffix(f.Tag.Get("defaultText"), " with 384 MiB of memory_limit")
		if !ok {
			continue
		}
		want := f.Text(&settings.Settings{Limits: nuts})
		if other := f.Text(&settings.Settings{Limits: pebble}); other != want {
			want += " (pebble: " + other + ")"
		}
		if text != want {
			t.Errorf("%s is %s, documented is %s", f.Key, want, text)
		}
	}
}

// TestConfigWithoutDefaultsIsRefused checks that a Config that was not made by
// DefaultConfig, and one with a setting that is not allowed, opens nothing.
func TestConfigWithoutDefaultsIsRefused(t *testing.T) {
	slow := DefaultConfig(t.TempDir())
	slow.Mesh.ProbeInterval = 0
	bare := Config{Dir: t.TempDir()}
	bare.Net.Listen = testListen
	for want, cfg := range map[string]Config{
		"the Config has no defaults: make it with node.DefaultConfig": bare,
		"mesh.probe_interval: 0s is too small: 100ms to 1m":           slow,
	} {
		if _, err := New(cfg); !errors.Is(err, wire.ErrInvalid) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestHelloNamesTheVersion checks that peers are sent the version of this node.
func TestHelloNamesTheVersion(t *testing.T) {
	if c, err := startAlone(t).netConfig(); err != nil || c.Software != "balefire-node dev" {
		t.Errorf("the software is %q, %v", c.Software, err)
	}
}
