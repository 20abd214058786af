package backlog

import (
	"testing"

	"github.com/balefire/balefire/proto"
)

// TestLowIsNeverStarved covers S14: under a flood of more urgent work the low class gets
// at least one of every hundred taken tasks, and the rescue is counted.
func TestLowIsNeverStarved(t *testing.T) {
	w := newFixture(t, Config{})
	var flood, lows []NewEntry
	for i := range 2000 {
		flood = append(flood, w.task("p", proto.Class(i%3+1)))
	}
	for range 30 {
		lows = append(lows, w.task("p", proto.Low))
	}
	w.add(flood...)
	w.add(lows...)
	since, taken := 0, 0
	for range 2000 {
		it, ok := w.TakeAny(nil, nil)
		if !ok {
			t.Fatal("nothing to take")
		}
		if it.Class == proto.Low {
			since = 0
			taken++
			continue
		}
		if since++; since >= 100 && taken < 30 {
			t.Fatalf("%d others were taken since the last low one", since)
		}
		w.add(w.task("p", it.Class))
	}
	if taken < 20 {
		t.Errorf("%d low ones of 2000, want at least 20", taken)
	}
	if n := w.Stats().Starved; n == 0 {
		t.Error("no rescue was counted")
	}
}
