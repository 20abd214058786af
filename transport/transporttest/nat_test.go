package transporttest

import "testing"

// TestNAT checks which packets pass which NAT.
func TestNAT(t *testing.T) {
	tests := []struct {
		name          string
		zero, one     Kind
		first, second bool // 0 → 1 before and after 1 sent to 0
	}{
		{"open", Open, Open, true, true},
		{"behind a cone NAT, reached by contacted nodes", Open, Cone, false, true},
		{"behind two NATs", Cone, Cone, false, true},
		{"symmetric is reached by open nodes", Open, Symmetric, false, true},
		{"symmetric and cone never connect", Symmetric, Cone, false, false},
		{"two symmetric ones never connect", Symmetric, Symmetric, false, false},
		{"symmetric reaches a full cone", Symmetric, FullCone, false, true},
	}
	for _, tt := range tests {
		n := Mesh(t, Link{})
		n.Behind(tt.zero, 0)
		n.Behind(tt.one, 1)
		if got := !n.drops(0, n.seenBy(0, n.addrOf(1)), 0); got != tt.first {
			t.Errorf("%s: at first %v", tt.name, got)
		}
		n.drops(1, n.seenBy(1, n.addrOf(0)), 0)
		if got := !n.drops(0, n.seenBy(0, n.addrOf(1)), 0); got != tt.second {
			t.Errorf("%s: then %v", tt.name, got)
		}
		if tt.one == Symmetric && !n.drops(0, n.addrOf(1), 0) {
			t.Errorf("%s: it is reached at its inner address", tt.name)
		}
		n.Behind(Open, 0, 1)
		if n.drops(0, n.addrOf(1), 0) {
			t.Errorf("%s: the NATs remain", tt.name)
		}
	}
}

// TestReaddress checks that a node is reached only at its present address, and that NATs do not
// know it there.
func TestReaddress(t *testing.T) {
	n := Mesh(t, Link{})
	n.Behind(Cone, 1)
	n.drops(1, n.addrOf(0), 0)
	old := n.addrOf(0)
	n.Readdress(0)
	if !n.drops(2, old, 0) || n.drops(2, n.addrOf(0), 0) {
		t.Error("the node is reached at its old address, or not at the new one")
	}
	n.drops(1, old, 0)
	if !n.drops(0, n.addrOf(1), 0) {
		t.Error("the NAT of another node knows the new address")
	}
	n.drops(1, n.addrOf(0), 0)
	if n.drops(0, n.addrOf(1), 0) {
		t.Error("the NAT of another node does not know the new address after a packet to it")
	}
}
