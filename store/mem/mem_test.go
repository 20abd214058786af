package mem_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/storetest"
)

// disks simulates folders: opening one again finds the engine that was open there.
func disks() storetest.Opener {
	var mu sync.Mutex
	open := map[string]*mem.Engine{}
	return func(t testing.TB, dir string) store.Engine {
		mu.Lock()
		defer mu.Unlock()
		switch e, ok := open[dir]; {
		case ok:
			open[dir] = e.Reopen()
		case exists(filepath.Join(dir, "mem.snapshot")):
			e, err := mem.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			open[dir] = e
		default:
			open[dir] = mem.New()
		}
		return open[dir]
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestStore(t *testing.T) { storetest.Run(t, disks()) }

func TestReopenFencesTheOld(t *testing.T) {
	old := mem.New()
	op := []store.Op{{Bucket: store.Meta, Key: []byte("k"), Val: []byte("v")}}
	if err := old.Commit(op); err != nil {
		t.Fatal(err)
	}
	e := old.Reopen()
	if err := old.Commit(op); err == nil {
		t.Error("the old engine still commits after Reopen")
	}
	if _, ok, err := e.Get(store.Meta, []byte("k")); !ok || err != nil {
		t.Errorf("reopened engine: %v, %v", ok, err)
	}
}

// TestDamagedSnapshot: a snapshot with any byte changed, cut or added is refused.
func TestDamagedSnapshot(t *testing.T) {
	e := mem.New()
	if err := e.Commit([]store.Op{{Bucket: store.Inbox, Key: []byte("key"), Val: []byte("value")}}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "s")
	if err := e.Snapshot(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mem.snapshot")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, at int, data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := mem.Open(dir); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s at %d: %v, want ErrCorrupt", what, at, err)
		}
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		try("bit flipped", i, bad)
		try("cut", i, good[:i])
	}
	try("byte added", len(good), append(bytes.Clone(good), 0))
}

func FuzzOpenSnapshot(f *testing.F) {
	f.Add([]byte("balefire mem 1\n\x00"))
	f.Add([]byte("balefire mem 1\n\x0b\x01k\x01v\x00\x00\x00\x00\x00"))
	f.Add([]byte("balefire mem 1\n\x0b\x01k\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "mem.snapshot"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := mem.Open(dir); err != nil && !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("open: %v", err)
		}
	})
}

func BenchmarkStore(b *testing.B) { storetest.Bench(b, disks()) }
