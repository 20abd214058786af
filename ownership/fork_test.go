package ownership

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// chainOf returns the state of the queue q whose home the last deed names.
func chainOf(deeds ...proof) *proto.QueueState {
	last := deeds[len(deeds)-1]
	return &proto.QueueState{Name: "q", Home: slices.Clone(last.To[:]), Generation: last.Generation, Deeds: signedOf(deeds)}
}

func proofBy(t *testing.T, by proto.PeerID, d Deed) proof {
	t.Helper()
	if d.Root == (Root{}) {
		d.Root = rootBy("q", peerOf(0))
	}
	return proof{d, signedDeed(t, by, d)}
}

// No former home can undo what an admin has stated since: with an accomplice that never
// had the queue it signs any number of handoffs that go back to itself, and they count for
// less than the admin's deed, whatever arrives first.
func TestFormerHomesCannotTakeAQueueBack(t *testing.T) {
	s := newSim(1)
	admin, other, home, next, liar := peerOf(0), peerOf(1), peerOf(5), peerOf(6), peerOf(7)
	made := proofBy(t, admin, Deed{Generation: 1, To: home})
	hand := func(g uint64, from, to proto.PeerID) proof {
		return proofBy(t, from, Deed{Generation: g, From: from, To: to})
	}
	seized := func(g uint64, from proto.PeerID) proof {
		return proofBy(t, other, Deed{Generation: g, From: from, To: other, Seized: true})
	}
	confirmed := func(g uint64, to proto.PeerID) proof { return proofBy(t, other, Deed{Generation: g, To: to}) }
	fork := []proof{made, hand(2, home, liar), hand(3, liar, home), hand(4, home, liar), hand(5, liar, home)}
	handed := []proof{made, hand(2, home, next)}
	with := func(all []proof, more ...proof) []proof { return append(slices.Clone(all), more...) }
	for _, tt := range []struct {
		name   string
		honest []proof
		want   proto.PeerID
	}{
		{"seized", []proof{made, seized(2, home)}, other},
		{"handed over and confirmed", with(handed, confirmed(2, next)), next},
		{"handed over and seized", with(handed, seized(3, next)), other},
		{"seized and handed over", []proof{made, seized(2, home), hand(3, other, next)}, next},
		{"confirmed, and handed over twice", with(handed, confirmed(2, next), hand(3, next, other), hand(4, other, next)), next},
		{"seized after the fork", with(fork, seized(6, home)), other},
	} {
		for _, order := range [][]*proto.QueueState{
			{chainOf(tt.honest...), chainOf(fork...)},
			{chainOf(fork...), chainOf(tt.honest...)},
			{chainOf(fork...), chainOf(tt.honest...), chainOf(fork...), chainOf(tt.honest...)},
		} {
			t.Run(tt.name, func(t *testing.T) {
				h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
				h.Learn(chainOf(made), Now{})
				for _, m := range order {
					h.Learn(m, Now{})
				}
				if got, g := h.HomeOf("q"); got != tt.want {
					t.Errorf("its home is %d in generation %d, want %d", got[0]-1, g, tt.want[0]-1)
				}
			})
		}
	}
}

// An admin that has not heard of a seizure confirms a former home: the seizure counts
// everywhere, also at that admin once it has heard of it.
func TestASeizureOutranksAnOldConfirmation(t *testing.T) {
	s := newSim(1)
	admin, behind, evil, liar := peerOf(0), peerOf(1), peerOf(5), peerOf(7)
	made := proofBy(t, admin, Deed{Generation: 1, To: evil})
	seized := chainOf(made, proofBy(t, admin, Deed{Generation: 2, From: evil, To: admin, Seized: true}))
	fork := []proof{made, proofBy(t, evil, Deed{Generation: 2, From: evil, To: liar}), proofBy(t, liar, Deed{Generation: 3, From: liar, To: evil})}
	b := NewHome(behind, 1, Config{Deeds: simDeeds{s.nodes[1]}})
	b.Learn(chainOf(made), Now{})
	b.Learn(chainOf(fork...), Now{})
	confirmed, err := b.Confirm("q", 3, evil)
	if err != nil {
		t.Fatal(err)
	}
	claim := chainOf(fork...)
	claim.Deeds = append(claim.Deeds, confirmed)
	other := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
	for name, h := range map[string]*Home{"the admin": b, "another": other} {
		for _, m := range []*proto.QueueState{claim, seized, claim} {
			h.Learn(m, Now{})
		}
		if got, g := h.HomeOf("q"); got != admin || g != 2 {
			t.Errorf("%s: its home is %d in generation %d", name, got[0]-1, g)
		}
	}
}

