package pebble

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// TestManyKeys holds S49 on Pebble: a store of 20 000 keys (BALEFIRE_KEYS sets the
// number, 5 000 000 in the long form) opens again with all of them in memory that does
// not grow with their number; in the long form within a minute. What it takes is in the
// log of the test.
func TestManyKeys(t *testing.T) {
	n, long := 20_000, false
	if k, err := strconv.Atoi(os.Getenv("BALEFIRE_KEYS")); err == nil && k > 0 {
		n, long = k, true
	}
	dir := filepath.Join(t.TempDir(), "store")
	cfg := Config{CacheSize: 8 << 20, MemTableSize: 2 << 20, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	open := func() *DB {
		t.Helper()
		d, err := Open(dir, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open()
	const group = 1000
	key := func(i int) []byte { return fmt.Appendf(nil, "S%064d", i) } // as long as an origin and a digest
	for i := 0; i < n; i += group {
		ops := make([]store.Op, min(group, n-i))
		for j := range ops {
			ops[j] = store.Op{Bucket: store.Dedup, Key: key(i + j), Val: make([]byte, 48)}
		}
		if err := d.Commit(ops); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	before, began := heapInUse(), time.Now()
	d = open()
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
	used := heapInUse() - before
	t.Logf("%d keys: open in %v, %d MiB of heap when all were read", n, took.Round(time.Millisecond), used>>20)
	if found != n {
		t.Errorf("S49: %d keys of %d are there", found, n)
	}
	if used > 48<<20 {
		t.Errorf("S49: %d keys take %d MiB", n, used>>20)
	}
	if long && took > time.Minute {
		t.Errorf("S49: it took %v to open", took)
	}
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
