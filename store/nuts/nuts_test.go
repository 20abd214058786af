package nuts

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nutsdb/nutsdb"

	"github.com/balefire/balefire/store"
)

// quiet is the config of most tests: small segments, no log.
func quiet() Config {
	return Config{SegmentSize: 256 << 10, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func open(t testing.TB, dir string) *DB {
	t.Helper()
	d, err := Open(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func put(b store.Bucket, key, val string) store.Op {
	return store.Op{Bucket: b, Key: []byte(key), Val: []byte(val)}
}

func del(b store.Bucket, key string) store.Op {
	return store.Op{Bucket: b, Key: []byte(key), Delete: true}
}

func commit(t testing.TB, d *DB, ops ...store.Op) {
	t.Helper()
	if err := d.Commit(ops); err != nil {
		t.Fatal(err)
	}
}

// dump returns everything in d as "Bucket/key" to value.
func dump(t testing.TB, d *DB) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, b := range store.Buckets() {
		for start := []byte(nil); ; {
			pairs, err := d.Scan(b, start, nil, 1000)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range pairs {
				all[fmt.Sprintf("%s/%s", b, p.Key)] = string(p.Val)
			}
			if len(pairs) < 1000 {
				break
			}
			start = after(pairs[len(pairs)-1].Key)
		}
	}
	return all
}

func same(t testing.TB, got, want map[string]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got[k] != want[k] {
			t.Errorf("%s = %.40q, want %.40q", k, got[k], want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			t.Errorf("%s = %.40q should not be there", k, got[k])
		}
	}
	t.FailNow()
}

// I1: what Commit acknowledged is there after a reopen, over many segments and
// generations.
func TestReopenFindsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	want := make(map[string]string)
	d := open(t, dir)
	for i := range 600 {
		key, val := fmt.Sprintf("key-%03d", i%97), fmt.Sprintf("%d-%s", i, bytes.Repeat([]byte{'x'}, i))
		ops := []store.Op{put(store.Inbox, key, val), put(store.Dedup, key, "")}
		want["Inbox/"+key], want["Dedup/"+key] = val, ""
		if i%5 == 4 {
			gone := fmt.Sprintf("key-%03d", (i-3)%97)
			ops = append(ops, del(store.Inbox, gone), del(store.Flows, "never was"))
			delete(want, "Inbox/"+gone)
		}
		commit(t, d, ops...)
		if i%150 == 149 {
			if err := d.Compact(); err != nil {
				t.Fatal(err)
			}
		}
		if i%70 == 69 {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = open(t, dir)
			same(t, dump(t, d), want)
		}
	}
	same(t, dump(t, d), want)
	if d.gen.num != 5 {
		t.Errorf("generation %d after four compactions, want 5", d.gen.num)
	}
	files, err := filepath.Glob(filepath.Join(dir, "gen-*"))
	if err != nil || len(files) != 1 {
		t.Errorf("generations on disk: %v, %v; want one", files, err)
	}
}

// The last change of a key in one transaction counts.
func TestSameKeyTwiceInOneCommit(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	commit(t, d, put(store.Meta, "a", "0"), put(store.Meta, "b", "0"))
	commit(t, d,
		put(store.Meta, "a", "1"), del(store.Meta, "a"),
		del(store.Meta, "b"), put(store.Meta, "b", "2"),
		put(store.Meta, "c", "3"), del(store.Meta, "c"), put(store.Meta, "c", "4"),
		del(store.Meta, "c"), del(store.Meta, "c"))
	want := map[string]string{"Meta/b": "2"}
	same(t, dump(t, d), want)
	d.Close()
	same(t, dump(t, open(t, dir)), want)
}

func TestSlicesAreNotShared(t *testing.T) {
	d := open(t, t.TempDir())
	key, val := []byte("key"), []byte("value")
	if err := d.Commit([]store.Op{{Bucket: store.Meta, Key: key, Val: val}}); err != nil {
		t.Fatal(err)
	}
	copy(key, "XXX")
	copy(val, "XXXXX")
	got, ok, err := d.Get(store.Meta, []byte("key"))
	if err != nil || !ok || string(got) != "value" {
		t.Fatalf("Get = %q, %v, %v after the caller reused its slices", got, ok, err)
	}
	copy(got, "XXXXX")
	pairs, err := d.Scan(store.Meta, nil, nil, 10)
	if err != nil || len(pairs) != 1 {
		t.Fatalf("Scan = %v, %v", pairs, err)
	}
	copy(pairs[0].Key, "XXX")
	copy(pairs[0].Val, "XXXXX")
	_ = append(pairs[0].Key, "XXXXX"...)
	same(t, dump(t, d), map[string]string{"Meta/key": "value"})
}

func TestRefusals(t *testing.T) {
	d := open(t, t.TempDir())
	commit(t, d, put(store.Meta, "k", "v"))
	tests := []struct {
		name string
		op   store.Op
	}{
		{"no key", put(store.Meta, "", "v")},
		{"long key", store.Op{Bucket: store.Meta, Key: make([]byte, maxKey+1)}},
		{"value larger than a segment", store.Op{Bucket: store.Meta, Key: []byte("k"), Val: make([]byte, 256<<10)}},
		{"long value", store.Op{Bucket: store.Meta, Key: []byte("k"), Val: make([]byte, maxVal+1)}},
		{"bucket 0", put(0, "k", "v")},
		{"unknown bucket", put(store.Meta+1, "k", "v")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := d.Commit([]store.Op{put(store.Meta, "k", "w"), tt.op}); err == nil {
				t.Fatal("Commit took it")
			}
			same(t, dump(t, d), map[string]string{"Meta/k": "v"})
		})
	}
	if _, _, err := d.Get(99, []byte("k")); err == nil {
		t.Error("Get of an unknown bucket succeeded")
	}
	if _, err := d.Scan(99, nil, nil, 1); err == nil {
		t.Error("Scan of an unknown bucket succeeded")
	}
	commit(t, d, put(store.Meta, "k", "still works"))
}

func TestClosed(t *testing.T) {
	d := open(t, t.TempDir())
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := d.Get(store.Meta, []byte("k"))
	_, err2 := d.Scan(store.Meta, nil, nil, 1)
	for _, err := range []error{err, err2, d.Commit(nil), d.Compact(), d.Snapshot(filepath.Join(t.TempDir(), "s"))} {
		if !errors.Is(err, errClosed) {
			t.Errorf("err = %v, want closed", err)
		}
	}
	if st := d.Stats(); st.Keys != -1 || st.Engine != "nuts" {
		t.Errorf("Stats = %+v", st)
	}
}

// A second opener, also one in the same process, neither gets in nor repairs
// what the first is writing.
func TestSecondOpenIsRefused(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	commit(t, d, put(store.Meta, "k", "v"))
	for range 2 {
		if _, err := Open(dir, quiet()); !errors.Is(err, store.ErrLocked) {
			t.Fatalf("err = %v, want store.ErrLocked", err)
		}
	}
	commit(t, d, put(store.Meta, "k", "w"))
	d.Close()
	same(t, dump(t, open(t, dir)), map[string]string{"Meta/k": "w"})
}

func TestSnapshotOpensAsAStore(t *testing.T) {
	tmp := t.TempDir()
	d := open(t, filepath.Join(tmp, "a"))
	want := make(map[string]string)
	for i := range 200 {
		key, val := fmt.Sprint(i), string(bytes.Repeat([]byte{byte(i)}, 1000))
		commit(t, d, put(store.Done, key, val))
		want["Done/"+key] = val
	}
	copyDir := filepath.Join(tmp, "b")
	if err := d.Snapshot(copyDir); err != nil {
		t.Fatal(err)
	}
	commit(t, d, put(store.Done, "later", ""))
	if err := d.Snapshot(copyDir); err == nil {
		t.Error("a snapshot over a snapshot succeeded")
	}
	if r, err := Check(copyDir); err != nil || !r.Clean() || r.Transactions != 200 {
		t.Errorf("Check = %+v, %v", r, err)
	}
	b := open(t, copyDir)
	same(t, dump(t, b), want)
	commit(t, b, put(store.Done, "own", ""))
	same(t, dump(t, d), func() map[string]string { w := maps.Clone(want); w["Done/later"] = ""; return w }())
}

func TestFolderOfAnotherEngine(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "OPTIONS-000003"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, quiet()); !errors.Is(err, store.ErrOtherEngine) {
		t.Fatalf("err = %v, want store.ErrOtherEngine", err)
	}
}

