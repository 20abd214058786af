package pebble

import (
	"io"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/storetest"
)

// TestManyKeys holds S49 on Pebble: a store of 20 000 keys (BALEFIRE_KEYS sets the
// number, 5 000 000 in the long form) opens again with all of them in memory that does
// not grow with their number; in the long form within a minute. What it takes is in the
// log of the test.
func TestManyKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	cfg := Config{CacheSize: 8 << 20, MemTableSize: 2 << 20, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	many := storetest.FillMany(t, func() (store.Engine, error) { return Open(dir, cfg) })
	before, began := storetest.HeapInUse(), time.Now()
	d, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	took, found := time.Since(began), 0
	for start := []byte(nil); ; {
		page, err := d.Scan(store.Dedup, start, nil, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if found += len(page); len(page) < 1000 {
			break
		}
		start = append(page[len(page)-1].Key, 0)
	}
	used := storetest.HeapInUse() - before
	t.Logf("counted: %d keys: open in %v, %d MiB of heap when all were read", many.Keys, took.Round(time.Millisecond), used>>20)
	if found != many.Keys {
		t.Errorf("S49: %d keys of %d are there", found, many.Keys)
	}
	if used > 48<<20 {
		t.Errorf("S49: %d keys take %d MiB", many.Keys, used>>20)
	}
	many.Opened(t, took)
}
