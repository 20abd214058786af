package queue

import (
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
)

// A deed states no time, and whoever joins later must accept the deeds of former admins. So a
// deed counts whose signer was an admin once, also if it is first seen after the signer lost
// the role or its certificate ended: only a revocation ends that.
func TestDeedsOfFormerAdmins(t *testing.T) {
	for _, tt := range []struct {
		name    string
		demote  bool // the root issues a newer certificate without the role
		renew   bool // and one with the role
		revoke  string
		after   time.Duration
		revoked bool // the deed does not count
	}{
		{name: "an admin"},
		{name: "an admin with a newer certificate", renew: true, after: time.Hour},
		{name: "one that was demoted", demote: true, after: time.Hour},
		{name: "one that was demoted long ago", demote: true, after: identity.MaxMemberLife + identity.MemberGrace + time.Hour},
		{name: "one whose certificate ended", after: identity.MaxMemberLife + identity.MemberGrace + time.Hour},
		{name: "one that was revoked", revoke: "peer", revoked: true},
		{name: "one that was demoted, and then revoked", demote: true, revoke: "peer", after: time.Hour, revoked: true},
		{name: "one whose certificate was revoked", revoke: "serial", revoked: true},
		{name: "one that was demoted, and then its certificate as an admin was revoked", demote: true, revoke: "serial", after: time.Hour, revoked: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newDeedCase(t)
			x.now.Advance(tt.after)
			if tt.demote {
				x.learn(identity.DefaultRoles()...)
			}
			if tt.renew {
				x.learn(adminRoles()...)
			}
			switch tt.revoke {
			case "peer":
				x.revoke(identity.Revocation{Peer: x.admin.Peer()})
			case "serial":
				x.revoke(identity.Revocation{Serial: x.serial})
			}
			if m, ok := x.book.Member(x.admin.Peer()); tt.demote && tt.revoke == "" && ok && m.HasRole(identity.RoleAdmin) {
				t.Fatal("it still has the role")
			}
			deed := x.sign()
			got, err := x.deeds.Verify(deed)
			switch {
			case tt.revoked && (err == nil || !strings.Contains(err.Error(), "revoked")):
				t.Errorf("its deed is valid: %v", err)
			case !tt.revoked && (err != nil || !got.Admin || got.Queue != "build"):
				t.Errorf("its deed is invalid: %+v, %v", got, err)
			}
		})
	}
}

func adminRoles() []string { return append(identity.DefaultRoles(), identity.RoleAdmin) }

// A deedCase is a node that knows an admin, which is not itself.
type deedCase struct {
	t      *testing.T
	now    *clock.Manual
	root   *identity.Root
	book   *addressbook.Book
	deeds  Deeds
	admin  *identity.Keys
	cert   *proto.Signed // by which it is an admin
	serial [16]byte      // of cert
}

func newDeedCase(t *testing.T) *deedCase {
	t.Helper()
	x := &deedCase{t: t, now: clock.NewManual(birth), root: identity.NewRoot(nil), admin: identity.NewKeys(nil, birth)}
	s, err := store.Open(mem.New(), store.Config{Clock: x.now.Clock(), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	own := identity.NewKeys(nil, birth)
	cert, err := x.root.IssueMember(identity.Member{Peer: own.Peer(), Name: "home"}, birth)
	if err != nil {
		t.Fatal(err)
	}
	if x.book, err = addressbook.Open(s, x.root.Mesh(), own, cert, x.now.Clock(), transport.Multiaddrs{}); err != nil {
		t.Fatal(err)
	}
	x.cert = x.learn(adminRoles()...)
	m, err := x.root.Mesh().VerifyMember(x.cert, birth)
	if err != nil {
		t.Fatal(err)
	}
	x.serial = m.Serial
	x.deeds = Deeds{&Queues{parts: Parts{Book: x.book, Keys: own, Mesh: x.root.Mesh()}, self: own.Peer()}}
	return x
}

// learn issues a certificate of the admin with these roles now, and teaches it to the node.
func (x *deedCase) learn(roles ...string) *proto.Signed {
	x.t.Helper()
	cert, err := x.root.IssueMember(identity.Member{Peer: x.admin.Peer(), Name: "admin", Roles: roles}, x.now.Clock().Now())
	if err == nil {
		err = x.book.Learn(x.t.Context(), &proto.KnownPeer{Certificate: cert, KeyRecord: x.admin.KeyRecord()})
	}
	if err != nil {
		x.t.Fatal(err)
	}
	return cert
}

// revoke revokes the admin, by the root.
func (x *deedCase) revoke(r identity.Revocation) {
	x.t.Helper()
	s, err := x.root.Revoke(r, x.now.Clock().Now())
	if err == nil {
		err = x.book.Revoke(x.t.Context(), s)
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

// sign signs now, with the certificate by which it was an admin, that it makes a queue.
func (x *deedCase) sign() *proto.Signed {
	x.t.Helper()
	s, err := x.admin.SignDeedAsAdmin(x.root.Mesh(), x.cert, identity.Deed{Queue: "build", Generation: 1, To: x.admin.Peer()})
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}
