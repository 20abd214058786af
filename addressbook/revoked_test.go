package addressbook

import (
	"errors"
	"strings"
	"testing"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A revocation is permanent: a later certificate of the same node is refused too, and a
// restart changes nothing.
func TestRevokedNodeIsNotAMember(t *testing.T) {
	c := newBookCase(t)
	if err := c.book.Admit(c.hello, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	s, err := c.root.Revoke(identity.Revocation{Peer: c.peer.Peer()}, birth)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // received twice, stored once
		if err := c.book.Revoke(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	c.reopen(t)
	if _, ok := c.book.Member(c.peer.Peer()); ok || !c.book.Blocked(c.peer.Peer()) || len(c.book.Contacts()) != 0 {
		t.Errorf("member %v, blocked %v, contacts %v", ok, c.book.Blocked(c.peer.Peer()), c.book.Contacts())
	}
	if err := c.book.Admit(c.helloOf(t, c.peer, "laptop"), c.peer.Peer()); !errors.Is(err, ErrRevoked) {
		t.Errorf("a later certificate: %v", err)
	}
	if n := len(c.book.Revocations()); n != 1 {
		t.Errorf("%d revocations are stored", n)
	}
	other := identity.NewRoot(nil)
	if s, err = other.Revoke(identity.Revocation{Peer: c.own.Peer()}, birth); err != nil {
		t.Fatal(err)
	}
	if err := c.book.Revoke(t.Context(), s); err == nil {
		t.Error("another mesh's revocation was accepted")
	}
}

// An admin's key was stolen and the admin revoked: the key can admit no one else, not
// even with a backdated certificate. Members that the admin admitted before, as far as
// known here, remain.
func TestRevokedAdminCannotAdmit(t *testing.T) {
	c := newBookCase(t)
	admin := identity.NewKeys(nil, birth)
	own, err := c.root.IssueMember(identity.Member{Peer: admin.Peer(), Name: "admin", Roles: []string{identity.RoleAdmin}}, birth)
	if err != nil {
		t.Fatal(err)
	}
	by := func(k *identity.Keys, name string) *proto.Hello {
		h := c.helloOf(t, k, name)
		if h.Certificate, err = admin.IssueMember(c.root.Mesh(), own, identity.Member{Peer: k.Peer(), Name: name, NotBefore: birth}, birth); err != nil {
			t.Fatal(err)
		}
		return h
	}
	before, after := by(c.peer, "laptop"), identity.NewKeys(nil, birth)
	if err := c.book.Admit(before, c.peer.Peer()); err != nil {
		t.Fatal(err)
	}
	s, err := c.root.Revoke(identity.Revocation{Peer: admin.Peer()}, birth)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.book.Revoke(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and after a restart
		thief := by(after, "thief")
		if err := c.book.Admit(thief, after.Peer()); !errors.Is(err, ErrRevoked) {
			t.Errorf("a hello with a certificate by the revoked admin: %v", err)
		}
		known := &proto.KnownPeer{Certificate: thief.Certificate, KeyRecord: thief.KeyRecord}
		if err := c.book.Learn(t.Context(), known); !errors.Is(err, ErrRevoked) {
			t.Errorf("an introduction by one: %v", err)
		}
		if err := c.book.Admit(by(c.peer, "root"), c.peer.Peer()); !errors.Is(err, ErrRevoked) {
			t.Errorf("another certificate for a known member: %v", err)
		}
		if err := c.book.Admit(before, c.peer.Peer()); err != nil {
			t.Errorf("a previously admitted peer: %v", err)
		}
		c.reopen(t)
	}
}

// When the root revokes an admin, that admin's revocations become void, before and after
// a restart, and no admin can revoke another.
func TestRevokedAdminCannotRevoke(t *testing.T) {
	c := newBookCase(t)
	thief, other := identity.NewKeys(nil, birth), identity.NewKeys(nil, birth)
	own := c.admin(t, thief)
	hello := c.helloOf(t, other, "admin")
	hello.Certificate = c.admin(t, other)
	for p, h := range map[proto.PeerID]*proto.Hello{c.peer.Peer(): c.hello, other.Peer(): hello} {
		if err := c.book.Admit(h, p); err != nil {
			t.Fatal(err)
		}
	}
	by := func(p proto.PeerID) *proto.Signed {
		s, err := thief.Revoke(c.root.Mesh(), own, identity.Revocation{Peer: p}, birth)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, p := range []proto.PeerID{c.peer.Peer(), other.Peer()} {
		if err := c.book.Revoke(t.Context(), by(p)); err != nil {
			t.Fatal(err)
		}
	}
	if _, out := c.book.Member(c.peer.Peer()); out {
		t.Error("an admin's revocation is not in force")
	}
	if _, in := c.book.Member(other.Peer()); !in {
		t.Error("an admin revoked another admin")
	}
	s, err := c.root.Revoke(identity.Revocation{Peer: thief.Peer()}, birth)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.book.Revoke(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	for range 2 { // and after a restart
		if _, in := c.book.Member(c.peer.Peer()); !in || len(c.book.Revocations()) != 1 {
			t.Errorf("after the thief's revocation became void: member %v; %d revocations", in, len(c.book.Revocations()))
		}
		if err := c.book.Revoke(t.Context(), by(c.peer.Peer())); !errors.Is(err, ErrRevoked) {
			t.Errorf("a later certificate by the thief: %v", err)
		}
		c.reopen(t)
	}
}

// admin returns an admin certificate for k.
func (c *bookCase) admin(t *testing.T, k *identity.Keys) *proto.Signed {
	t.Helper()
	cert, err := c.root.IssueMember(identity.Member{Peer: k.Peer(), Name: "admin", Roles: []string{identity.RoleAdmin}}, birth)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// Revocations by admins are bounded, and never block the root's.
func TestRevocationsAreBounded(t *testing.T) {
	c := newBookCase(t)
	thief := identity.NewKeys(nil, birth)
	own := c.admin(t, thief)
	s, err := thief.Revoke(c.root.Mesh(), own, identity.Revocation{Serial: [16]byte{1}}, birth)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.root.Mesh().VerifyRevocation(s)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxRevocations { // the book does not look at their signatures again
		other := [16]byte{2, byte(i), byte(i >> 8)}
		r.Serial, r.Signed = other, &proto.Signed{Details: other[:], Signature: s.GetSignature(), Signer: s.GetSigner(), Issuer: s.GetIssuer()}
		c.book.revoked.Add(r) // as if it were on disk
	}
	if err := c.book.Revoke(t.Context(), s); err == nil || !strings.Contains(err.Error(), "revoke the admin") {
		t.Errorf("one too many: %v", err)
	}
	s, err = c.root.Revoke(identity.Revocation{Peer: thief.Peer()}, birth)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.book.Revoke(t.Context(), s); err != nil {
		t.Errorf("no room for the root: %v", err)
	}
	if n := len(c.book.Revocations()); n != 1 {
		t.Errorf("%d revocations are left", n)
	}
}
