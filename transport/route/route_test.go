package route

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/proto"
)

// weights are those that a node has by default.
var weights = Weights{Bandwidth: 1, Latency: 1, Loss: 2}

func TestScore(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	tests := []struct {
		name string
		w    Weights
		p    Path
		want Score
	}{
		{"nothing is known", weights, Path{}, Score{1, 0.5, 0.5, 0}},
		{"the half values", weights, Path{HalfRTT, HalfLoss, HalfRate}, Score{0, 0.5, 0.5, 1}},
		{"a weight is the value of the best", Weights{4, 3, 1}, Path{1, 0, 1e15}, Score{7, 4, 3, 0}},
		{"everything is lost", Weights{1, 1, 1}, Path{HalfRTT, 1, HalfRate}, Score{1 - 1/1.02, 0.5, 0.5, 1 / 1.02}},
		{"an omitted term", Weights{Latency: 1, Loss: 2}, Path{Rate: 1e9}, Score{0.5, 0, 0.5, 0}},
	}
	for _, tt := range tests {
		got := tt.w.Score(tt.p)
		if !near(got.Bandwidth, tt.want.Bandwidth) || !near(got.Latency, tt.want.Latency) ||
			!near(got.Loss, tt.want.Loss) || !near(got.Total, tt.want.Total) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func genPath(t *rapid.T, name string) Path {
	return Path{
		RTT:  time.Duration(rapid.Int64Range(1, int64(5*time.Second)).Draw(t, name+" rtt")),
		Loss: rapid.Float64Range(0, 1).Draw(t, name+" loss"),
		Rate: rapid.Float64Range(1, 1e9).Draw(t, name+" rate"),
	}
}

// TestBetterInEveryTermNeverLoses checks that the score is monotone in each input,
// whatever the weights.
func TestBetterInEveryTermNeverLoses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Weights{rapid.Float64Range(0, 10).Draw(t, "α"), rapid.Float64Range(0, 10).Draw(t, "β"), rapid.Float64Range(0, 10).Draw(t, "γ")}
		a := genPath(t, "a")
		b := Path{
			RTT:  a.RTT + time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "slower")),
			Loss: min(1, a.Loss+rapid.Float64Range(0, 1).Draw(t, "lossier")),
			Rate: max(1, a.Rate-rapid.Float64Range(0, 1e9).Draw(t, "thinner")),
		}
		if w.Score(b).Total > w.Score(a).Total {
			t.Fatalf("%+v scores higher than %+v", b, a)
		}
	})
}

// TestTermsAreBounded checks that no term exceeds its weight.
func TestTermsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := weights
		s := w.Score(genPath(t, "a"))
		if s.Bandwidth < 0 || s.Bandwidth > w.Bandwidth || s.Latency < 0 || s.Latency > w.Latency || s.Loss < 0 || s.Loss > w.Loss {
			t.Fatalf("%+v", s)
		}
	})
}

// TestJoinedPathIsWorse checks that a path through a relay is never better than either of
// its halves.
func TestJoinedPathIsWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genPath(t, "a"), genPath(t, "b")
		j := weights.Score(Join(a, b)).Total
		if j > weights.Score(a).Total+1e-9 || j > weights.Score(b).Total+1e-9 {
			t.Fatalf("%+v and %+v are better together", a, b)
		}
	})
}

func TestJoinWithUnknown(t *testing.T) {
	if got := Join(Path{RTT: 1}, Path{Rate: 7}); got != (Path{RTT: HalfRTT + 1, Rate: 7}) {
		t.Errorf("%+v", got)
	}
	if got := Join(Path{RTT: 1, Rate: 3}, Path{RTT: 2}); got != (Path{RTT: 3, Rate: 3}) {
		t.Errorf("%+v", got)
	}
}

func TestMeter(t *testing.T) {
	var m Meter
	m.RTT(0)
	m.Packets(minPackets-1, 1)
	m.Bytes(1<<30, time.Millisecond)
	if m.Path() != (Path{}) {
		t.Errorf("too few samples, but the meter returns %+v", m.Path())
	}
	m.RTT(100 * time.Millisecond)
	if m.Path().RTT != 100*time.Millisecond {
		t.Errorf("RTT %v", m.Path().RTT)
	}
	for range 100 {
		m.RTT(20 * time.Millisecond)
		m.Packets(1000, 50)
		m.Bytes(1<<20, time.Second)
	}
	p := m.Path()
	if p.RTT > 21*time.Millisecond || math.Abs(p.Loss-0.05) > 0.001 || math.Abs(p.Rate-1<<20) > 1<<15 {
		t.Errorf("after a hundred equal samples: %+v", p)
	}
}

// TestMeterNeedsEvidenceOfLoss checks that one lost packet of twenty is no bad path yet.
func TestMeterNeedsEvidenceOfLoss(t *testing.T) {
	for _, tt := range []struct {
		sent, lost uint64
		want       float64
	}{{20, 1, 0}, {99, 2, 0}, {100, 2, 0.02}, {20, 3, 0.15}} {
		var m Meter
		m.Packets(tt.sent, tt.lost)
		if got := m.Path().Loss; math.Abs(got-smooth*tt.want) > 1e-9 {
			t.Errorf("%d of %d packets lost: %v, want a sample of %v", tt.lost, tt.sent, got, tt.want)
		}
	}
}

