package nuts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// TestManyKeys holds S49: a store of 20 000 keys (BALEFIRE_KEYS sets the number, 5 000 000
// in the long form) opens again with all of them, tells how far it is, and takes the
// memory that was reckoned before; with less it is refused. In the long form it opens
// within a minute. What it takes is in the log of the test.
func TestManyKeys(t *testing.T) {
	n, long := 20_000, false
	if k, err := strconv.Atoi(os.Getenv("BALEFIRE_KEYS")); err == nil && k > 0 {
		n, long = k, true
	}
	dir, cfg := filepath.Join(t.TempDir(), "store"), quiet()
	cfg.SegmentSize = 0
	d, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	const group, val = 1000, 48
	key := func(i int) []byte { return fmt.Appendf(nil, "S%064d", i) } // as long as an origin and a digest
	for i := 0; i < n; i += group {
		ops := make([]store.Op, min(group, n-i))
		for j := range ops {
			ops[j] = store.Op{Bucket: store.Dedup, Key: key(i + j), Val: make([]byte, val)}
		}
		commit(t, d, ops...)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	needed := int64(n) * MemoryOf(65, val)
	before := heapInUse()
	cfg.MaxMemory = needed / 2
	if _, err := Open(dir, cfg); !errors.Is(err, store.ErrNeedsMemory) {
		t.Errorf("S49: with half the memory it opens: %v", err)
	}
	if used := heapInUse() - before; used > 16<<20 {
		t.Errorf("S49: to be refused takes %d MiB", used>>20)
	}
	told, last := 0, int64(0)
	cfg.MaxMemory = needed * 21 / 20
	cfg.Progress = func(done, total int64) { told, last = told+1, total-done }
	began := time.Now()
	if d, err = Open(dir, cfg); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	took, used := time.Since(began), heapInUse()-before
	t.Logf("%d keys: open in %v, %d MiB of heap, %d MiB reckoned, progress told %d times", n, took.Round(time.Millisecond), used>>20, needed>>20, told)
	if told < 2 || last != 0 {
		t.Errorf("S49: progress was told %d times, and %d bytes were left", told, last)
	}
	if used > needed*5/4 {
		t.Errorf("S49: %d keys take %d bytes, %d were reckoned", n, used, needed)
	}
	if long && took > time.Minute {
		t.Errorf("S49: it took %v to open", took)
	}
	if st := d.Stats(); st.Keys != int64(n) {
		t.Errorf("S49: %d keys of %d are there", st.Keys, n)
	}
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
