package identity

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
)

// A livenessFixture holds one valid statement of each kind about liveness.
type livenessFixture struct {
	root  *Root
	mesh  Mesh
	keys  *Keys // the signer
	other *Keys
	admin *Keys

	record, accusation, revocation, byAdmin *proto.Signed
}

func newLivenessFixture(tb testing.TB) *livenessFixture {
	tb.Helper()
	w := &livenessFixture{root: NewRoot(seeded(1)), keys: NewKeys(seeded(2), today), other: NewKeys(seeded(3), today), admin: NewKeys(seeded(4), today)}
	w.mesh = w.root.Mesh()
	must := func(s *proto.Signed, err error) *proto.Signed {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return s
	}
	w.record = must(w.keys.SignNode(w.node()))
	w.accusation = must(w.keys.SignAccusation(w.accuse()))
	w.revocation = must(w.root.Revoke(Revocation{Peer: w.other.Peer()}, today))
	cert := must(w.root.IssueMember(Member{Peer: w.admin.Peer(), Name: "boss", Roles: []string{RoleAdmin}, Serial: [16]byte{1}}, today))
	w.byAdmin = must(w.admin.Revoke(w.mesh, cert, Revocation{Serial: [16]byte{7}}, today))
	return w
}

func (w *livenessFixture) node() *proto.NodeRecord {
	peer := w.keys.Peer()
	return &proto.NodeRecord{
		Mesh: w.mesh.ID[:], Peer: peer[:], Boot: 1000, Incarnation: Incarnation(1000) + 2, Revision: 3,
		State: proto.NodeRunning, Kinds: []string{"shell"},
	}
}

func (w *livenessFixture) accuse() *proto.Accusation {
	accuser, peer := w.keys.Peer(), w.other.Peer()
	return &proto.Accusation{
		Mesh: w.mesh.ID[:], Accuser: accuser[:], Peer: peer[:], Incarnation: Incarnation(9), Liveness: proto.Suspect,
	}
}

// verify verifies s as each of the three kinds and returns how many accepted it.
func (w *livenessFixture) verify(s *proto.Signed) (accepted int, err error) {
	_, e1 := w.mesh.VerifyNode(s)
	_, e2 := w.mesh.VerifyAccusation(s)
	_, e3 := w.mesh.VerifyRevocation(s)
	for _, e := range []error{e1, e2, e3} {
		if e == nil {
			accepted++
		}
	}
	return accepted, errors.Join(e1, e2, e3)
}

// Each statement is valid only in its own domain, and no bit of it can be changed.
func TestLivenessStatementsVerify(t *testing.T) {
	w := newLivenessFixture(t)
	flips := 0
	for i, s := range []*proto.Signed{w.record, w.accusation, w.revocation, w.byAdmin} {
		if n, err := w.verify(s); n != 1 {
			t.Fatalf("statement %d was accepted as %d kinds: %v", i, n, err)
		}
		for field := range 3 {
			c := clone(s)
			b := [][]byte{c.Details, c.Signature, c.Signer}[field]
			if field == 2 && i == 3 {
				continue // an admin's signer is bound by its certificate; tested below
			}
			for bit := range len(b) * 8 {
				b[bit/8] ^= 1 << (bit % 8)
				if n, _ := w.verify(c); n != 0 {
					t.Fatalf("statement %d: field %d with bit %d flipped was accepted", i, field, bit)
				}
				b[bit/8] ^= 1 << (bit % 8)
				flips++
			}
		}
	}
	if flips < 4000 {
		t.Errorf("only %d bits were flipped", flips)
	}
}

