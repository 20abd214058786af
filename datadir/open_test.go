package datadir

import (
	"errors"
	"testing"

	"github.com/balefire/balefire/bodies"
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