// TestMeterIgnoresQueues checks that two round trips of five that waited in a queue do not
// change the measured one, and that it follows a change of the path.
func TestMeterIgnoresQueues(t *testing.T) {
	var m Meter
	for i := range 50 {
		rtt := 90 * time.Millisecond
		if i%5 > 2 {
			rtt = 3 * time.Second
		}
		m.RTT(rtt)
		if i > 5 && m.Path().RTT > 90*time.Millisecond {
			t.Fatalf("round trip %v", m.Path().RTT)
		}
	}
	for range 3 {
		m.RTT(200 * time.Millisecond)
	}
	if m.Path().RTT != 200*time.Millisecond {
		t.Errorf("after a change it is still %v", m.Path().RTT)
	}
}

func peerNo(n int) (p proto.PeerID) { p[0] = byte(n); return p }

// TestPickNeverFlapsUnderNoise checks that relays whose scores differ by less than the
// margin are never exchanged.
func TestPickNeverFlapsUnderNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Picker
		n := rapid.IntRange(1, 6).Draw(t, "relays")
		var held, first []proto.PeerID
		for step := range 200 {
			var candidates []Candidate
			for i := range n {
				candidates = append(candidates, Candidate{peerNo(i), 1 + rapid.Float64Range(-0.1, 0.1).Draw(t, "score")})
			}
			held = p.Pick(held, candidates, time.Duration(step)*30*time.Second)
			slices.SortFunc(held, func(a, b proto.PeerID) int { return int(a[0]) - int(b[0]) })
			if step == 0 {
				first = held
			}
			if !slices.Equal(held, first) {
				t.Fatalf("step %d: %v after %v", step, held, first)
			}
		}
	})
}

// TestPickKeepsHeldRelays checks that every pick returns as many relays as wanted, or all
// that exist, each once.
func TestPickKeepsHeldRelays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Picker{Want: rapid.IntRange(1, 3).Draw(t, "want")}
		var held []proto.PeerID
		for step := range 50 {
			var candidates []Candidate
			for i := range 5 {
				if rapid.Bool().Draw(t, "there") {
					candidates = append(candidates, Candidate{peerNo(i), rapid.Float64Range(-2, 2).Draw(t, "score")})
				}
			}
			before := held
			held = p.Pick(held, candidates, time.Duration(step)*time.Second)
			if len(held) != min(p.Want, len(candidates)) {
				t.Fatalf("%d of %d are held", len(held), len(candidates))
			}
			changed := 0
			for i, h := range held {
				if !slices.ContainsFunc(candidates, func(c Candidate) bool { return c.Peer == h }) || slices.Contains(held[:i], h) {
					t.Fatalf("%v is held", h)
				}
			}
			for _, b := range before {
				if slices.ContainsFunc(candidates, func(c Candidate) bool { return c.Peer == b }) && !slices.Contains(held, b) {
					changed++
				}
			}
			if changed > 1 {
				t.Fatalf("%d were replaced at once", changed)
			}
		}
	})
}

// TestPickReplacesAfterHold checks that a clearly better relay takes over after the hold
// time, not before, and that an interruption restarts the time.
func TestPickReplacesAfterHold(t *testing.T) {
	p := Picker{Want: 1}
	old, rival := peerNo(1), peerNo(2)
	pick := func(at time.Duration, score float64) proto.PeerID {
		return p.Pick([]proto.PeerID{old}, []Candidate{{old, 1}, {rival, score}}, at)[0]
	}
	for _, step := range []struct {
		at    time.Duration
		score float64
		want  proto.PeerID
	}{{0, 1.5, old}, {50 * time.Second, 1.5, old}, {55 * time.Second, 1.1, old}, {70 * time.Second, 1.5, old}, {125 * time.Second, 1.5, old}, {130 * time.Second, 1.5, rival}} {
		if got := pick(step.at, step.score); got != step.want {
			t.Errorf("at %v: %v", step.at, got)
		}
	}
}

// TestPickCalmsDown checks that relays which become better than each other in turn replace
// one another less and less often, and that after a calm hour the first hold time is back.
func TestPickCalmsDown(t *testing.T) {
	p := Picker{Want: 1}
	held := []proto.PeerID{peerNo(1)}
	var at []time.Duration
	now := time.Duration(0)
	for ; now < 3*time.Hour; now += time.Second {
		scores := []Candidate{{peerNo(1), 1}, {peerNo(2), 1}}
		scores[2-int(held[0][0])].Score = 2 // the other one
		if got := p.Pick(held, scores, now); got[0] != held[0] {
			held, at = got, append(at, now)
		}
	}
	if len(at) < 5 || len(at) > 10 || at[0] != time.Minute || at[1]-at[0] < 2*time.Minute {
		t.Errorf("replaced at %v", at)
	}
	for end := now + 2*time.Hour; now < end; now += time.Second {
		p.Pick(held, []Candidate{{held[0], 1}}, now)
	}
	begin := now
	for ; p.Pick(held, []Candidate{{held[0], 1}, {peerNo(3), 2}}, now)[0] == held[0]; now += time.Second {
	}
	if now-begin != time.Minute {
		t.Errorf("after a calm hour it takes %v", now-begin)
	}
}
