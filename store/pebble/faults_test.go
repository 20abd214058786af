package pebble_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/pebble"
	"github.com/balefire/balefire/store/storetest"
)

// small makes flushes and compactions happen within a test. A disk that gives no
// answer is waited for longer than a busy machine takes.
func small(fs vfs.FS) pebble.Config {
	return pebble.Config{FS: fs, MemTableSize: 64 << 10, CacheSize: 1 << 20, Logger: quiet, CommitTimeout: 2 * time.Second, CloseTimeout: 300 * time.Millisecond}
}

// sound is small for a disk that answers: it is waited for however busy the machine is.
func sound(fs vfs.FS) pebble.Config {
	c := small(fs)
	c.CommitTimeout, c.CloseTimeout = 0, 0
	return c
}

func mustOpen(t testing.TB, fs vfs.FS) *pebble.DB {
	t.Helper()
	d, err := pebble.Open("db", sound(fs))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// pair is the n-th commit: two records in two buckets and a delete of an
// earlier one, which are there together or not at all.
func pair(n int) []store.Op {
	key, val := fmt.Appendf(nil, "%06d", n), []byte(strings.Repeat(fmt.Sprint(n), 100))
	ops := []store.Op{{Bucket: store.Inbox, Key: key, Val: val}, {Bucket: store.Dedup, Key: key, Val: []byte{1}}}
	if n >= 5 {
		ops = append(ops, store.Op{Bucket: store.Inbox, Key: fmt.Appendf(nil, "%06d", n-5), Delete: true})
	}
	return ops
}

// wantCommits asserts that d holds exactly the first n commits for some n in
// [least, most], and returns it.
func wantCommits(t testing.TB, d *pebble.DB, least, most int) int {
	t.Helper()
	lines := storetest.Dump(t, d)
	got := 0
	for _, l := range lines {
		if strings.HasPrefix(l, "Dedup") {
			got++
		}
	}
	if got < least || got > most {
		t.Fatalf("%d commits are there, want %d to %d", got, least, most)
	}
	if !slices.Equal(lines, afterCommits(t, got)) {
		t.Fatalf("the records are not those of the first %d commits: %.200q", got, lines)
	}
	return got
}

// afterCommits is what an engine holds after n commits, one after the other.
func afterCommits(t testing.TB, n int) []string {
	d := mustOpen(t, vfs.NewMem())
	for i := range n {
		if err := d.Commit(pair(i)); err != nil {
			t.Fatal(err)
		}
	}
	defer d.Close()
	return storetest.Dump(t, d)
}

// TestPowerCut (I1): after a power cut at any moment, with any part of what was
// not synced on the disk, every acknowledged commit is there and none is there
// in part.
func TestPowerCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	fs := vfs.NewCrashableMem()
	acked := 0
	for round := range 12 {
		d := mustOpen(t, fs)
		acked = wantCommits(t, d, acked, acked+1)
		var done atomic.Int64
		done.Store(int64(acked))
		var cut *vfs.MemFS
		var wg sync.WaitGroup
		stop := acked + 20 + rng.IntN(200)
		started := make(chan struct{})
		least := 0
		wg.Go(func() {
			<-started
			least = int(done.Load())
			cut = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 25 * (round % 5), RNG: rng})
		})
		at := stop - 1 - rng.IntN(10)
		for n := acked; n < stop; n++ {
			if n == at {
				close(started)
			}
			if err := d.Commit(pair(n)); err != nil {
				t.Fatal(err)
			}
			done.Store(int64(n + 1))
		}
		wg.Wait()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		c := mustOpen(t, cut)
		acked = wantCommits(t, c, least, stop)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		fs = cut
	}
}

