package transfer

import (
	"testing"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// One origin gets nine tenths of the places, the next most of the rest, and each that is
// given back can be taken again.
func TestPlacesAreShared(t *testing.T) {
	tr := New(Parts{MaxQueued: 20, Clock: clock.Runtime()})
	n := byte(0)
	taken := func(origin byte) (ids []proto.TaskID, why string) {
		for {
			n++
			id := proto.TaskID{n}
			if why = tr.Take(id, proto.PeerID{origin}); why != "" {
				return ids, why
			}
			ids = append(ids, id)
		}
	}
	first, why := taken(1)
	if len(first) != 18 {
		t.Fatalf("the first has %d places: %s", len(first), why)
	}
	if why := tr.Take(first[0], proto.PeerID{1}); why != "" {
		t.Errorf("a task has no place any more: %s", why)
	}
	if second, why := taken(2); len(second) != 2 {
		t.Errorf("the second has %d places: %s", len(second), why)
	}
	tr.Track(first[0], proto.PeerID{1})
	tr.arrived(first[0], proto.PeerID{1}, false) // a copy of what is stored
	for _, id := range first[1:10] {
		tr.arrived(id, proto.PeerID{1}, false)
	}
	if third, why := taken(3); len(third) != 9 {
		t.Errorf("the third has %d places: %s", len(third), why)
	}
	tr.Untrack(first[0])
	if again, why := taken(1); len(again) != 1 {
		t.Errorf("one place is free, %d are taken: %s", len(again), why)
	}
	for id := range tr.places.all {
		tr.Untrack(id)
	}
	if len(tr.places.held) != 0 {
		t.Errorf("origins without a task: %v", tr.places.held)
	}
}
