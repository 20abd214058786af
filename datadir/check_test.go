package datadir

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/store"
)

// filesOf returns the sizes and times of the files below dir, but not of the locks, which
// are taken for a check too.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all[path] = fmt.Sprintf("%d bytes, %v", info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A check changes nothing, after a clean stop or another, and reads the log too.
func TestCheckChangesNothing(t *testing.T) {
	for _, engine := range []string{EngineNuts, EnginePebble} {
		t.Run(engine, func(t *testing.T) {
			stopped, killed := t.TempDir(), t.TempDir()
			d, err := Open(Config{Dir: stopped, Engine: engine, Segment: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			for i := range byte(100) {
				var b store.Batch
				b.Put(store.Meta, []byte{i}, []byte("record"))
				if err := d.Store.Apply(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
			}
			if err := copyTree(filepath.Join(killed, Store), filepath.Join(stopped, Store)); err != nil { // as it is on disk
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			for how, dir := range map[string]string{"stopped": stopped, "killed": killed} {
				before := filesOf(t, dir)
				r, err := Check(dir)
				if err != nil || r.Records < 100 {
					t.Errorf("%s: %d records, want at least 100: %v", how, r.Records, err)
				}
				if after := filesOf(t, dir); !maps.Equal(before, after) {
					t.Errorf("%s: it changed files\nbefore %v\nafter %v", how, before, after)
				}
			}
		})
	}
}
