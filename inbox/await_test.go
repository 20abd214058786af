package inbox

import (
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A task that is to wait for another does not wait when that has ended since it
// was looked at: nobody would wake it (I20).
func TestNobodyWaitsForWhatHasEnded(t *testing.T) {
	for _, suspect := range []bool{false, true} {
		d := newDesk(4)
		claim := func(n byte) *claim {
			c := d.claim(backlog.TaskKey(proto.TaskID{n}))
			if c.rec = new(proto.Record); suspect {
				c.rec.Abandons = 2
			} else {
				c.idem = "key"
			}
			return c
		}
		first, second, third := claim(1), claim(2), claim(3)
		d.seat(first, suspect)
		if !d.await(second) {
			t.Error("it does not wait for what runs")
		}
		d.release(second)
		if woken := d.release(first); !slices.Equal(woken, []backlog.Key{second.key}) {
			t.Errorf("woken were %v", woken)
		}
		if d.await(third) {
			t.Error("it waits for what has ended")
		}
	}
}
