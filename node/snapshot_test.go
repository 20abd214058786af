package node

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// A snapshot that cannot be written is explained without the names of its temporary files.
func TestSnapshotThatCannotBeWritten(t *testing.T) {
	a, _ := pair(t, nil)
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 255))
	if err := a.Snapshot(t.Context(), dir, ""); !errors.Is(err, wire.ErrRefused) || strings.Contains(err.Error(), ".part") {
		t.Errorf("%v", err)
	}
}

// A snapshot on a disk that is not mounted is refused: it does not go to the one below.
func TestSnapshotWithoutItsParent(t *testing.T) {
	a := startAlone(t)
	parent := filepath.Join(t.TempDir(), "backup")
	if err := a.Snapshot(t.Context(), filepath.Join(parent, "today"), ""); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), parent+" does not exist") {
		t.Errorf("%v", err)
	}
}