// A confirmation tells of the newest seizure before it, so that a node that knows nothing
// older ranks it as all others do.
func TestAConfirmationKeepsTheRankOfASeizure(t *testing.T) {
	s := newSim(1)
	admin, old, next, liar := peerOf(0), peerOf(5), peerOf(6), peerOf(7)
	made := proofBy(t, admin, Deed{Generation: 1, To: old})
	chain := chainOf(made, proofBy(t, admin, Deed{Generation: 2, From: old, To: admin, Seized: true}), proofBy(t, admin, Deed{Generation: 3, From: admin, To: next}))
	h := NewHome(admin, 1, Config{Deeds: simDeeds{s.nodes[0]}})
	h.Learn(chain, Now{})
	confirmed, err := h.Confirm("q", 3, next)
	if err != nil {
		t.Fatal(err)
	}
	fork := chainOf(made, proofBy(t, old, Deed{Generation: 2, From: old, To: liar}), proofBy(t, liar, Deed{Generation: 3, From: liar, To: old}), proofBy(t, peerOf(1), Deed{Generation: 9, To: old}))
	newcomer := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
	newcomer.Learn(&proto.QueueState{Name: "q", Home: next[:], Generation: 3, Deeds: []*proto.Signed{confirmed}}, Now{})
	newcomer.Learn(fork, Now{})
	if got, g := newcomer.HomeOf("q"); got != next || g != 3 {
		t.Errorf("its home is %d in generation %d", got[0]-1, g)
	}
}

// What a former home signs to keys of its own does not displace the deeds of other former
// homes, nor fill the state.
func TestForksDoNotDisplaceFormerHomes(t *testing.T) {
	s := newSim(1)
	admin, first, evil, home := peerOf(0), peerOf(5), peerOf(6), peerOf(4)
	hand := func(g uint64, from, to proto.PeerID) proof {
		return proofBy(t, from, Deed{Generation: g, From: from, To: to})
	}
	history := []proof{proofBy(t, admin, Deed{Generation: 1, To: first}), hand(2, first, evil), hand(3, evil, home)}
	for name, members := range map[string]bool{"keys of its own": false, "accomplices": true} {
		h := NewHome(home, 1, Config{Deeds: simDeeds{s.nodes[4]}, MayBeHome: func(p proto.PeerID) bool { return members || p[0] < 100 }})
		h.Learn(chainOf(append(slices.Clone(history), proofBy(t, admin, Deed{Generation: 3, To: home}))...), Now{})
		for range 2 {
			for i := range 64 {
				h.Learn(chainOf(append(slices.Clone(history[:2]), hand(3, evil, peerOf(100+i)))...), Now{})
			}
		}
		q := h.titles.byName["q"]
		if n := len(q.deeds) - 4; n > maxBeside || n > 0 && !members {
			t.Errorf("%s: %d deeds are kept besides its history", name, n)
		}
		for _, p := range []proto.PeerID{first, evil, home} {
			if !q.wasHome(p) {
				t.Errorf("%s: %d is not known as a former home any more", name, p[0]-1)
			}
		}
	}
}

// newestSeizure returns the generation of the newest seizure that the deeds of a chain
// state.
func newestSeizure(chain []proof) (g uint64) {
	for _, d := range chain {
		if d.Seized {
			g = d.Generation
		}
		g = max(g, d.Seizure)
	}
	return g
}

// A home that was revoked loses its queue only to a deed of an admin, also when its deeds
// are told again.
func TestFormerHomesCannotTakeTheQueueOfARevokedHome(t *testing.T) {
	s := newSim(1)
	admin, home, next, liar := peerOf(0), peerOf(5), peerOf(6), peerOf(7)
	made := proofBy(t, admin, Deed{Generation: 1, To: home})
	handed := proofBy(t, home, Deed{Generation: 2, From: home, To: next})
	fork := chainOf(made, proofBy(t, home, Deed{Generation: 2, From: home, To: liar}), proofBy(t, liar, Deed{Generation: 3, From: liar, To: home}))
	h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
	h.Learn(chainOf(made, handed), Now{})
	h.Revoked(next, Now{})
	h.Learn(chainOf(made, handed), Now{})
	h.Learn(fork, Now{})
	if got, g := h.HomeOf("q"); got != next || g != 2 {
		t.Errorf("its home is %d in generation %d", got[0]-1, g)
	}
	h.Learn(chainOf(proofBy(t, admin, Deed{Generation: 3, From: next, To: admin, Seized: true})), Now{})
	if got, g := h.HomeOf("q"); got != admin || g != 3 {
		t.Errorf("seized, its home is %d in generation %d", got[0]-1, g)
	}
}

