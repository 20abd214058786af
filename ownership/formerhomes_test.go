package ownership

import (
	"bytes"
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

func handed(t *testing.T, g uint64, from, to proto.PeerID) proof {
	t.Helper()
	return proofBy(t, from, Deed{Generation: g, From: from, To: to})
}

// A seizure proves nothing about the node from which the queue was seized.
func TestASeizureProvesNoFormerHome(t *testing.T) {
	s := newSim(1)
	admin, evil := peerOf(0), peerOf(6)
	seized := proofBy(t, admin, Deed{Generation: 3, From: evil, To: admin, Seized: true})
	h := NewHome(peerOf(1), 1, Config{Deeds: simDeeds{s.nodes[1]}})
	if news, _ := h.Learn(&proto.QueueState{Name: "q", Home: slices.Clone(evil[:]), Generation: 2, Deeds: []*proto.Signed{seized.signed}}, Now{}); news || h.titles.byName["q"].known() {
		t.Error("it is taken for the home")
	}
	h.Learn(chainOf(seized), Now{})
	if got, g := h.HomeOf("q"); got != admin || g != 3 {
		t.Errorf("its home is %d in generation %d", got[0]-1, g)
	}
}

// The home that has the tasks is known as a former home, and so can hand them over, however
// often its queue has moved and was confirmed before it lost.
func TestTheHomeOfALosingQueueIsKnown(t *testing.T) {
	s := newSim(1)
	winner, loser, lower, higher := peerOf(0), peerOf(1), rootBy("q", peerOf(0)), rootBy("q", peerOf(1))
	if bytes.Compare(lower[:], higher[:]) > 0 {
		winner, loser, lower, higher = loser, winner, higher, lower
	}
	for _, tt := range []struct {
		name string
		root Root
		by   proto.PeerID
		won  func(h *Home) // makes the queue of the winner known
	}{
		{"two admins created it", higher, loser, func(h *Home) {
			h.Learn(chainOf(proofBy(t, winner, Deed{Generation: 1, To: winner, Root: lower})), Now{})
		}},
		{"an admin seized it that had not heard of the moves", lower, winner, func(h *Home) {
			made := proofBy(t, winner, Deed{Generation: 1, To: peerOf(5), Root: lower})
			h.Learn(chainOf(made, proofBy(t, loser, Deed{Generation: 2, From: peerOf(5), To: loser, Seized: true, Root: lower})), Now{})
		}},
	} {
		for _, confirm := range []bool{true, false} {
			for moves := range 14 {
				at := peerOf(5)
				chain := []proof{proofBy(t, tt.by, Deed{Generation: 1, To: at, Root: tt.root})}
				for i := range moves {
					g, to := uint64(i+2), peerOf(6+i)
					chain = append(chain, proofBy(t, at, Deed{Generation: g, From: at, To: to, Root: tt.root}))
					if confirm {
						chain = append(chain, proofBy(t, tt.by, Deed{Generation: g, To: to, Root: tt.root}))
					}
					at = to
				}
				won, lost := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}}), NewHome(at, 1, Config{Deeds: simDeeds{s.nodes[4]}})
				tt.won(won)
				lost.Learn(chainOf(chain...), Now{})
				won.Learn(lost.Queue("q"), Now{})
				lost.Learn(won.Queue("q"), Now{})
				if a, b := won.titles.byName["q"].wasHome(at), lost.titles.byName["q"].wasHome(at); !a || !b {
					t.Errorf("%s, %d moves, confirmed %v: known elsewhere %v, at itself %v", tt.name, moves, confirm, a, b)
				}
			}
		}
	}
}

// A home besides the history stays known when the home that gave it the queue is revoked or
// loses its role, and whatever other homes sign.
func TestAHomeBesideTheHistoryIsKnown(t *testing.T) {
	s := newSim(1)
	admin, evil, y, x := peerOf(0), peerOf(5), peerOf(6), peerOf(7)
	gone := false
	h := NewHome(admin, 1, Config{Deeds: simDeeds{s.nodes[0]}, MayBeHome: func(p proto.PeerID) bool { return !(gone && p == y) }})
	made := proofBy(t, admin, Deed{Generation: 1, To: evil})
	h.Learn(chainOf(made), Now{})
	if _, err := h.Seize("q", evil, Now{}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		h.Learn(chainOf(made, handed(t, 2, evil, peerOf(20+i))), Now{})
	}
	h.Learn(chainOf(made, handed(t, 2, evil, y), handed(t, 3, y, x)), Now{})
	if !h.titles.byName["q"].wasHome(x) {
		t.Fatal("handoffs of another home displace it")
	}
	gone = true
	h.Revoked(y, Now{})
	h.Learn(chainOf(made, handed(t, 2, evil, peerOf(40))), Now{})
	if !h.titles.byName["q"].wasHome(x) {
		t.Error("it is forgotten with the home before it")
	}
}

// A former home that still has tasks can hand them over after the home was revoked and then
// seized.
func TestTheHomeBeforeARevokedOneIsKnown(t *testing.T) {
	s := newSim(1)
	admin, former, home := peerOf(0), peerOf(5), peerOf(6)
	chain := chainOf(proofBy(t, admin, Deed{Generation: 1, To: former}), handed(t, 2, former, home))
	a, b := NewHome(admin, 1, Config{Deeds: simDeeds{s.nodes[0]}}), NewHome(former, 1, Config{Deeds: simDeeds{s.nodes[5]}})
	for _, h := range []*Home{a, b} {
		h.Learn(chain, Now{})
		h.Revoked(home, Now{})
	}
	if _, err := a.Seize("q", home, Now{}); err != nil {
		t.Fatal(err)
	}
	b.Learn(a.Queue("q"), Now{})
	a.OnHandoff(former, &proto.Handoff{Queue: b.Queue("q")}, Task{}, Now{})
	for name, h := range map[string]*Home{"the admin": a, "itself": b} {
		if got, _ := h.HomeOf("q"); got != admin || !h.titles.wasHome("q", former) {
			t.Errorf("%s: its home is %d, the former one is known: %v", name, got[0]-1, h.titles.wasHome("q", former))
		}
	}
}

// Of two seizures of one generation the other one counts where the home of the first was
// revoked since.
func TestTheOtherSeizureCountsAfterARevocation(t *testing.T) {
	s := newSim(1)
	one, two, home := peerOf(0), peerOf(1), peerOf(5)
	made := proofBy(t, one, Deed{Generation: 1, To: home})
	for _, first := range []proto.PeerID{one, two} {
		second := one
		if first == one {
			second = two
		}
		h := NewHome(peerOf(4), 1, Config{Deeds: simDeeds{s.nodes[4]}})
		h.Learn(chainOf(made, proofBy(t, first, Deed{Generation: 2, From: home, To: first, Seized: true})), Now{})
		h.Revoked(first, Now{})
		h.Learn(chainOf(made, proofBy(t, second, Deed{Generation: 2, From: home, To: second, Seized: true})), Now{})
		if got, g := h.HomeOf("q"); got != second || g != 2 {
			t.Errorf("its home is %d in generation %d, want %d", got[0]-1, g, second[0]-1)
		}
	}
}
