package dispatch

import (
	"testing"

	"github.com/balefire/balefire/proto"
	"pgregory.net/rapid"
)

func peer(i int) (p proto.PeerID) { p[0] = byte(i + 1); return p }

func member(i int, change func(*Member)) *Member {
	m := &Member{Peer: peer(i), Alive: true, Kinds: []string{"build"}, Slots: 4, Labels: []string{"os=linux"}}
	if change != nil {
		change(m)
	}
	return m
}

// A node is a candidate only if it is alive, is not draining, serves the kind, and has the
// labels and a free slot (S30).
func TestEligible(t *testing.T) {
	busy := NewUsage(0)
	busy.Add(peer(0), "build", 2, 0)
	tests := []struct {
		name   string
		task   Task
		change func(*Member)
		usage  *Usage
		limits Limits
		want   bool
	}{
		{"a node that can", Task{Kind: "build"}, nil, nil, Limits{}, true},
		{"suspect, or alive too briefly", Task{Kind: "build"}, func(m *Member) { m.Alive = false }, nil, Limits{}, false},
		{"draining", Task{Kind: "build"}, func(m *Member) { m.Draining = true }, nil, Limits{}, false},
		{"no handler for the kind", Task{Kind: "test"}, nil, nil, Limits{}, false},
		{"lacks a label", Task{Kind: "build", Labels: []string{"gpu"}}, nil, nil, Limits{}, false},
		{"has the label", Task{Kind: "build", Labels: []string{"os=linux"}}, nil, nil, Limits{}, true},
		{"prefers another", Task{Kind: "build", Prefer: []string{"gpu"}}, nil, nil, Limits{}, true},
		{"busy, as it says", Task{Kind: "build"}, func(m *Member) { m.Busy = 4 }, nil, Limits{}, false},
		{"busy, as its home knows", Task{Kind: "build"}, func(m *Member) { m.Slots = 2 }, busy, Limits{}, false},
		{"its own limit", Task{Kind: "build"}, func(m *Member) { m.Limit = 2 }, busy, Limits{}, false},
		{"its own limit goes before that of the queue", Task{Kind: "build"}, func(m *Member) { m.Limit = 3 }, busy, Limits{Node: 2}, true},
		{"the queue's limit for each node", Task{Kind: "build"}, nil, busy, Limits{Node: 2}, false},
		{"the queue's limit", Task{Kind: "build"}, nil, busy, Limits{Queue: 2}, false},
		{"the limit of the kind", Task{Kind: "build"}, nil, busy, Limits{Kinds: map[string]KindLimit{"build": {Queue: 2}}}, false},
		{"the limit of the kind on each node", Task{Kind: "build"}, nil, busy, Limits{Kinds: map[string]KindLimit{"build": {Node: 2}}}, false},
		{"the limit of another kind", Task{Kind: "build"}, nil, busy, Limits{Kinds: map[string]KindLimit{"llm": {Queue: 1}}}, true},
		{"slots not known", Task{Kind: "build"}, func(m *Member) { m.Slots = 0 }, nil, Limits{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := tt.usage
			if u == nil {
				u = NewUsage(0)
			}
			got := len(Eligible(nil, &tt.task, []*Member{member(0, tt.change)}, u, tt.limits)) == 1
			if got != tt.want {
				t.Errorf("eligible %v, want %v", got, tt.want)
			}
		})
	}
}

func TestPreferredLabelsGoFirst(t *testing.T) {
	all := []*Member{member(0, nil), member(1, func(m *Member) { m.Labels = append(m.Labels, "gpu") }), member(2, nil)}
	got := Eligible(nil, &Task{Kind: "build", Prefer: []string{"gpu"}}, all, NewUsage(0), Limits{})
	if len(got) != 1 || got[0].Peer != peer(1) {
		t.Errorf("candidates %v, want the one with the label", got)
	}
}

