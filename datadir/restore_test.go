package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// noMark marks nothing.
func noMark(*store.Store, Replaced, *store.Batch) (lost time.Time, revoked []string, err error) {
	return lost, nil, nil
}

// A restore tells what the replaced store stated last and when it was written; of a store
// that is damaged or gone it states nothing.
func TestReplacedStoreIsRead(t *testing.T) {
	for _, engine := range []string{EngineNuts, EnginePebble} {
		t.Run(engine, func(t *testing.T) {
			clk := clock.NewManual(time.Now())
			cfg := Config{Dir: t.TempDir(), Engine: engine, Segment: 1 << 20, Clock: clk.Clock()}
			snap := filepath.Join(t.TempDir(), "snap")
			d, err := Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			put := func(val string) {
				var b store.Batch
				b.Put(store.Meta, []byte("k"), []byte(val))
				if err := d.Store.Apply(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
			}
			put("old")
			if err := d.Snapshot(snap); err != nil {
				t.Fatal(err)
			}
			put("new")
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			restore := func(want string, written bool) {
				t.Helper()
				clk.Advance(time.Second) // the old store gets another name
				if _, err := Restore(cfg, snap, "", func(s *store.Store, old Replaced, _ *store.Batch) (lost time.Time, revoked []string, err error) {
					got := ""
					if old.Meta != nil {
						val, err := old.Meta.Get(store.Meta, []byte("k"))
						if err != nil {
							return lost, nil, err
						}
						got = string(val)
					}
					if val, err := s.Get(store.Meta, []byte("k")); got != want || old.Written.IsZero() == written || err != nil || string(val) != "old" {
						t.Errorf("the old store states %q, written %v; the copy %q, %v", got, old.Written, val, err)
					}
					return lost, nil, nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			at := filepath.Join(cfg.Dir, Store)
			restore("new", true)
			if err := os.Rename(at, at+".gone"); err != nil {
				t.Fatal(err)
			}
			restore("", false)
			if err := errors.Join(os.RemoveAll(filepath.Join(at, engine)), os.MkdirAll(filepath.Join(at, engine), 0o700)); err != nil { // the files are lost, the folder is not
				t.Fatal(err)
			}
			restore("", false)
			files, err := filepath.Glob(filepath.Join(at, engine, "*"))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			for _, f := range files {
				if info, err := os.Stat(f); err == nil && !info.IsDir() {
					if err := os.WriteFile(f, []byte("damaged"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			restore("", true)
		})
	}
}

// A snapshot without the empty file that marks it as a store is refused, and the store of the
// node stays.
func TestSnapshotWithoutItsMarkerIsRefused(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Engine: EnginePebble}
	snap := filepath.Join(t.TempDir(), "snap")
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	b.Put(store.Meta, []byte("k"), []byte("v"))
	if err := errors.Join(d.Store.Apply(t.Context(), &b), d.Snapshot(snap), d.Close()); err != nil {
		t.Fatal(err)
	}
	markers, err := filepath.Glob(filepath.Join(snap, "marker.manifest.*"))
	if err != nil || len(markers) != 1 {
		t.Fatal(markers, err)
	}
	if err := os.Remove(markers[0]); err != nil {
		t.Fatal(err)
	}
	if r, err := Restore(cfg, snap, "", noMark); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("restored %+v, %v; want ErrCorrupt", r, err)
	}
	if d, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	if val, err := d.Store.Get(store.Meta, []byte("k")); err != nil || string(val) != "v" {
		t.Errorf("the store of the node has %q, %v", val, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
