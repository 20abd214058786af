package queue

import (
	"slices"
	"testing"
)

// A list that is full has dropped the older half (I3: lease conflicts).
func TestFullListDropsTheOlderHalf(t *testing.T) {
	var list []int
	for i := range maxConflicts + 1 {
		if i == maxConflicts && len(list) != maxConflicts {
			t.Errorf("%d entries before, want %d", len(list), maxConflicts)
		}
		list = appendBounded(list, i, maxConflicts)
	}
	if len(list) != maxConflicts/2+1 || list[0] != maxConflicts/2 || !slices.IsSorted(list) {
		t.Errorf("%d entries from %d on", len(list), list[0])
	}
}
