package nuts

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/storetest"
)

// TestManyKeys holds S49: a store of 20 000 keys (BALEFIRE_KEYS sets the number, 5 000 000
// in the long form) opens again with all of them, tells how far it is, and takes the
// memory that was reckoned before; with less it is refused. In the long form it opens
// within a minute. What it takes is in the log of the test.
func TestManyKeys(t *testing.T) {
	dir, cfg := filepath.Join(t.TempDir(), "store"), quiet()
	cfg.SegmentSize = 0
	many := storetest.FillMany(t, func() (store.Engine, error) { return Open(dir, cfg) })
	needed := int64(many.Keys) * MemoryOf(storetest.ManyKey, storetest.ManyValue)
	before := storetest.HeapInUse()
	cfg.MaxMemory = needed / 2
	if _, err := Open(dir, cfg); !errors.Is(err, store.ErrNeedsMemory) {
		t.Errorf("S49: with half the memory it opens: %v", err)
	}
	if used := storetest.HeapInUse() - before; used > 16<<20 {
		t.Errorf("S49: to be refused takes %d MiB", used>>20)
	}
	told, last := 0, int64(0)
	cfg.MaxMemory = needed * 21 / 20
	cfg.Progress = func(done, total int64) { told, last = told+1, total-done }
	began := time.Now()
	d, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	took, used := time.Since(began), storetest.HeapInUse()-before
	t.Logf("counted: %d keys: open in %v, %d MiB of heap, %d MiB reckoned, progress told %d times", many.Keys, took.Round(time.Millisecond), used>>20, needed>>20, told)
	if told < 2 || last != 0 {
		t.Errorf("S49: progress was told %d times, and %d bytes were left", told, last)
	}
	if used > needed*5/4 {
		t.Errorf("S49: %d keys take %d bytes, %d were reckoned", many.Keys, used, needed)
	}
	many.Opened(t, took)
	if st := d.Stats(); st.Keys != int64(many.Keys) {
		t.Errorf("S49: %d keys of %d are there", st.Keys, many.Keys)
	}
}