// TestEveryIOError: whichever write, sync or rename fails, and for good, commits
// end in an error in bounded time, and a power cut then loses nothing that was
// acknowledged.
//
// The memtable is too large to be flushed here: a log that cannot be closed when
// the next one begins makes Pebble v2.1.7 unlock a mutex twice (db.go, rotateWAL),
// which ends the process and which nothing can catch. The node then starts again.
// Faults of tables are those of TestDiskFull.
func TestEveryIOError(t *testing.T) {
	const commits = 400
	large := func(c pebble.Config) pebble.Config { c.MemTableSize = 8 << 20; return c }
	var counter errorfs.Counter
	counter.Injector = errorfs.InjectorFunc(func(errorfs.Op) error { return nil })
	run := func(fs *vfs.MemFS, inject errorfs.Injector, cfg func(vfs.FS) pebble.Config) (acked int, err error) {
		d, err := pebble.Open("db", large(cfg(errorfs.Wrap(fs, inject))))
		if err != nil {
			return 0, err
		}
		for ; acked < commits && err == nil; acked++ {
			err = d.Commit(pair(acked))
		}
		if err != nil {
			acked--
		}
		d.Close() // may say that it is stuck
		return acked, err
	}
	var ops atomic.Int64
	count := errorfs.InjectorFunc(func(op errorfs.Op) error { ops.Add(1); return nil })
	if acked, err := run(vfs.NewCrashableMem(), count, sound); acked != commits || err != nil {
		t.Fatalf("without faults: %d commits, %v", acked, err)
	}
	total := int(ops.Load())
	for n := 0; n < total; n += 1 + n/12 + total/150 {
		var seen, hit atomic.Int64
		fs := vfs.NewCrashableMem()
		acked, err := run(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if int(seen.Add(1)) <= n || op.Kind.ReadOrWrite() == errorfs.OpIsRead {
				return nil
			}
			hit.Add(1)
			return syscall.EIO
		}), small)
		if err == nil && acked != commits {
			t.Errorf("fault %d: no error after %d commits", n, acked)
		}
		d, openErr := pebble.Open("db", sound(fs.CrashClone(vfs.CrashCloneCfg{})))
		if openErr != nil {
			t.Errorf("fault %d (%d hits, %v): open after a power cut: %v", n, hit.Load(), err, openErr)
			continue
		}
		wantCommits(t, d, acked, acked+1)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDiskFull (S47): on a full disk a commit fails in bounded time and says
// why; what was acknowledged is there when space is back, and then the folder
// opens again.
func TestDiskFull(t *testing.T) {
	for name, only := range map[string]string{"all writes": "", "tables": ".sst", "log": ".log"} {
		t.Run(name, func(t *testing.T) {
			var full atomic.Bool
			mem := vfs.NewCrashableMem()
			fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasSuffix(op.Path, only) && op.Kind != errorfs.OpRemove {
					return syscall.ENOSPC
				}
				return nil
			}))
			d, err := pebble.Open("db", small(fs))
			if err != nil {
				t.Fatal(err)
			}
			acked := 0
			for begin := time.Now(); err == nil; acked++ {
				full.Store(acked >= 50)
				if err = d.Commit(pair(acked)); time.Since(begin) > 2*time.Minute {
					t.Fatalf("%d commits on a full disk, %v", acked, err)
				}
			}
			acked--
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("the commit that failed says %v, want ENOSPC", err)
			}
			if err := d.Commit(pair(acked)); only == ".log" && err == nil {
				t.Error("a commit after the failure returned nil")
			}
			if err := d.Close(); err != nil && !errors.Is(err, pebble.ErrStuck) && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("close: %v", err)
			}
			full.Store(false)
			after := mustOpen(t, mem.CrashClone(vfs.CrashCloneCfg{}))
			wantCommits(t, after, acked, acked+2)
			if err := after.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOpenOnFullDisk: an open that Pebble would wait in forever is an error.
func TestOpenOnFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	d := mustOpen(t, mem)
	for n := range 300 {
		if err := d.Commit(pair(n)); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	var full atomic.Bool
	full.Store(true)
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove {
			return syscall.ENOSPC
		}
		return nil
	}))
	if _, err := pebble.Open("db", small(fs)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("open on a full disk: %v", err)
	}
	full.Store(false)
	d, err := pebble.Open("db", sound(fs))
	if err != nil {
		t.Fatalf("open with space again: %v", err)
	}
	wantCommits(t, d, 300, 300)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestReadersSeeOnlyWhatIsDurable (I8): while the fsync of a commit runs, its
