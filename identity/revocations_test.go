package identity

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/proto"
)

// A revocationFixture is a mesh whose root and admins can revoke any member.
type revocationFixture struct {
	root    *Root
	mesh    Mesh
	admins  []*Keys
	certs   []*proto.Signed // of the admins
	members []Member        // admins first
}

func newRevocationFixture(t testing.TB) *revocationFixture {
	c := &revocationFixture{root: NewRoot(seeded(0))}
	c.mesh = c.root.Mesh()
	for i := range 6 {
		keys := NewKeys(seeded(uint64(i+1)), today)
		m := Member{Peer: keys.Peer(), Name: "node"}
		if i < 3 {
			m.Roles = []string{RoleAdmin}
		}
		cert, err := c.root.IssueMember(m, today)
		if err != nil {
			t.Fatal(err)
		}
		if m, err = c.mesh.VerifyMember(cert, today); err != nil {
			t.Fatal(err)
		}
		if c.members = append(c.members, m); i < 3 {
			c.admins, c.certs = append(c.admins, keys), append(c.certs, cert)
		}
	}
	return c
}

// revoke has admin number by (-1: the root) revoke a member, or only its certificate.
func (c *revocationFixture) revoke(t testing.TB, by, whom int, serial bool) Revocation {
	what := Revocation{Peer: c.members[whom].Peer}
	if serial {
		what = Revocation{Serial: c.members[whom].Serial}
	}
	s, err := c.root.Revoke(what, today)
	if by >= 0 {
		s, err = c.admins[by].Revoke(c.mesh, c.certs[by], what, today)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.mesh.VerifyRevocation(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// In whatever order revocations arrive, also twice and relayed by another node, every
// node ends up with the same set and the same members.
func TestRevocationsConvergeInEveryOrder(t *testing.T) {
	c := newRevocationFixture(t)
	rapid.Check(t, func(rt *rapid.T) {
		var all []Revocation
		for range rapid.IntRange(1, 5).Draw(rt, "statements") {
			all = append(all, c.revoke(t, rapid.IntRange(-1, 2).Draw(rt, "by"), rapid.IntRange(0, 5).Draw(rt, "whom"), rapid.Bool().Draw(rt, "serial")))
		}
		var want *Revocations
		permute(all, func(order []Revocation) {
			var s, relayed Revocations
			for _, r := range order {
				s.Add(r)
			}
			for _, id := range s.IDs([32]byte{}, [32]byte{}) { // the revocations in force are enough for peers
				r, _ := s.Get(id)
				if taken, void := relayed.Add(r); !taken || len(void) > 0 {
					rt.Fatalf("a revocation in force at one node is void at another")
				}
			}
			for _, r := range order {
				relayed.Add(r)
			}
			if want == nil {
				want = &s
			}
			if s.Digest() != want.Digest() || relayed.Digest() != want.Digest() {
				rt.Fatalf("another order yields another set: %d and %d, not %d", len(s.ids), len(relayed.ids), len(want.ids))
			}
			for i, m := range c.members {
				if s.Revokes(m) != want.Revokes(m) {
					rt.Fatalf("another order decides otherwise about %d", i)
				}
			}
		})
	})
}

// permute calls f with every order of all.
func permute(all []Revocation, f func([]Revocation)) {
	var walk func(order []Revocation)
	walk = func(order []Revocation) {
		if len(order) == len(all) {
			f(order)
			return
		}
		for i := range all {
			if !slices.ContainsFunc(order, func(r Revocation) bool { return r.Signed == all[i].Signed }) {
				walk(append(slices.Clone(order), all[i]))
			}
		}
	}
	walk(nil)
}

// The key of a revoked admin revokes nobody, whenever it was used, and no admin can
// revoke another, not even the founder.
func TestTheRootOutranksAdmins(t *testing.T) {
	const root, thief, other, laptop = -1, 0, 1, 4
	c := newRevocationFixture(t)
	for _, serial := range []bool{false, true} {
		var s Revocations
		s.Add(c.revoke(t, thief, laptop, serial))
		s.Add(c.revoke(t, thief, other, serial))
		if !s.Revokes(c.members[laptop]) || s.Revokes(c.members[other]) {
			t.Errorf("an admin revokes a member: %v, another admin: %v", s.Revokes(c.members[laptop]), s.Revokes(c.members[other]))
		}
		if _, void := s.Add(c.revoke(t, root, thief, serial)); len(void) != 2 || s.Revokes(c.members[laptop]) || !s.Revokes(c.members[thief]) {
			t.Errorf("the root revokes the admin: %d are void, the laptop is revoked: %v", len(void), s.Revokes(c.members[laptop]))
		}
		if taken, _ := s.Add(c.revoke(t, thief, laptop, !serial)); taken || s.Revokes(c.members[laptop]) {
			t.Error("the key of a revoked admin revoked a member")
		}
		if all, admins := s.Len(); all != 1 || admins != 0 || len(s.peers)+len(s.serials) != 1 {
			t.Errorf("%d are left, %d of admins, %d lists", all, admins, len(s.peers)+len(s.serials))
		}
	}
}

// A revocation by the root does not count as known because an admin signed the same details.
func TestSameRevocationByAnotherSignerIsDifferent(t *testing.T) {
	c := newRevocationFixture(t)
	a, b, d := c.revoke(t, -1, 0, false), c.revoke(t, 0, 0, false), c.revoke(t, 1, 0, false)
	if string(a.Signed.GetDetails()) != string(b.Signed.GetDetails()) {
		t.Fatal("the details differ")
	}
	if a.ID() == b.ID() || b.ID() == d.ID() {
		t.Error("two signers, one id")
	}
	var s Revocations
	s.Add(b)
	s.Add(a)
	if !s.Revokes(c.members[0]) {
		t.Error("the root's revocation was ignored")
	}
}
