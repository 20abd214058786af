package submit

import (
	"errors"
	"testing"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/store/storetest"
)

// The inbox learns that the disk is full, so that a result waits for room, whether its task
// left it in a file or not (I13).
func TestResultOnAFullDisk(t *testing.T) {
	if !storetest.MayMount(t) {
		return
	}
	for name, file := range map[string]bool{"a large result": false, "a file": true} {
		t.Run(name, func(t *testing.T) {
			err := putResult(t, storetest.SmallDisk(t, largeResult/2), bodies.Config{}, largeResult, file)
			if !errors.Is(err, bodies.ErrFull) || !errors.Is(err, inbox.ErrNoRoom) {
				t.Errorf("%v, want %v, which is a lack of room", err, bodies.ErrFull)
			}
		})
	}
}
