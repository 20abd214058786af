package blob

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/balefire/balefire/clock"
)

func open(t testing.TB, path string, cfg Config) *Dir {
	t.Helper()
	d, err := Open(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func put(t testing.TB, d *Dir, name, body string) {
	t.Helper()
	if err := d.Put(name, []byte(body)); err != nil {
		t.Fatal(err)
	}
}

func wantBody(t *testing.T, d *Dir, name, want string) {
	t.Helper()
	b, err := d.Open(name)
	if err != nil {
		t.Error(err)
		return
	}
	defer b.Close()
	if err := iotest.TestReader(b, []byte(want)); err != nil {
		t.Errorf("blob %s: %v", name, err)
	}
	if b.Size() != int64(len(want)) {
		t.Errorf("size = %d, want %d", b.Size(), len(want))
	}
}

func wantUsage(t *testing.T, d *Dir, blobs, parts int, bytes int64) {
	t.Helper()
	got := d.Usage()
	if got.Blobs != blobs || got.Parts != parts || got.Bytes != bytes {
		t.Errorf("usage = %+v, want %d blobs, %d parts, %d bytes", got, blobs, parts, bytes)
	}
	// The counts must match a fresh count.
	var fresh folder
	fresh.root, fresh.cfg = d.root, Config{}.withDefaults()
	if err := fresh.measure(); err != nil {
		t.Error(err)
	}
	if fresh.usage.Bytes != got.Bytes || fresh.usage.Blobs != got.Blobs || fresh.usage.Parts != got.Parts {
		t.Errorf("on disk is %+v, counted %+v", fresh.usage, got)
	}
}

func TestBlobComesBack(t *testing.T) {
	path := t.TempDir()
	d := open(t, path, Config{})
	put(t, d, "a-1", "hello")
	put(t, d, "empty", "")
	put(t, d, "a-1", "replaced")
	wantBody(t, d, "a-1", "replaced")
	wantBody(t, d, "empty", "")
	wantUsage(t, d, 2, 0, 8)

	again := open(t, path, Config{})
	wantBody(t, again, "a-1", "replaced")
	wantUsage(t, again, 2, 0, 8)
	if err := again.Delete("a-1"); err != nil {
		t.Error(err)
	}
	if ok, err := again.Has("a-1"); ok || err != nil {
		t.Errorf("Has = %v, %v after Delete", ok, err)
	}
	if err := again.Delete("a-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second Delete = %v, want ErrNotFound", err)
	}
	if _, err := again.Open("a-1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Open = %v, want ErrNotFound", err)
	}
	wantUsage(t, again, 1, 0, 0)
}

// S12: a body received in many pieces survives any number of restarts.
func TestPartIsResumedAtTheOffsetOnRecord(t *testing.T) {
	path := t.TempDir()
	body := bytes.Repeat([]byte("0123456789"), 1000)
	var want bytes.Buffer
	for round, offset := 0, 0; want.Len() < 1500; round++ {
		d, err := Open(path, Config{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := d.Resume("body")
		if err != nil {
			t.Fatal(err)
		}
		if w.Offset() < int64(offset) {
			t.Fatalf("round %d: offset %d, %d were synced", round, w.Offset(), offset)
		}
		if err := w.Truncate(int64(offset)); err != nil {
			t.Fatal(err)
		}
		piece := body[offset : offset+100]
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
		if err := w.Sync(); err != nil {
			t.Fatal(err)
		}
		want.Write(piece)
		offset += 100
		if _, err := w.Write([]byte("garbage that was never synced")); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, path, Config{})
	if ok, _ := d.Has("body"); ok {
		t.Error("a part counts as a blob")
	}
	w, err := d.Resume("body")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Truncate(int64(want.Len())), w.Commit()); err != nil {
		t.Fatal(err)
	}
	wantBody(t, d, "body", want.String())
	wantUsage(t, d, 1, 0, int64(want.Len()))
}

func TestWriterEndsOnce(t *testing.T) {
	d := open(t, t.TempDir(), Config{})
	w, err := d.Create("x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create("x"); !errors.Is(err, ErrBusy) {
		t.Errorf("second writer: %v, want ErrBusy", err)
	}
	if err := d.Delete("x"); !errors.Is(err, ErrBusy) {
		t.Errorf("delete while writing: %v, want ErrBusy", err)
	}
	fmt.Fprint(w, "abc")
	wantUsage(t, d, 0, 1, 3)
	if err := w.Truncate(4); err == nil {
		t.Error("truncated to more than there is")
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
	wantUsage(t, d, 0, 0, 0)
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("wrote after the end")
	}
	if err := errors.Join(w.Close(), w.Abort()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	put(t, d, "x", "new")
	w, err = d.Resume("x") // while a blob of that name exists
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "part")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w, err = d.Create("x") // starts over
	if err != nil || w.Offset() != 0 {
		t.Fatalf("offset %d, %v, want 0", w.Offset(), err)
	}
	fmt.Fprint(w, "newer")
	wantBody(t, d, "x", "new") // the old one until Commit
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Abort()); err != nil {
		t.Errorf("closing after Commit: %v", err)
	}
	wantBody(t, d, "x", "newer")
	wantUsage(t, d, 1, 0, 5)
}

