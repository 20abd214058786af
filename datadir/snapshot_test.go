package datadir

import (
	"archive/tar"
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// sealedTree returns a sealed archive of files and its private key.
func sealedTree(t testing.TB, files map[string]string) (sealed []byte, private string) {
	t.Helper()
	public, private, err := NewSnapshotKey()
	if err != nil {
		t.Fatal(err)
	}
	to, err := age.ParseX25519Recipient(public)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := sealTree(t.Context(), &out, dir, to); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), private
}

// archive returns an unsealed archive of these entries, each with some content if it is a
// file.
func archive(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		text := []byte("text of " + h.Name)
		if h.Typeflag != tar.TypeReg {
			text = nil
		}
		h.Mode, h.Size = 0o600, int64(len(text))
		err := w.WriteHeader(&h)
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// badArchives are archives that no node writes. Anyone who has the public key of a node's
// snapshots can seal one for it.
var badArchives = map[string][]tar.Header{
	"a name above the folder":         {{Typeflag: tar.TypeReg, Name: "../out"}},
	"a name that goes up and in":      {{Typeflag: tar.TypeReg, Name: "gen/../../out"}},
	"an absolute name":                {{Typeflag: tar.TypeReg, Name: "/out"}},
	"the folder itself":               {{Typeflag: tar.TypeReg, Name: "."}},
	"a symbolic link":                 {{Typeflag: tar.TypeSymlink, Name: "gen", Linkname: ".."}},
	"a file through a symbolic link":  {{Typeflag: tar.TypeSymlink, Name: "gen", Linkname: ".."}, {Typeflag: tar.TypeReg, Name: "gen/out"}},
	"a link to a file":                {{Typeflag: tar.TypeLink, Name: "gen", Linkname: "../secret"}},
	"a pipe":                          {{Typeflag: tar.TypeFifo, Name: "gen"}},
	"a folder":                        {{Typeflag: tar.TypeDir, Name: "gen/"}},
	"the same name twice":             {{Typeflag: tar.TypeReg, Name: "gen"}, {Typeflag: tar.TypeReg, Name: "gen"}},
	"a file in a file":                {{Typeflag: tar.TypeReg, Name: "gen"}, {Typeflag: tar.TypeReg, Name: "gen/data"}},
	"a good file, then one above it":  {{Typeflag: tar.TypeReg, Name: "CURRENT"}, {Typeflag: tar.TypeReg, Name: "../out"}},
	"a name longer than any file has": {{Typeflag: tar.TypeReg, Name: strings.Repeat("x", 300)}},
}

// unpackInto unpacks an archive into a folder that has a neighbor, and checks that nothing
// was made or changed outside of it.
func unpackInto(t *testing.T, in []byte) error {
	t.Helper()
	top := t.TempDir()
	secret := filepath.Join(top, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	failed := unpackTree(filepath.Join(top, "in"), bytes.NewReader(in))
	left, err := os.ReadDir(top)
	if err != nil || len(left) != 2 {
		t.Errorf("there are %v, %v", left, err)
	}
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the neighbor has %q, %v", b, err)
	}
	return failed
}

// An archive with anything but new files below its folder is refused, although it was
// sealed for the right key, and writes nothing elsewhere.
func TestArchiveStaysInItsFolder(t *testing.T) {
	for name, entries := range badArchives {
		t.Run(name, func(t *testing.T) {
			if err := unpackInto(t, archive(t, entries...)); err == nil {
				t.Error("it was unpacked")
			}
		})
	}
	good := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "CURRENT"}, tar.Header{Typeflag: tar.TypeReg, Name: "gen/1/data"})
	if err := unpackInto(t, good); err != nil {
		t.Errorf("a good archive: %v", err)
	}
}

// FuzzUnpackTree unpacks arbitrary bytes: nothing is written outside of the folder.
func FuzzUnpackTree(f *testing.F) {
	for _, entries := range badArchives {
		f.Add(archive(f, entries...))
	}
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "gen/1/data"}))
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<20 {
			return
		}
		_ = unpackInto(t, in) // most of them are bad
	})
}

// FuzzUnsealTree opens damaged snapshots: a truncated one, or one with any bit changed,
// is refused with a suitable error, and nothing is written outside the folder.
func FuzzUnsealTree(f *testing.F) {
	files := map[string]string{"CURRENT": "1", "gen/1/data": strings.Repeat("record ", 20_000)}
	sealed, private := sealedTree(f, files)
	for _, at := range []int{0, 1, 100, 200, 300, len(sealed) / 2, len(sealed) - 1} {
		f.Add(at, byte(1), false)
		f.Add(at, byte(0x80), true)
	}
	f.Fuzz(func(t *testing.T, at int, flip byte, cut bool) {
		if at < 0 || at >= len(sealed) || flip == 0 {
			return
		}
		bad := bytes.Clone(sealed)
		if bad[at] ^= flip; cut {
			bad = bytes.Clone(sealed[:at])
		}
		dir := t.TempDir()
		err := unsealTree(filepath.Join(dir, "in"), bytes.NewReader(bad), private)
		if !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("changed at byte %d of %d (cut %v): %v", at, len(sealed), cut, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 1 {
			t.Errorf("it wrote %v", left)
		}
	})
}

// A sealed snapshot is opened unchanged, and only with its key.
func TestSealedSnapshotNeedsItsKey(t *testing.T) {
	files := map[string]string{"CURRENT": "1", "gen/1/data": strings.Repeat("record ", 20_000), "gen/1/empty": ""}
	sealed, private := sealedTree(t, files)
	if bytes.Contains(sealed, []byte("record record")) || bytes.Contains(sealed, []byte("CURRENT")) {
		t.Error("it is readable without the key")
	}
	dir, got := filepath.Join(t.TempDir(), "in"), map[string]string{}
	if err := unsealTree(dir, bytes.NewReader(sealed), private); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(b)
	}
	if !maps.Equal(got, files) {
		t.Error("the files differ from the sealed ones")
	}
	_, other, err := NewSnapshotKey()
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{other: "sealed for another key", "age1abc": "not a private key", "": "not a private key"} {
		if err := unsealTree(filepath.Join(t.TempDir(), "in"), bytes.NewReader(sealed), key); !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("key %.10q: %v", key, err)
		}
	}
}

// Snapshots that are asked for at once are made one after the other, and all restore.
func TestSnapshotsAtOnce(t *testing.T) {
	d, err := Open(Config{Dir: t.TempDir(), Segment: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i := range byte(100) {
		var b store.Batch
		b.Put(store.Meta, []byte{i}, bytes.Repeat([]byte{i}, 10_000))
		if err := d.Store.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	public, private, err := NewSnapshotKey()
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	var wg sync.WaitGroup
	for _, name := range []string{"1", "2", "3", "4"} {
		wg.Go(func() {
			if err := d.SealedSnapshot(t.Context(), filepath.Join(to, name), public); err != nil {
				t.Errorf("snapshot %s: %v", name, err)
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"1", "2", "3", "4"} {
		r, err := Restore(Config{Dir: t.TempDir(), Segment: 1 << 20}, filepath.Join(to, name), private, noMark)
		if err != nil || r.Records < 100 {
			t.Errorf("snapshot %s has %d records, want at least 100: %v", name, r.Records, err)
		}
	}
}
