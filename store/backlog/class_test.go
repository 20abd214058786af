package backlog

import (
	"testing"

	"github.com/balefire/balefire/proto"
)

func TestClassesShareWhatIsTaken(t *testing.T) {
	all := [classes]bool{true, true, true, true}
	tests := []struct {
		name  string
		waits [classes]bool
		want  [classes]int // of 1200 picks
	}{
		{"critical has nine of ten", all, [classes]int{1080, 74, 28, 18}},
		{"high, normal and low as 8:3:1", [classes]bool{false, true, true, true}, [classes]int{0, 800, 300, 100}},
		{"critical alone has all", [classes]bool{true}, [classes]int{1200}},
		{"low alone has all", [classes]bool{low: true}, [classes]int{low: 1200}},
		{"critical leaves a tenth to low", [classes]bool{critical: true, low: true}, [classes]int{1080, 0, 0, 120}},
		{"high and low as 8:1", [classes]bool{high: true, low: true}, [classes]int{0, 1067, 0, 133}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p picker
			var got [classes]int
			for range 1200 {
				c, _ := p.pick(tt.waits, 100)
				got[c]++
			}
			for c := range got {
				if d := got[c] - tt.want[c]; d < -3 || d > 3 {
					t.Fatalf("picked %v, want about %v", got, tt.want)
				}
			}
		})
	}
	if c, _ := new(picker).pick([classes]bool{}, 100); c != -1 {
		t.Errorf("picked class %d of nothing", c)
	}
}

// TestLowIsNeverStarved holds S14: under a flood of more urgent work the low class
// gets at least one of every hundred that are taken, and the rescue is counted.
func TestLowIsNeverStarved(t *testing.T) {
	w := newWorld(t, Config{})
	var flood, lows []New
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