func TestStats(t *testing.T) {
	d := open(t, t.TempDir())
	commit(t, d, put(store.Inbox, "abc", "12345"), put(store.Dedup, "abc", ""))
	st := d.Stats()
	if st.Keys != 2 || st.LiveBytes != 11 || st.CompactDue || st.DiskBytes <= 11 || st.DiskBytes > 200 {
		t.Errorf("Stats = %+v", st)
	}
	commit(t, d, del(store.Inbox, "abc"))
	if st := d.Stats(); st.Keys != 1 || st.LiveBytes != 3 {
		t.Errorf("Stats = %+v", st)
	}
}

// Durability hangs on a few settings of NutsDB: each that differs is noticed.
func TestSettingsAreReadBack(t *testing.T) {
	const segment = 256 << 10
	tests := []struct {
		name   string
		change nutsdb.Option
	}{
		{"no fsync", nutsdb.WithSyncEnable(false)},
		{"mmap", nutsdb.WithRWMode(nutsdb.MMap)},
		{"values on disk only", nutsdb.WithEntryIdxMode(nutsdb.HintKeyAndRAMIdxMode)},
		{"other segments", nutsdb.WithSegmentSize(segment / 2)},
		{"merge by itself", func(o *nutsdb.Options) { o.MergeInterval = time.Hour }},
		{"MergeV2", nutsdb.WithEnableMergeV2(true)},
		{"hint files", nutsdb.WithEnableHintFile(true)},
		{"watch", func(o *nutsdb.Options) { o.EnableWatch = true }},
		{"", func(*nutsdb.Options) {}},
	}
	for _, tt := range tests {
		t.Run(cmp.Or(tt.name, "as it must be"), func(t *testing.T) {
			r := &raw{db: stockOpen(t, t.TempDir(), tt.change)}
			if err := r.checkSettings(segment); (err == nil) != (tt.name == "") {
				t.Errorf("checkSettings = %v", err)
			}
		})
	}
}
