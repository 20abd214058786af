package datadir

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

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
