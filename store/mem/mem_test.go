package mem_test

import (
	"encoding/json"
	"errors"
	"io/fs"
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
		default:
			open[dir] = mem.New()
			restore(t, filepath.Join(dir, "mem.snapshot"), open[dir])
		}
		return open[dir]
	}
}

// restore puts what is in a snapshot, if there is one, into e.
func restore(t testing.TB, path string, e *mem.Engine) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var ops []store.Op
	if err := json.NewDecoder(f).Decode(&ops); err != nil {
		t.Fatal(err)
	}
	for i := range ops {
		ops[i].Val = append([]byte{}, ops[i].Val...) // an empty one is decoded as nil
	}
	if err := e.Commit(ops); err != nil {
		t.Fatal(err)
	}
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

func BenchmarkStore(b *testing.B) { storetest.Bench(b, disks()) }
