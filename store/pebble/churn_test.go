package pebble

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// TestChurn holds S52 on Pebble: records that come and go, as those of tasks do, take
// bounded space, although nobody compacts but Pebble itself, in the background.
// BALEFIRE_CHURN sets the number of records that come and go; 10 000 by default. What they take
// meanwhile depends on how soon Pebble gets to compact, so only a run with that number judges it.
func TestChurn(t *testing.T) {
	total, judged := 10_000, false
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_CHURN")); err == nil && n > 0 {
		total, judged = n, true
	}
	const live, group, val = 500, 50, 2048
	d, err := Open(t.TempDir(), Config{MemTableSize: 64 << 10, CacheSize: 4 << 20, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	random := rand.NewChaCha8([32]byte{}) // zeros would be compressed
	var peak int64
	for i := 0; i < total; i += group {
		var ops []store.Op
		for j := i; j < i+group; j++ {
			v := make([]byte, val)
			_, _ = random.Read(v)
			ops = append(ops, store.Op{Bucket: store.Inbox, Key: fmt.Appendf(nil, "%012d", j), Val: v})
			if j >= live {
				ops = append(ops, store.Op{Bucket: store.Inbox, Key: fmt.Appendf(nil, "%012d", j-live), Delete: true})
			}
		}
		if err := d.Commit(ops); err != nil {
			t.Fatal(err)
		}
		peak = max(peak, d.Stats().DiskBytes)
	}
	// Each commit is more than a table in memory. Writes wait while 24 tables are not merged
	// yet, or four logs; what was merged is there once more until it is removed.
	const limit = int64(2*(24*group*val+2*live*val) + 4*group*val)
	t.Logf("counted: %d MiB were written, at most %d KiB were on the disk, the limit is %d KiB", total*val>>20, peak>>10, limit>>10)
	if judged && peak > limit {
		t.Errorf("S52: the store reached %d bytes, the limit is %d", peak, limit)
	}
	for began := time.Now(); d.Stats().DiskBytes > limit; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("S52: %d bytes are left, the limit is %d", d.Stats().DiskBytes, limit)
		}
	}
	left, err := d.Scan(store.Inbox, nil, nil, live+1)
	if err != nil || len(left) != live {
		t.Errorf("%d records, want %d: %v", len(left), live, err)
	}
}
