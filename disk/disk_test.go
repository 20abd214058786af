package disk

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestWriteFileReplaces: the file is replaced whole, with its mode, and nothing else is
// left in the folder, also when it cannot be written.
func TestWriteFileReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"long text", "short"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != text {
			t.Errorf("read %q, %v", b, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := WriteFile(filepath.Join(dir, "missing", "f"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a folder that does not exist: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "sub"), []byte("x")); err == nil {
		t.Error("a folder with files was replaced")
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
		t.Errorf("in the folder: %v, %v", all, err)
	}
}

// A recorder notes what is written to a file.
type recorder struct {
	*os.File
	from, to int64
}

func (r *recorder) WriteAt(b []byte, off int64) (int, error) {
	r.from, r.to = min(r.from, off), max(r.to, off+int64(len(b)))
	return r.File.WriteAt(b, off)
}

// A fullLog has no space for any write.
type fullLog struct{ *os.File }

func (fullLog) WriteAt([]byte, int64) (int, error) { return 0, syscall.ENOSPC }

// TestRewrite: the range is written again from the beginning of its first page, unchanged.
func TestRewrite(t *testing.T) {
	page := int64(os.Getpagesize())
	want := make([]byte, 100*page)
	for i := range want {
		want[i] = byte(i * 7)
	}
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(want); err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]int64{{0, 100 * page}, {page + 5, 3*page + 7}, {5, 6}, {page, page}, {page + 9, 4}} {
		rec := &recorder{File: f, from: 1 << 40}
		if err := Rewrite(rec, r[0], r[1]); err != nil {
			t.Fatal(err)
		}
		if wrote := rec.to > 0; wrote != (r[0] < r[1]) || wrote && (rec.from != r[0]-r[0]%page || rec.to != r[1]) {
			t.Errorf("%v: wrote from %d to %d", r, rec.from, rec.to)
		}
	}
	if err := Rewrite(fullLog{f}, 0, 100*page); err != nil {
		t.Errorf("on a full disk: %v", err)
	}
	if err := Rewrite(f, 99*page, 101*page); !errors.Is(err, io.EOF) {
		t.Errorf("behind its end: %v", err)
	}
	if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("it has changed, %v", err)
	}
}

// TestSyncDir needs a folder that exists.
func TestSyncDir(t *testing.T) {
	if err := SyncDir(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := SyncDir(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
}
