package pebble_test

import (
	"io"
	"log/slog"
	"testing"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/store/storetest"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func onDisk(t testing.TB, dir string) store.Engine {
	t.Helper()
	d, err := pebble.Open(dir, pebble.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestStore(t *testing.T) { storetest.Run(t, onDisk) }

func BenchmarkStore(b *testing.B) { storetest.Bench(b, onDisk) }