func TestNamesThatAreRefused(t *testing.T) {
	parent := t.TempDir()
	path := filepath.Join(parent, "blobs")
	d := open(t, path, Config{})
	bad := []string{
		"", ".", "..", "../x", "a/b", `a\b`, "/etc/passwd", "a.part", "A", "ä", "烽火", "a b", "a\x00", "a\n", "a:b", "~", "*",
		"con", "nul", "aux", "prn", "com1", "lpt9", strings.Repeat("a", 81), "a.", ".part",
	}
	for _, name := range bad {
		_, cerr := d.Create(name)
		_, rerr := d.Resume(name)
		_, oerr := d.Open(name)
		_, herr := d.Has(name)
		for what, err := range map[string]error{
			"Create": cerr, "Resume": rerr, "Open": oerr, "Has": herr, "Put": d.Put(name, nil), "Delete": d.Delete(name),
		} {
			if !errors.Is(err, ErrName) {
				t.Errorf("%s(%q) = %v, want ErrName", what, name, err)
			}
		}
	}
	put(t, d, strings.Repeat("a", 80), "longest")
	list, err := os.ReadDir(path)
	if err != nil || len(list) != 1 {
		t.Errorf("%d files, %v, want the longest name alone", len(list), err)
	}
	if list, err := os.ReadDir(parent); err != nil || len(list) != 1 {
		t.Errorf("%d files outside the folder, %v, want none", len(list)-1, err)
	}
}

// Symbolic links in the folder are neither followed nor removed.
func TestSymbolicLinksAreNotFollowed(t *testing.T) {
	parent := t.TempDir()
	secret := filepath.Join(parent, "secret")
	if err := os.WriteFile(secret, []byte("top"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, filepath.Join(parent, "blobs"), Config{})
	for _, name := range []string{"link", "link.part"} {
		if err := os.Symlink(secret, filepath.Join(parent, "blobs", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(parent, "blobs", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "sub"} {
		if b, err := d.Open(name); err == nil {
			t.Errorf("opened %s", name)
			_ = b.Close()
		}
	}
	if w, err := d.Resume("link"); err == nil {
		t.Error("resumed a link")
		_ = w.Abort()
	}
	if n, err := d.Sweep(func(string) bool { return false }); n != 0 || err != nil {
		t.Errorf("swept %d, %v, want 0", n, err)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "top" {
		t.Errorf("the file outside is %q, %v", b, err)
	}
}

func TestSweepRemovesUnreferencedBlobs(t *testing.T) {
	path := t.TempDir()
	old := open(t, path, Config{})
	put(t, old, "kept", "1")
	put(t, old, "orphan", "2")
	w, err := old.Create("orphan-part")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "3")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "README.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	m := clock.NewManual(time.Now())
	d := open(t, path, Config{Clock: m.Clock()})
	put(t, d, "fresh", "4") // its reference is not committed yet
	writing, err := d.Create("writing")
	if err != nil {
		t.Fatal(err)
	}
	keep := func(name string) bool { return name == "kept" }
	if n, err := d.Sweep(keep); n != 2 || err != nil {
		t.Errorf("swept %d, %v, want the two orphans", n, err)
	}
	wantUsage(t, d, 2, 1, 2)
	m.SetWall(time.Now().AddDate(5, 0, 0)) // I14: the wall clock does not matter here
	if n, err := d.Sweep(keep); n != 0 || err != nil {
		t.Errorf("swept %d, %v after a jump of the clock, want 0", n, err)
	}
	m.Advance(2 * time.Hour)
	if n, err := d.Sweep(keep); n != 1 || err != nil {
		t.Errorf("swept %d, %v, want the blob that was fresh and is still an orphan", n, err)
	}
	if err := writing.Commit(); err != nil {
		t.Errorf("a part being written was swept: %v", err)
	}
	if _, err := os.Stat(filepath.Join(path, "README.txt")); err != nil {
		t.Error(err)
	}
}

func TestRecentNamesAreForgotten(t *testing.T) {
	m := clock.NewManual(time.Now())
	d := open(t, t.TempDir(), Config{Clock: m.Clock(), Grace: time.Minute})
	for i := range 5000 {
		d.mu.Lock()
		d.touch(fmt.Sprint(i))
		d.mu.Unlock()
		m.Advance(time.Second)
	}
	if n := len(d.touched); n > 3000 {
		t.Errorf("%d names are remembered, but only 60 are recent", n)
	}
}

func TestManyWritersAtOnce(t *testing.T) {
	d := open(t, t.TempDir(), Config{MaxTotal: 1 << 20})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				name := fmt.Sprintf("%d-%d", g, i)
				put(t, d, name, strings.Repeat("x", 100))
				if i%2 == 0 {
					if err := d.Delete(name); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	wantUsage(t, d, 80, 0, 8000)
}

// FuzzName: no name reaches a file outside the folder or under another name.
func FuzzName(f *testing.F) {
	for _, s := range []string{"a", "../a", "con", "a.part", "0198c0de-1"} {
		f.Add(s)
	}
	parent := f.TempDir()
	d := open(f, filepath.Join(parent, "blobs"), Config{})
	f.Fuzz(func(t *testing.T, name string) {
		if err := d.Put(name, []byte("x")); err != nil {
			if !errors.Is(err, ErrName) {
				t.Fatal(err)
			}
			return
		}
		b, err := os.ReadFile(filepath.Join(parent, "blobs", name))
		if err != nil || string(b) != "x" || filepath.Base(name) != name {
			t.Errorf("%q: %q, %v", name, b, err)
		}
		if err := d.Delete(name); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkPut(b *testing.B) {
	d := open(b, b.TempDir(), Config{})
	body := make([]byte, 64<<10)
	b.SetBytes(int64(len(body)))
	for i := 0; b.Loop(); i++ {
		if err := d.Put(fmt.Sprintf("x%d", i%100), body); err != nil {
			b.Fatal(err)
		}
	}
}

var _ interface {
	io.ReadSeekCloser
	io.ReaderAt
} = (*Blob)(nil)
