package inbox

import (
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A task that must wait for another does not wait if that has ended since it was checked:
// nothing would wake it (I20).
func TestAwaitDoesNotWaitForAnEndedJob(t *testing.T) {
	for _, suspect := range []bool{false, true} {
		s := newSlots(4)
		claim := func(n byte) *job {
			j := s.take(backlog.TaskKey(proto.TaskID{n}))
			if j.rec = new(proto.Record); suspect {
				j.rec.Abandons = 2
			} else {
				j.idemKey = "key"
			}
			return j
		}
		first, second, third := claim(1), claim(2), claim(3)
		s.acquire(first, suspect)
		if !s.await(second) {
			t.Error("it does not wait for what runs")
		}
		s.drop(second)
		if woken := s.drop(first); !slices.Equal(woken, []backlog.Key{second.key}) {
			t.Errorf("woken were %v", woken)
		}
		if s.await(third) {
			t.Error("it waits for what has ended")
		}
	}
}
