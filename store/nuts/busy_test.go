package nuts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// Readers of empty and full buckets, snapshots and figures during commits and
// compactions, right after an open: what the race detector is for.
func TestEverythingAtOnce(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Close()
	d := open(t, dir)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(f func(i int) error) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		loop(func(i int) error {
			b := store.Buckets()[i%len(store.Buckets())]
			_, err := d.Scan(b, []byte("5"), nil, 20)
			return err
		})
		loop(func(i int) error {
			_, _, err := d.Get(store.Flows, []byte(fmt.Sprint(i)))
			return err
		})
	}
	loop(func(int) error {
		if st := d.Stats(); st.Engine != "nuts" {
			return fmt.Errorf("stats %+v", st)
		}
		return nil
	})
	tmp := t.TempDir()
	loop(func(i int) error { return d.Snapshot(filepath.Join(tmp, fmt.Sprint(i))) })
	for i := range 120 {
		commit(t, d, put(store.Inbox, fmt.Sprint(i), strings.Repeat("x", 5000)), del(store.Inbox, fmt.Sprint(i-20)))
		if i%40 == 39 {
			if err := d.Compact(); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	wg.Wait()
	if n := len(dump(t, d)); n != 20 {
		t.Errorf("%d records, want 20", n)
	}
	snaps, err := os.ReadDir(tmp)
	if err != nil || len(snaps) == 0 {
		t.Fatalf("snapshots: %v, %v", snaps, err)
	}
	if r, err := Check(filepath.Join(tmp, snaps[len(snaps)-1].Name())); err != nil || !r.Clean() {
		t.Errorf("Check of the last snapshot = %+v, %v", r, err)
	}
}

// Compactions and commits do not wait for a snapshot, however long its copy takes; the
// generation that it copies is removed when it is complete.
func TestCompactionDuringSnapshot(t *testing.T) {
	dir, snap := t.TempDir(), filepath.Join(t.TempDir(), "snap")
	d := open(t, dir)
	commit(t, d, put(store.Meta, "k", "v"))
	want := dump(t, d)
	copying := 0
	d.cfg.at = func(point string) {
		if point != "snapshot: copying" {
			return
		}
		for copying < 2 {
			copying++
			if err := d.Compact(); err != nil {
				t.Fatal(err)
			}
			commit(t, d, put(store.Meta, "k", fmt.Sprint("w", copying)))
		}
		if _, err := os.Stat(genDir(dir, 1)); err != nil {
			t.Errorf("the generation that is copied: %v", err)
		}
	}
	if err := d.Snapshot(snap); err != nil || copying != 2 {
		t.Fatalf("snapshot: %v after %d compactions", err, copying)
	}
	same(t, dump(t, open(t, snap)), want)
	same(t, dump(t, d), map[string]string{"Meta/k": "w2"})
	if gens, err := filepath.Glob(filepath.Join(dir, genPrefix+"*")); err != nil || !slices.Equal(gens, []string{genDir(dir, 3)}) {
		t.Errorf("generations %v, %v; want the third alone", gens, err)
	}
}

// TestChurn holds S52 for what this store keeps: seven simulated days of puts and deletes take bounded space:
// the engine says when it is time and Compact gives the space back. BALEFIRE_CHURN
// sets the number of records that come and go in them; 60 000 by default.
func TestChurn(t *testing.T) {
	total := 60_000
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_CHURN")); err == nil && n > 0 {
		total = n
	}
	const live, group, val = 2000, 200, 2048
	man := clock.NewManual(time.Unix(1e9, 0))
	cfg := quiet()
	cfg.SegmentSize, cfg.Clock = 0, man.Clock()
	d, err := Open(t.TempDir(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var peak int64
	compactions := 0
	for i := 0; i < total; i += group {
		var ops []store.Op
		for j := i; j < i+group; j++ {
			ops = append(ops, store.Op{Bucket: store.Inbox, Key: fmt.Appendf(nil, "%012d", j), Val: make([]byte, val)})
			if j >= live {
				ops = append(ops, store.Op{Bucket: store.Inbox, Key: fmt.Appendf(nil, "%012d", j-live), Delete: true})
			}
		}
		if err := d.Commit(ops); err != nil {
			t.Fatal(err)
		}
		man.Advance(7 * 24 * time.Hour / time.Duration(total/group))
		st := d.Stats()
		peak = max(peak, st.DiskBytes)
		if !st.CompactDue {
			continue
		}
		compactions++
		if err := d.Compact(); err != nil {
			t.Fatal(err)
		}
		if st := d.Stats(); st.Keys != live || st.DiskBytes > 2*live*val || st.CompactDue {
			t.Fatalf("after a compaction %+v", st)
		}
	}
	t.Logf("counted: %d records in seven days, %d compactions, at most %d MiB", total, compactions, peak>>20)
	if limit := int64(4*live*val + 128<<20); peak > limit || compactions == 0 {
		t.Errorf("the log reached %d bytes (limit %d) with %d compactions", peak, limit, compactions)
	}
}

func TestCompactDue(t *testing.T) {
	tests := []struct {
		name       string
		size, live int64
		ago        time.Duration
		want       bool
	}{
		{"empty", 0, 0, time.Hour, false},
		{"small, nothing alive", 64 << 20, 0, time.Hour, false},
		{"large, nothing alive", 65 << 20, 0, time.Hour, true},
		{"three times what is alive", 90 << 20, 30 << 20, time.Hour, false},
		{"more than that", 91 << 20, 30 << 20, time.Hour, true},
		{"too soon", 91 << 20, 30 << 20, 9 * time.Minute, false},
		{"huge", 1<<30 + 1, 30 << 20, time.Second, true},
		{"huge and alive", 2 << 30, 1 << 30, time.Hour, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := compactDue(tt.size, tt.live, tt.ago); got != tt.want {
				t.Errorf("compactDue = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestStale(t *testing.T) {
	large := &liveCount{at: position{0, 100}, size: 100 << 20, keys: 1e6}
	tests := []struct {
		name string
		last *liveCount
		pos  position
		size int64
		want bool
	}{
		{"never counted", nil, position{}, 0, true},
		{"nothing written", large, position{0, 100}, 100 << 20, false},
		{"a little written", large, position{0, 200}, 101 << 20, false},
		{"a quarter more", large, position{0, 300}, 126 << 20, true},
		{"few keys", &liveCount{keys: 10}, position{0, 1}, 1, true},
		{"few keys, nothing written", &liveCount{keys: 10}, position{}, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.last.stale(tt.pos, tt.size); got != tt.want {
				t.Errorf("stale = %v, want %v", got, tt.want)
			}
		})
	}
}

// A copy of a store in use, made file by file in the order of their names as
// backup programs do, opens with all that was acknowledged when it was begun,
// unless a segment of the log began while it was made: a program that listed the
// folder before has not got that one. It may also be refused as damaged, when the end of the
// log was read in parts: of two transactions written meanwhile it may have the later one only.
func TestCopyOfStoreInUse(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	var wg sync.WaitGroup
	stop, acked := make(chan struct{}), new(atomic.Int64)
	wg.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := d.Commit([]store.Op{put(store.Inbox, fmt.Sprint(i), strings.Repeat("x", 3000)), put(store.Meta, "n", fmt.Sprint(i))}); err != nil {
				t.Error(err)
				return
			}
			acked.Store(int64(i))
		}
	})
	tmp := t.TempDir()
	for i := range 5 {
		for acked.Load() < int64(30*i) {
			runtime.Gosched()
		}
		var before int
		var c *DB
		for try := 0; c == nil; try++ {
			before = int(acked.Load())
			to, files := filepath.Join(tmp, fmt.Sprint(i, "-", try)), names(t, dir)
			if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(files, names(t, dir)) {
				continue
			}
			var err error
			if c, err = Open(to, quiet()); err != nil && !errors.Is(err, store.ErrCorrupt) {
				t.Fatal(err)
			}
		}
		val, _, err := c.Get(store.Meta, []byte("n"))
		n, _ := strconv.Atoi(string(val))
		if err != nil || n < before || len(dump(t, c)) != n+min(n, 1) {
			t.Errorf("the copy is at transaction %d with %d records, %d was acknowledged before", n, len(dump(t, c)), before)
		}
		c.Close()
	}
	close(stop)
	wg.Wait()
}

// names returns the files below dir.
func names(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	return files
}

// S50: opening a store tells how far it is, and never goes back or beyond.
func TestProgress(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	for i := range 60 {
		commit(t, d, put(store.Inbox, fmt.Sprint(i), strings.Repeat("x", 20_000)))
	}
	d.Close()
	var calls [][2]int64
	cfg := quiet()
	cfg.Progress = func(done, total int64) { calls = append(calls, [2]int64{done, total}) }
	d, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i, c := range calls {
		if c[0] > c[1] || i > 0 && (c[0] < calls[i-1][0] || c[1] != calls[0][1]) {
			t.Errorf("call %d of %v", i, calls)
		}
	}
	if len(calls) < 5 || calls[len(calls)-1][0] != calls[0][1] {
		t.Errorf("progress was %v", calls)
	}
}
