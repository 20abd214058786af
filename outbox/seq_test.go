package outbox

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/proto"
)

// TestMark checks the settled mark (I12) over random histories: it never goes back,
// everything outstanding is above it, and when nothing is, it covers everything that
// was ever promised.
func TestMark(t *testing.T) {
	peers := []proto.PeerID{{1}, {2}}
	rapid.Check(t, func(t *rapid.T) {
		boot := uint64(10)
		s := newSeqs(boot)
		open := map[proto.PeerID][]proto.Seq{}
		last := map[proto.PeerID]proto.Seq{}
		peer := rapid.SampledFrom(peers)
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) {
				p := peer.Draw(t, "peer")
				seq := s.next(p)
				if seq.Compare(last[p]) <= 0 {
					t.Fatalf("%v was promised after the mark %v", seq, last[p])
				}
				open[p] = append(open[p], seq)
			},
			"settle": func(t *rapid.T) {
				p := peer.Draw(t, "peer")
				if len(open[p]) == 0 {
					return
				}
				i := rapid.IntRange(0, len(open[p])-1).Draw(t, "which")
				s.settle(p, open[p][i])
				s.settle(p, open[p][i]) // again: nothing
				open[p] = append(open[p][:i:i], open[p][i+1:]...)
			},
			"restart": func(t *rapid.T) {
				boot++
				s = newSeqs(boot)
				for p, list := range open { // in any order
					for i := len(list) - 1; i >= 0; i-- {
						s.found(p, list[i])
					}
				}
				s.sort()
			},
			"": func(t *rapid.T) {
				for _, p := range peers {
					m := s.mark(p)
					if m.Compare(last[p]) < 0 {
						t.Fatalf("the mark went back from %v to %v", last[p], m)
					}
					last[p] = m
					for _, seq := range open[p] {
						if seq.Compare(m) <= 0 {
							t.Fatalf("%v is outstanding and not above the mark %v", seq, m)
						}
					}
					if len(open[p]) == 0 && m != s.last {
						t.Fatalf("nothing is outstanding, the mark is %v, not %v", m, s.last)
					}
					if outstanding(&s, p) != len(open[p]) {
						t.Fatalf("%d outstanding, want %d", outstanding(&s, p), len(open[p]))
					}
				}
			},
		})
	})
}

// One old task must not make later ones cost memory (I15).
func TestOldTaskRetainsNoMemory(t *testing.T) {
	p := proto.PeerID{1}
	s := newSeqs(1)
	s.next(p)
	for range 100_000 {
		s.settle(p, s.next(p))
	}
	if n := len(s.targets[p].entries); n > 4096 {
		t.Errorf("%d entries for one outstanding task", n)
	}
	if m := s.mark(p); m != (proto.Seq{Boot: 1}) {
		t.Errorf("mark = %v", m)
	}
}

// outstanding returns how many sequences of p are not settled.
func outstanding(s *seqs, p proto.PeerID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.targets[p]; t != nil {
		return len(t.entries) - t.settled
	}
	return 0
}
