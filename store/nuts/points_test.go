package nuts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

// I1: stopped at any named point, which here means copied at it, a store opens
// with everything that was acknowledged until then.
func TestStoppedAtEveryPoint(t *testing.T) {
	tmp := t.TempDir()
	dir := filepath.Join(tmp, "store")
	copies := make(map[string]string) // point to folder
	cfg := quiet()
	cfg.at = func(point string) {
		if copies[point] != "" {
			return
		}
		copies[point] = filepath.Join(tmp, fmt.Sprint("copy-", len(copies)))
		if err := os.CopyFS(copies[point], os.DirFS(dir)); err != nil {
			t.Errorf("%s: %v", point, err)
		}
	}
	reopen := func() *DB {
		d, err := Open(dir, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := reopen()
	for i := range 60 {
		commit(t, d, put(store.Inbox, fmt.Sprint(i%50), strings.Repeat("x", 9000)), put(store.Meta, "n", fmt.Sprint(i)))
	}
	want := dump(t, d)
	if err := d.Compact(); err != nil {
		t.Fatal(err)
	}
	end, gen := d.gen.pos.off, d.gen.dir
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(segmentPath(gen, d.gen.pos.segment), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("torn"), end)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	reopen().Close()

	points := []string{
		"create: first generation made", "compact: new generation made", "compact: records copied", "compact: switched",
		"compact: old generation closed", "guard: before the repair", "guard: after the repair",
	}
	if len(copies) != len(points) {
		t.Errorf("%d points were passed, want %d: %v", len(copies), len(points), copies)
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			d := open(t, copies[point])
			if point == points[0] {
				same(t, dump(t, d), map[string]string{})
			} else {
				same(t, dump(t, d), want)
			}
			commit(t, d, put(store.Meta, "goes", "on"))
			if gens, err := filepath.Glob(filepath.Join(copies[point], genPrefix+"*")); err != nil || len(gens) != 1 {
				t.Errorf("generations %v, %v; want one", gens, err)
			}
		})
	}
}

// A compaction that fails before its switch leaves the store as it was.
func TestFailedCompaction(t *testing.T) {
	dir := t.TempDir()
	cfg := quiet()
	cfg.at = func(point string) {
		if point == "compact: new generation made" {
			if err := os.Truncate(segmentPath(genDir(dir, 2), 0), 0); err != nil {
				t.Error(err)
			}
			if err := os.Mkdir(segmentPath(genDir(dir, 2), 1), 0o700); err != nil {
				t.Error(err)
			}
		}
	}
	d, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i := range 60 {
		commit(t, d, put(store.Inbox, fmt.Sprint(i), strings.Repeat("x", 9000)))
	}
	want := dump(t, d)
	if err := d.Compact(); err == nil {
		t.Fatal("the compaction succeeded")
	}
	if _, err := os.Stat(genDir(dir, 2)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the half generation is still there: %v", err)
	}
	same(t, dump(t, d), want)
	commit(t, d, put(store.Meta, "goes", "on"))
	want["Meta/goes"] = "on"
	d.cfg.at = func(string) {}
	if err := d.Compact(); err != nil {
		t.Fatal(err)
	}
	same(t, dump(t, d), want)
}

// A commit that fails ends all writing, the store closes, and the next open
// finds what was acknowledged. Here NutsDB cannot make its next segment.
func TestFailedCommit(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	blocker := segmentPath(d.gen.dir, 1)
	if err := os.Mkdir(blocker, 0o700); err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	var failed error
	for i := 0; failed == nil; i++ {
		key, val := fmt.Sprint(i), strings.Repeat("x", 20_000)
		want["Inbox/"+key], want["Dedup/"+key] = val, ""
		failed = d.Commit([]store.Op{put(store.Inbox, key, val), put(store.Dedup, key, "")})
		if failed != nil {
			delete(want, "Inbox/"+key)
			delete(want, "Dedup/"+key)
		}
	}
	for range 2 {
		if err := d.Commit([]store.Op{put(store.Meta, "k", "v")}); err == nil || !errors.Is(err, d.failed) {
			t.Fatalf("after %v a commit returned %v", failed, err)
		}
	}
	if err := d.Compact(); err == nil {
		t.Error("a store that failed was compacted")
	}
	same(t, dump(t, d), want)
	if err := d.Close(); err != nil {
		t.Logf("close: %v", err) // NutsDB has no active file left and panics
	}
	if err := os.Remove(blocker); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d = open(t, dir)
		same(t, dump(t, d), want)
		commit(t, d, put(store.Meta, "goes", "on"))
		want["Meta/goes"] = "on"
		d.Close()
	}
}

// A panic inside NutsDB refuses reads as well: its lock may stay held, and a
// reader must not wait forever. The store can be opened again.
func TestPanicInsideNutsDB(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	commit(t, d, put(store.Meta, "k", "v"))
	d.gen.raw.db.ActiveFile = nil
	if err := d.Commit([]store.Op{put(store.Meta, "k", "w")}); !errors.Is(err, errWedged) {
		t.Fatalf("err = %v, want %v", err, errWedged)
	}
	if _, _, err := d.Get(store.Meta, []byte("k")); !errors.Is(err, errWedged) {
		t.Errorf("Get = %v, want %v", err, errWedged)
	}
	if err := d.Close(); !errors.Is(err, errWedged) {
		t.Errorf("Close = %v, want %v", err, errWedged)
	}
	same(t, dump(t, open(t, dir)), map[string]string{"Meta/k": "v"})
}

// An open that fails keeps no lock: it can be tried again.
func TestFailedOpenUnlocks(t *testing.T) {
	v := newDamagedStore(t)
	log := append(v.log[:0:0], v.log...)
	log[20] ^= 1
	for range 3 {
		v.set(t, log, v.acked)
		if _, err := openRaw(v.gen(), 256<<10); err == nil || errors.Is(err, store.ErrLocked) {
			t.Fatalf("err = %v, want NutsDB's refusal of a damaged log", err)
		}
	}
	v.set(t, v.log, v.acked)
	same(t, dump(t, open(t, v.dir)), v.after)
}