// The bad-input family "gossip/membership", limited to single statements.
func TestBadLivenessStatementsAreRefused(t *testing.T) {
	w, stranger := newLivenessFixture(t), NewRoot(seeded(9))
	node := func(edit func(*proto.NodeRecord)) *proto.Signed {
		r := w.node()
		edit(r)
		b, _ := proto.Encode(nil, r)
		return signDetails(w.keys.private, domainNode, b)
	}
	accuse := func(edit func(*proto.Accusation)) *proto.Signed {
		a := w.accuse()
		edit(a)
		b, _ := proto.Encode(nil, a)
		return signDetails(w.keys.private, domainAccusation, b)
	}
	revoked := func(edit func(*proto.Revocation)) *proto.Signed {
		peer := w.other.Peer()
		r := &proto.Revocation{Mesh: w.mesh.ID[:], Peer: peer[:], TimeMs: today.UnixMilli()}
		edit(r)
		b, _ := proto.Encode(nil, r)
		return signDetails(w.root.private, domainRevocation, b)
	}
	workerCert, err := w.root.IssueMember(Member{Peer: w.keys.Peer(), Name: "worker"}, today)
	if err != nil {
		t.Fatal(err)
	}
	byWorker := signDetails(w.keys.private, domainRevocation, w.revocation.Details)
	byWorker.Issuer = workerCert
	adminCert, _ := w.admin.IssueMember(w.mesh, w.byAdmin.Issuer, Member{Peer: w.keys.Peer(), Name: "two"}, today)
	deep := signDetails(w.keys.private, domainRevocation, w.revocation.Details)
	deep.Issuer = adminCert
	other := w.other.Peer()
	self := w.keys.Peer()
	tests := []struct {
		name string
		s    *proto.Signed
		want error
	}{
		{"nothing", nil, ErrBadRecord},
		{"an empty statement", &proto.Signed{}, ErrBadRecord},
		{"record of another peer", node(func(r *proto.NodeRecord) { r.Peer = other[:] }), ErrBadRecord},
		{"record of another mesh", node(func(r *proto.NodeRecord) { r.Mesh = make([]byte, 16) }), ErrWrongMesh},
		{"record with no mesh", node(func(r *proto.NodeRecord) { r.Mesh = nil }), ErrWrongMesh},
		{"record with the highest incarnation", node(func(r *proto.NodeRecord) { r.Incarnation = 1<<64 - 1 }), ErrBadRecord},
		{"record with the highest boot", node(func(r *proto.NodeRecord) { r.Boot, r.Incarnation = 1<<64-1, 1<<64-1 }), ErrBadRecord},
		{"record of an incarnation below its boot", node(func(r *proto.NodeRecord) { r.Incarnation = 7 }), ErrBadRecord},
		{"record without boot", node(func(r *proto.NodeRecord) { r.Boot = 0 }), ErrBadRecord},
		{"record without revision", node(func(r *proto.NodeRecord) { r.Revision = 0 }), ErrBadRecord},
		{"record without state", node(func(r *proto.NodeRecord) { r.State = 0 }), ErrBadRecord},
		{"record with an unknown state", node(func(r *proto.NodeRecord) { r.State = 99 }), ErrBadRecord},
		{"record with half a relay", node(func(r *proto.NodeRecord) { r.Relays = [][]byte{{1, 2}} }), ErrBadRecord},
		{"record with a hop over half a relay", node(func(r *proto.NodeRecord) { r.Hops = []*proto.Hop{{Relay: []byte{1, 2}}} }), ErrBadRecord},
		{"record with a hop that loses more than 100 %", node(func(r *proto.NodeRecord) { r.Hops = []*proto.Hop{{Relay: other[:], LossPermille: 1001}} }), ErrBadRecord},
		{"record of 5 KiB", signDetails(w.keys.private, domainNode, make([]byte, 5<<10)), ErrBadRecord},
		{"record of noise", signDetails(w.keys.private, domainNode, []byte{0xff, 0xff}), ErrBadRecord},
		{"record in the domain of accusations", signDetails(w.keys.private, domainAccusation, w.record.Details), ErrBadRecord},
		{"record signed by another", signDetails(w.other.private, domainNode, w.record.Details), ErrBadRecord},
		{"accusation of itself", accuse(func(a *proto.Accusation) { a.Peer = self[:] }), ErrBadRecord},
		{"accusation of nobody", accuse(func(a *proto.Accusation) { a.Peer = nil }), ErrBadRecord},
		{"accusation by another", accuse(func(a *proto.Accusation) { a.Accuser = other[:] }), ErrBadRecord},
		{"accusation in another mesh", accuse(func(a *proto.Accusation) { a.Mesh = make([]byte, 16) }), ErrWrongMesh},
		{"accusation of being alive", accuse(func(a *proto.Accusation) { a.Liveness = proto.Alive }), ErrBadRecord},
		{"accusation without incarnation", accuse(func(a *proto.Accusation) { a.Incarnation = 0 }), ErrBadRecord},
		{"revocation of nothing", revoked(func(r *proto.Revocation) { r.Peer = nil }), ErrBadRecord},
		{"revocation of two things", revoked(func(r *proto.Revocation) { r.Serial = make([]byte, 16) }), ErrBadRecord},
		{"revocation in another mesh", revoked(func(r *proto.Revocation) { r.Mesh = make([]byte, 16) }), ErrWrongMesh},
		{"revocation by another root", signDetails(stranger.private, domainRevocation, w.revocation.Details), ErrSignature},
		{"revocation by a plain member", byWorker, ErrNotAdmin},
		{"revocation by a member that an admin admitted", deep, ErrBadRecord},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if n, err := w.verify(tt.s); n != 0 || !errors.Is(err, tt.want) {
				t.Errorf("accepted as %d kinds: %v, want %v", n, err, tt.want)
			}
		})
	}
}

// A statement that peers would refuse is not signed.
func TestNodeRecordsAreBounded(t *testing.T) {
	w := newLivenessFixture(t)
	r := w.node()
	for range 16 {
		r.Addrs = append(r.Addrs, strings.Repeat("a", 256))
	}
	if _, err := w.keys.SignNode(r); !errors.Is(err, ErrBadRecord) {
		t.Errorf("a record above 4 KiB was signed: %v", err)
	}
	if _, err := w.other.SignNode(w.node()); !errors.Is(err, ErrBadRecord) {
		t.Errorf("another's record was signed: %v", err)
	}
	if _, err := w.other.SignAccusation(w.accuse()); !errors.Is(err, ErrBadRecord) {
		t.Errorf("another's accusation was signed: %v", err)
	}
}

func TestRevocationsNameTheirTarget(t *testing.T) {
	w := newLivenessFixture(t)
	r, err := w.mesh.VerifyRevocation(w.revocation)
	if err != nil || !r.Revokes(Member{Peer: w.other.Peer()}) || r.Revokes(Member{Peer: w.keys.Peer()}) || !bytes.Equal(r.By[:], w.mesh.Root) {
		t.Errorf("of a peer: %+v, %v", r, err)
	}
	s, err := w.mesh.VerifyRevocation(w.byAdmin)
	if err != nil || !s.Revokes(Member{Peer: w.other.Peer(), Serial: [16]byte{7}}) || s.Revokes(Member{Peer: w.other.Peer()}) || s.ID() == r.ID() {
		t.Errorf("of a serial: %+v, %v", s, err)
	}
	if _, err := w.admin.Revoke(w.mesh, w.byAdmin.Issuer, Revocation{}, today); !errors.Is(err, ErrBadRecord) {
		t.Errorf("of nothing: %v", err)
	}
	if _, err := w.admin.Revoke(w.mesh, w.byAdmin.Issuer, Revocation{Peer: w.other.Peer()}, today.Add(2*MaxMemberLife)); !errors.Is(err, ErrExpired) {
		t.Errorf("by a former admin: %v", err)
	}
}
