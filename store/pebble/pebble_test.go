package pebble_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/store/storetest"
	"github.com/balefire/balefire/store/storetest/crash"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func open(dir string) (store.Engine, error) { return pebble.Open(dir, pebble.Config{Logger: quiet}) }

func onDisk(t testing.TB, dir string) store.Engine {
	t.Helper()
	d, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestMain(m *testing.M) { crash.Main(m, map[string]crash.Opener{"pebble": open}) }

// The contract that every engine keeps.
func TestStore(t *testing.T) { storetest.Run(t, onDisk) }

// TestKill (I1, S01): after kill -9 at any moment the store opens by itself and
// holds every acknowledged commit whole.
func TestKill(t *testing.T) {
	tests := []struct {
		name string
		cfg  crash.Config
	}{
		{"small commits", crash.Config{Rounds: 10}},
		{"1 MiB commits and compactions", crash.Config{Rounds: 6, Ops: 500, Value: 4000, Window: 4, CompactEvery: 15}},
		{"32 writers through the front", crash.Config{Rounds: 10, Writers: 32, CompactEvery: 20}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Engine = "pebble"
			crash.Run(t, tt.cfg)
		})
	}
}

func BenchmarkStore(b *testing.B) { storetest.Bench(b, onDisk) }