func TestStrategies(t *testing.T) {
	among := func(change ...func(*Candidate)) []Candidate {
		var out []Candidate
		for i, c := range change {
			x := Candidate{Member: member(i, nil), Free: 4}
			c(&x)
			out = append(out, x)
		}
		return out
	}
	same := func(*Candidate) {}
	tests := []struct {
		strategy string
		name     string
		among    []Candidate
		want     int
	}{
		{Ordered, "the first", among(same, same), 0},
		{Priority, "the highest", among(same, func(c *Candidate) { c.Priority = 5 }, func(c *Candidate) { c.Priority = 3 }), 1},
		{Priority, "among equals the idle one", among(func(c *Candidate) { c.Free = 1 }, same), 1},
		{LeastLoaded, "the one with the larger share free", among(func(c *Candidate) { c.Slots, c.Free = 8, 4 }, func(c *Candidate) { c.Free = 3 }), 1},
		{LeastLoaded, "a heavy one counts as larger", among(func(c *Candidate) { c.Free = 3 }, func(c *Candidate) { c.Free, c.Weight = 3, 2 }), 1},
		{LeastLoaded, "among equals the machine with less to do", among(func(c *Candidate) { c.Load = 900 }, func(c *Candidate) { c.Load = 100 }), 1},
		{RoundRobin, "the first of equals", among(same, same), 0},
	}
	for _, tt := range tests {
		t.Run(tt.strategy+": "+tt.name, func(t *testing.T) {
			s, err := New(tt.strategy)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Pick(&Task{}, tt.among); got != tt.want {
				t.Errorf("picked %d, want %d", got, tt.want)
			}
		})
	}
	if _, err := New("lottery"); err == nil {
		t.Error("a strategy that is not there was found")
	}
}

// Over any number of picks each node gets its share by weight, to within one.
func TestRoundRobinIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint32Range(1, 9), 1, 6).Draw(t, "weights")
		rounds := rapid.IntRange(1, 200).Draw(t, "rounds")
		var among []Candidate
		total := 0
		for i, w := range weights {
			among = append(among, Candidate{Member: member(i, func(m *Member) { m.Weight = w }), Free: 1})
			total += int(w)
		}
		s, _ := New(RoundRobin)
		got := make([]int, len(weights))
		for range rounds {
			got[s.Pick(&Task{}, among)]++
		}
		for i, w := range weights {
			if d := float64(got[i]) - float64(rounds)*float64(w)/float64(total); d > float64(len(weights)) || d < -float64(len(weights)) {
				t.Fatalf("weights %v, %d rounds: %v", weights, rounds, got)
			}
		}
	})
}

// Whatever the strategy, and however often it is switched under load, no task is lost or
// given out twice, and no limit is exceeded.
func TestASwitchUnderLoadLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := Names()
		s, _ := New("")
		u, l := NewUsage(0), Limits{Queue: 6, Node: 3, Kinds: map[string]KindLimit{"build": {Node: 2}}}
		members := []*Member{member(0, nil), member(1, nil), member(2, func(m *Member) { m.Slots = 1 })}
		waiting, owned, done := []int{}, map[int]proto.PeerID{}, map[int]bool{}
		for i := range rapid.IntRange(1, 60).Draw(t, "tasks") {
			waiting = append(waiting, i)
		}
		total := len(waiting)
		for len(done) < total {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				s, _ = New(rapid.SampledFrom(names).Draw(t, "strategy"))
			case 1:
				for id, p := range owned {
					u.Add(p, "build", -1, 0)
					delete(owned, id)
					done[id] = true
					break
				}
			default:
				among := Eligible(nil, &Task{Kind: "build"}, members, u, l)
				if len(waiting) == 0 || len(among) == 0 {
					for id, p := range owned { // it would wait: let all end
						u.Add(p, "build", -1, 0)
						delete(owned, id)
						done[id] = true
					}
					continue
				}
				p := among[s.Pick(&Task{Kind: "build"}, among)].Peer
				owned[waiting[0]] = p
				waiting = waiting[1:]
				u.Add(p, "build", 1, 0)
				if u.OwnedBy(p) > 2 || u.all > 6 {
					t.Fatalf("%d on one node, %d in all", u.OwnedBy(p), u.all)
				}
			}
			if len(waiting)+len(owned)+len(done) != total {
				t.Fatal("a task was lost")
			}
		}
	})
}
