package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/store"
)

// Bodies keep to the reserve of the store.
func TestBodiesLeaveTheReserve(t *testing.T) {
	d, err := Open(Config{Dir: t.TempDir(), Reserve: 1 << 60})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Blobs.Put([]byte("task"), false); !errors.Is(err, bodies.ErrFull) {
		t.Errorf("new work: %v", err)
	}
	if _, err := d.Blobs.Put([]byte("result"), true); err != nil {
		t.Errorf("a result: %v", err)
	}
}

// What a snapshot, a restore or a migration that was killed leaves in the folder is removed
// when the folder is opened, but not that of a process that has it open.
func TestOpenRemovesUnfinishedCopies(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), Segment: 1 << 20}
	left := []string{snapshotPart, snapshotPart + ".part", restorePart, restoreDone}
	leave := func() {
		for _, name := range left {
			path := filepath.Join(cfg.Dir, name, "gen-000001")
			if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "data"), []byte("copy"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	there := func() (n int) {
		for _, name := range left {
			if _, err := os.Lstat(filepath.Join(cfg.Dir, name)); err == nil {
				n++
			}
		}
		return n
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	if other, err := Open(cfg); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("opened twice: %v, %v", other, err)
	}
	if n := there(); n != len(left) {
		t.Errorf("of another process %d copies are left, want %d", n, len(left))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if n := there(); n > 0 {
		t.Errorf("%d copies are left", n)
	}
}