// A node that has seen a fork of a home, and then its revocation, accepts the seizure by an
// admin that never saw the fork.
func TestASeizureCountsWhereARevokedHomeForked(t *testing.T) {
	s := newSim(1)
	admin, evil, liar := peerOf(0), peerOf(5), peerOf(7)
	made := proofBy(t, admin, Deed{Generation: 1, To: evil})
	fork := []proof{made}
	for g := uint64(2); g <= 30; g += 2 {
		fork = append(fork, proofBy(t, evil, Deed{Generation: g, From: evil, To: liar}), proofBy(t, liar, Deed{Generation: g + 1, From: liar, To: evil}))
	}
	h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
	h.Learn(chainOf(fork...), Now{})
	out := h.Revoked(evil, Now{})
	again := NewHome(peerOf(4), 2, Config{Deeds: simDeeds{s.nodes[4]}})
	if _, err := again.Load(out.Writes[0].Key, out.Writes[0].Val); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]*Home{"at once": h, "started again": again} {
		h.Learn(chainOf(made, proofBy(t, admin, Deed{Generation: 2, From: evil, To: admin, Seized: true})), Now{})
		if got, g := h.HomeOf("q"); got != admin || g != 2 {
			t.Errorf("%s: its home is %d in generation %d", name, got[0]-1, g)
		}
	}
}

// Nodes that learn the same claims, true ones and forks, in any order agree on the home.
func TestNodesAgreeOnForks(t *testing.T) {
	s := newSim(1)
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 0))
		chains := [][]proof{{proofBy(t, peerOf(0), Deed{Generation: 1, To: peerOf(5)})}}
		for range 2 + rng.IntN(8) { // each goes on from any deed of an earlier one
			chain := chains[rng.IntN(len(chains))]
			chain = slices.Clone(chain[:1+rng.IntN(len(chain))])
			for range 1 + rng.IntN(3) {
				last := chain[len(chain)-1]
				to := peerOf(5 + rng.IntN(5))
				d, by := Deed{Generation: last.Generation + 1, From: last.To, To: to}, last.To
				switch rng.IntN(6) {
				case 0:
					d.Seized, by = true, peerOf(rng.IntN(2))
				case 1:
					d, by = Deed{Generation: last.Generation, To: last.To, Seizure: newestSeizure(chain)}, peerOf(rng.IntN(2))
				}
				if d.From == d.To {
					continue
				}
				chain = append(chain, proofBy(t, by, d))
			}
			chains = append(chains, chain)
		}
		homes := make([]*Home, 4)
		for i := range homes {
			homes[i] = NewHome(peerOf(10+i), 1, Config{Deeds: simDeeds{s.nodes[4]}})
			for _, at := range rng.Perm(len(chains)) {
				homes[i].Learn(chainOf(chains[at]...), Now{})
			}
		}
		for range 3 {
			for _, a := range homes {
				for _, b := range homes {
					b.Learn(a.Queue("q"), Now{})
				}
			}
		}
		want, generation := homes[0].HomeOf("q")
		for i, h := range homes {
			if got, g := h.HomeOf("q"); got != want || g != generation {
				t.Fatalf("seed %d: the home is %d in generation %d at node 0, and %d in generation %d at node %d", seed, want[0]-1, generation, got[0]-1, g, i)
			}
		}
	}
}

// A confirmation by an admin that does not know the newest seizure changes nothing, and is
// an error; one that was added before is not added again.
func TestAConfirmationThatCountsForLess(t *testing.T) {
	s := newSim(1)
	admin, other, home, before, self := peerOf(0), peerOf(1), peerOf(5), peerOf(6), peerOf(4)
	h := NewHome(self, 1, Config{Deeds: simDeeds{s.nodes[4]}})
	h.Learn(chainOf(proofBy(t, admin, Deed{Generation: 1, To: home}), proofBy(t, other, Deed{Generation: 2, From: home, To: before, Seized: true}), handed(t, 3, before, self)), Now{})
	confirm := func(seizure uint64) (Output, error) {
		return h.Confirmed("q", signedDeed(t, admin, Deed{Generation: 3, To: self, Seizure: seizure}), Now{})
	}
	if out, err := confirm(0); err == nil || len(out.Writes) > 0 || len(h.titles.byName["q"].sinceAdmin()) != 1 {
		t.Errorf("without the seizure: %v, it writes %v", err, out.Writes)
	}
	if out, err := confirm(2); err != nil || len(out.Writes) != 1 || len(h.titles.byName["q"].sinceAdmin()) != 0 {
		t.Errorf("with it: %v, it writes %v", err, out.Writes)
	}
	if out, err := confirm(2); err != nil || len(out.Writes) > 0 {
		t.Errorf("again: %v, it writes %v", err, out.Writes)
	}
}
