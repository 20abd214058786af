package gossip

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// syncCores runs an exchange between a and b and returns the number of steps.
func syncCores(t *testing.T, now time.Duration, a, b *Core) int {
	t.Helper()
	steps := 0
	for ask := a.Ask(proto.PeerID{}, nil); ask != nil; steps++ {
		if len(ask.Lines) > proto.MaxDigests || len(ask.Updates) > proto.MaxRumors || steps > 500 {
			t.Fatalf("step %d: %d lines, %d updates", steps, len(ask.Lines), len(ask.Updates))
		}
		ans, _ := b.Answer(now, a.self, ask)
		if len(ans.Updates) > proto.MaxRumors || len(ans.Wanted) > proto.MaxRumors {
			t.Fatalf("step %d: %d updates, %d wanted", steps, len(ans.Updates), len(ans.Wanted))
		}
		ask, _ = a.Answered(now, b.self, ask, ans)
	}
	return steps
}

// Whatever two nodes knew before, they know the same after one exchange, and a second
// exchange takes few steps.
func TestExchangeMakesTwoNodesEqual(t *testing.T) {
	for _, n := range []int{0, 1, 31, 32, 33, 255, 256, 257, 1000} {
		for seed := range uint64(4) {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			s := newSim(seed, 2, testTuning())
			s.run(2 * time.Second)
			a, b := s.nodes[0].core, s.nodes[1].core
			for i := range n {
				p := &simNode{s: s, id: simID(i + 2), boot: 5, state: proto.NodeRunning}
				for _, c := range []*Core{a, b} {
					if r.IntN(3) > 0 { // random knowledge, in random versions
						c.Updates(s.now, s.nodes[0].id, []*Update{p.Record(p.boot<<20+uint64(r.IntN(3)), 1+uint64(r.IntN(3)))})
					}
					if m := c.members[p.id]; m != nil && r.IntN(10) == 0 {
						by := &simNode{id: simID(5000 + i)} // one accuser each, so that none is throttled
						c.suspect(s.now, m, by.id, by.Accuse(p.id, m.incarnation, proto.Suspect))
					}
				}
			}
			steps := syncCores(t, s.now, a, b)
			if a.Root() != b.Root() {
				syncCores(t, s.now, a, b) // for suspicions of an incarnation that the other did not know yet
			}
			if a.Root() != b.Root() {
				t.Errorf("%d rows, seed %d: roots differ after %d steps", n, seed, steps)
			}
			if again := syncCores(t, s.now, a, b); again > n/proto.MaxDigests+1 {
				t.Errorf("%d rows, seed %d: %d steps without a difference", n, seed, again)
			}
			if seed == 0 {
				t.Logf("%d rows: %d steps", n, steps)
			}
		}
	}
}

// A rumor is piggybacked a bounded number of times, with at most eight per message, and a
// newer statement replaces an older one.
func TestRumorsAreSentABoundedNumberOfTimes(t *testing.T) {
	var r rumors
	r.init()
	n := &simNode{id: simID(1), boot: 1}
	for i := range uint64(600) {
		o := &simNode{id: simID(int(i)), boot: 1}
		r.add(o.Record(1, 1))
		r.add(n.Record(1+i, 1))
	}
	if len(r.waiting) > maxRumors {
		t.Errorf("%d rumors wait", len(r.waiting))
	}
	sent := map[*Update]int{}
	for range 10_000 {
		updates := r.take(nil, proto.MaxPiggyback, transmits(20))
		if len(updates) > proto.MaxPiggyback {
			t.Fatalf("%d rumors in a message", len(updates))
		}
		for _, n := range updates {
			sent[n]++
		}
	}
	for n, times := range sent {
		if times != transmits(20) {
			t.Fatalf("a rumor about %x was sent %d times", n.Peer[:2], times)
		}
	}
	if len(r.waiting) > 0 {
		t.Errorf("%d rumors are never dropped", len(r.waiting))
	}
}
