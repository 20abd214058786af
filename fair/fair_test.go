package fair

import (
	"math/rand/v2"
	"testing"
)

// serve serves one item of a waiting class.
func serve(p *Picker, waits [Classes]bool) (class int, rescued bool) {
	class = p.Next(waits)
	if class >= 0 {
		rescued = p.Took(class, waits)
	}
	return class, rescued
}

func TestClassesShareWhatIsServed(t *testing.T) {
	tests := []struct {
		name  string
		waits [Classes]bool
		want  [Classes]int // of 1200
	}{
		{"critical gets nine of ten", [Classes]bool{true, true, true, true}, [Classes]int{1080, 75, 29, 16}},
		{"high, normal and low as 8:3:1", [Classes]bool{High: true, Normal: true, Low: true}, [Classes]int{0, 800, 300, 100}},
		{"critical leaves a tenth to low", [Classes]bool{Critical: true, Low: true}, [Classes]int{1080, 0, 0, 120}},
		{"high and low as 8:1", [Classes]bool{High: true, Low: true}, [Classes]int{0, 1067, 0, 133}},
		{"critical alone gets all", [Classes]bool{Critical: true}, [Classes]int{Critical: 1200}},
		{"high alone gets all", [Classes]bool{High: true}, [Classes]int{High: 1200}},
		{"normal alone gets all", [Classes]bool{Normal: true}, [Classes]int{Normal: 1200}},
		{"low alone gets all", [Classes]bool{Low: true}, [Classes]int{Low: 1200}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p Picker
			var got [Classes]int
			for range 1200 {
				c, _ := serve(&p, tt.waits)
				got[c]++
			}
			for c := range got {
				if d := got[c] - tt.want[c]; d < -3 || d > 3 {
					t.Fatalf("served %v, want about %v", got, tt.want)
				}
			}
		})
	}
	if c := new(Picker).Next([Classes]bool{}); c != -1 {
		t.Errorf("class %d although nothing waits", c)
	}
}

// Whatever else comes and goes, one of any 100 items served while low waits is low (S14),
// and only waiting classes are served.
func TestLowIsOneOfAnyHundred(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var p Picker
		passed, rescues := 0, 0
		for range 3000 {
			waits := [Classes]bool{r.IntN(50) > 0, r.IntN(50) > 0, r.IntN(50) > 0, true}
			c, rescued := serve(&p, waits)
			if c < 0 || !waits[c] {
				t.Fatalf("seed %d: class %d of %v", seed, c, waits)
			}
			if rescued {
				rescues++
			}
			if c == Low {
				passed = 0
			} else if passed++; passed > MaxPassed {
				t.Fatalf("seed %d: %d others in a row while low waited", seed, passed)
			}
		}
		if rescues == 0 {
			t.Fatalf("seed %d: low was never rescued, so the rule is not tested", seed)
		}
	}
}

// Next changes nothing: only Took counts.
func TestNextChangesNothing(t *testing.T) {
	all := [Classes]bool{true, true, true, true}
	var p Picker
	for range 500 {
		want := p.Next(all)
		for range 3 {
			if got := p.Next(all); got != want {
				t.Fatalf("class %d, and %d when asked again", want, got)
			}
		}
		p.Took(want, all)
	}
}

// A flooding party leaves a tenth to the next one, which leaves a tenth of that.
func TestWithin(t *testing.T) {
	used, limit := 0, 1000
	for i, want := range []int{900, 90, 9} {
		held := 0
		for Within(held, used, limit) && used < limit {
			held, used = held+1, used+1
		}
		if held < want-1 || held > want+1 {
			t.Errorf("party %d got %d of %d, want about %d", i, held, limit, want)
		}
	}
	if !Within(1000, 1000, 1000) {
		t.Error("the share refuses although nothing is free")
	}
}

func TestShareOfWhatIsFree(t *testing.T) {
	for _, tt := range []struct {
		held, used, limit int
		want              bool
	}{
		{0, 0, 1, true},
		{89, 89, 100, true},  // a party alone gets nine tenths
		{90, 90, 100, false}, // but no more
		{0, 90, 100, true},   // the next party gets some of the last tenth
		{8, 98, 100, true},
		{9, 99, 100, false},
		{200, 100, 100, true}, // full: the capacity limit refuses, not the share
	} {
		if got := Within(tt.held, tt.used, tt.limit); got != tt.want {
			t.Errorf("Within(%d, %d, %d) = %v", tt.held, tt.used, tt.limit, got)
		}
	}
}