// records are not visible.
func TestReadersSeeOnlyWhatIsDurable(t *testing.T) {
	var hold atomic.Bool
	syncing, proceed := make(chan struct{}, 1), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && hold.CompareAndSwap(true, false) {
			syncing <- struct{}{}
			<-proceed
		}
		return nil
	}))
	d, err := pebble.Open("db", sound(fs))
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("k")
	see := func(when, want string) {
		t.Helper()
		val, _, err := d.Get(store.Meta, key)
		page, err2 := d.Scan(store.Meta, nil, nil, 1)
		if err != nil || err2 != nil || string(val) != want || len(page) != 1 || string(page[0].Val) != want {
			t.Errorf("%s: get %q, scan %q, want %q; %v", when, val, page, want, errors.Join(err, err2))
		}
	}
	put := func(val string) error {
		return d.Commit([]store.Op{{Bucket: store.Meta, Key: key, Val: []byte(val)}})
	}
	if err := put("old"); err != nil {
		t.Fatal(err)
	}
	hold.Store(true)
	committed := make(chan error)
	go func() { committed <- put("new") }()
	<-syncing
	see("during the fsync", "old")
	close(proceed)
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	see("after it", "new")
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestBitFlips (S48): with one bit flipped in any file a store either refuses
// with ErrCorrupt, at open or at read, or holds all commits; only a flip in the
// last record of the log or manifest, which a torn end looks like, costs that one.
func TestBitFlips(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	cfg := sound(vfs.Default)
	d, err := pebble.Open(good, cfg)
	if err != nil {
		t.Fatal(err)
	}
	const commits = 300
	for n := range commits {
		if err := d.Commit(pair(n)); err != nil {
			t.Fatal(err)
		}
	}
	crashed := filepath.Join(dir, "crashed") // as a kill would leave it
	if err := d.Snapshot(crashed); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	files, err := os.ReadDir(crashed)
	if err != nil {
		t.Fatal(err)
	}
	refused, whole, partly := 0, 0, 0
	for _, f := range files {
		info, err := f.Info()
		if err != nil || info.Size() == 0 || f.Name() == "LOCK" || strings.HasPrefix(f.Name(), "OPTIONS") {
			continue
		}
		for range 25 {
			bad := filepath.Join(dir, "bad")
			os.RemoveAll(bad)
			if err := os.CopyFS(bad, os.DirFS(crashed)); err != nil {
				t.Fatal(err)
			}
			at := flip(t, filepath.Join(bad, f.Name()), rng)
			n, err := count(bad, cfg)
			switch {
			case errors.Is(err, store.ErrCorrupt):
				refused++
			case err != nil:
				t.Errorf("%s at %d: refused with %v, want ErrCorrupt", f.Name(), at, err)
			case n == commits:
				whole++
			case n == commits-1 && strings.HasSuffix(f.Name(), ".log"):
				partly++
			case at > int(info.Size())-100 && strings.HasPrefix(f.Name(), "MANIFEST"):
				partly++
			default:
				t.Errorf("%s at %d of %d: opens with %d of %d commits", f.Name(), at, info.Size(), n, commits)
			}
		}
	}
	t.Logf("%d refused, %d unharmed, %d lost the last record", refused, whole, partly)
	if refused == 0 {
		t.Error("no flipped bit was found")
	}
}

// flip flips one random bit of a file and returns where.
func flip(t *testing.T, file string, rng *rand.Rand) int {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := rng.IntN(len(data))
	data[at] ^= 1 << rng.IntN(8)
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// count opens dir and counts the commits in it; an error is that of the open or
// of a read.
func count(dir string, cfg pebble.Config) (n int, err error) {
	d, err := pebble.Open(dir, cfg)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	if _, err := d.Scan(store.Inbox, nil, nil, store.MaxScan); err != nil {
		return 0, err
	}
	page, err := d.Scan(store.Dedup, nil, nil, store.MaxScan)
	return len(page), err
}

// TestLostMarker: the marker that names the manifest is an empty file, which a tool that
// copies a backup may leave out. Without it the folder is refused: opened as a new store,
// it would lose its tables.
func TestLostMarker(t *testing.T) {
	const commits = 20
	for _, name := range []string{"log alone", "tables"} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			d := mustOpen(t, fs)
			for n := range commits {
				if err := d.Commit(pair(n)); err != nil {
					t.Fatal(err)
				}
			}
			if name == "tables" {
				if err := d.Compact(); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(d.Snapshot("copy"), d.Close(), fs.RemoveAll("db"), fs.Rename("copy", "db")); err != nil {
				t.Fatal(err)
			}
			files, err := fs.List("db")
			if err != nil {
				t.Fatal(err)
			}
			tables := slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, ".sst") })
			marker := slices.IndexFunc(files, func(f string) bool { return strings.HasPrefix(f, "marker.manifest.") })
			if tables != (name == "tables") || marker < 0 {
				t.Fatalf("the files are %q", files)
			}
			path := fs.PathJoin("db", files[marker])
			if err := fs.Remove(path); err != nil {
				t.Fatal(err)
			}
			if _, err := pebble.Open("db", sound(fs)); !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("open without the marker: %v, want ErrCorrupt", err)
			}
			f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			d = mustOpen(t, fs)
			wantCommits(t, d, commits, commits)
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSecondOpenIsLocked(t *testing.T) {
	dir := t.TempDir()
	d := onDisk(t, dir)
	if _, err := pebble.Open(dir, pebble.Config{Logger: quiet}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("second open: %v, want ErrLocked", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := onDisk(t, dir).Close(); err != nil {
		t.Error(err)
	}
}

func TestClosedEngine(t *testing.T) {
	d := mustOpen(t, vfs.NewMem())
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := d.Get(store.Meta, []byte("k")); err == nil {
		t.Error("get from a closed engine returned nil")
	}
	if _, err := d.Scan(store.Meta, nil, nil, 1); err == nil {
		t.Error("scan of a closed engine returned nil")
	}
}
