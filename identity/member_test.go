package identity

import (
	"crypto/ed25519"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// A memberFixture is a mesh with an admin and a plain member.
type memberFixture struct {
	root          *Root
	mesh          Mesh
	admin, worker *Keys
	adminCert     *proto.Signed // of the root
	workerCert    *proto.Signed // of the admin
}

func newMemberFixture(tb testing.TB) *memberFixture {
	tb.Helper()
	c := &memberFixture{root: NewRoot(nil), admin: NewKeys(nil, today), worker: NewKeys(nil, today)}
	c.mesh = c.root.Mesh()
	var err error
	c.adminCert, err = c.root.IssueMember(Member{Peer: c.admin.Peer(), Name: "boss", Roles: []string{RoleAdmin, RoleSend}}, today)
	if err != nil {
		tb.Fatal(err)
	}
	c.workerCert, err = c.admin.IssueMember(c.mesh, c.adminCert, Member{Peer: c.worker.Peer(), Name: "worker-1"}, today)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// signMember signs any details with key, valid or not.
func signMember(tb testing.TB, key ed25519.PrivateKey, issuer *proto.Signed, d *proto.MemberDetails) *proto.Signed {
	tb.Helper()
	b, err := proto.Encode(nil, d)
	if err != nil {
		tb.Fatal(err)
	}
	s := signDetails(key, domainMember, b)
	s.Issuer = issuer
	return s
}

func (c *memberFixture) details() *proto.MemberDetails {
	peer := c.worker.Peer()
	return &proto.MemberDetails{
		Mesh: c.mesh.ID[:], Peer: peer[:], Name: "worker-1", Roles: DefaultRoles(), Serial: make([]byte, 16),
		NotBeforeMs: today.UnixMilli(), NotAfterMs: today.Add(MaxMemberLife).UnixMilli(),
	}
}

func clone(s *proto.Signed) *proto.Signed {
	if s == nil {
		return nil
	}
	return &proto.Signed{
		Details: slices.Clone(s.GetDetails()), Signature: slices.Clone(s.GetSignature()),
		Signer: slices.Clone(s.GetSigner()), Issuer: clone(s.GetIssuer()),
	}
}

func TestMembersAreAdmittedByRootAndAdmin(t *testing.T) {
	c := newMemberFixture(t)
	boss, err := c.mesh.VerifyMember(c.adminCert, today)
	if err != nil || boss.Peer != c.admin.Peer() || boss.Name != "boss" || !boss.HasRole(RoleAdmin) || boss.HasRole(RoleWork) {
		t.Errorf("admin: %+v, %v", boss, err)
	}
	worker, err := c.mesh.VerifyMember(c.workerCert, today)
	if err != nil || worker.Peer != c.worker.Peer() || !slices.Equal(worker.Roles, DefaultRoles()) || worker.Serial == [16]byte{} {
		t.Errorf("worker: %+v, %v", worker, err)
	}
	if worker.Serial == boss.Serial || worker.Cert != c.workerCert {
		t.Error("two members with one serial, or without their certificate")
	}
}

// The members that an admin admitted outlive its certificate, and an admin with a slow
// clock does not issue certificates that begin too early.
func TestCertificatesOutliveTheirIssuers(t *testing.T) {
	c := newMemberFixture(t)
	boss, err := c.mesh.VerifyMember(c.adminCert, today)
	if err != nil {
		t.Fatal(err)
	}
	late := boss.NotAfter.Add(-time.Hour)
	cert, err := c.admin.IssueMember(c.mesh, c.adminCert, Member{Peer: c.worker.Peer(), Name: "late"}, late)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.mesh.VerifyMember(cert, late.Add(300*24*time.Hour)); err != nil {
		t.Errorf("a member whose admin has expired: %v", err)
	}
	if _, err := c.admin.IssueMember(c.mesh, c.adminCert, Member{Peer: c.worker.Peer(), Name: "early"}, today.Add(-proto.Skew)); err != nil {
		t.Errorf("an admin with a slow clock: %v", err)
	}
	if _, err := c.admin.IssueMember(c.mesh, c.adminCert, Member{Peer: c.worker.Peer(), Name: "after"}, boss.NotAfter.Add(time.Second)); !errors.Is(err, ErrExpired) {
		t.Errorf("an expired admin: %v", err)
	}
}

// The period of a certificate is exact to the second.
func TestCertificateTimes(t *testing.T) {
	c := newMemberFixture(t)
	m, err := c.mesh.VerifyMember(c.workerCert, today)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		now   time.Time
		want  error
		grace bool
	}{
		{"long before", today.AddDate(-50, 0, 0), ErrNotYet, false},
		{"a second too early, with the grace", m.NotBefore.Add(-EarlyGrace - time.Second), ErrNotYet, false},
		{"as early as the grace allows", m.NotBefore.Add(-EarlyGrace), nil, false},
		{"the last moment", m.NotAfter, nil, false},
		{"a second after", m.NotAfter.Add(time.Second), ErrExpired, true},
		{"the last moment of grace", m.NotAfter.Add(MemberGrace), ErrExpired, true},
		{"after the grace", m.NotAfter.Add(MemberGrace + time.Second), ErrExpired, false},
		{"long after", today.AddDate(50, 0, 0), ErrExpired, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := c.mesh.VerifyMember(c.workerCert, tt.now)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) || got.Grace != tt.grace {
				t.Errorf("grace %v, err %v; want grace %v, err %v", got.Grace, err, tt.grace, tt.want)
			}
			if errors.Is(err, ErrExpired) && got.Peer != c.worker.Peer() {
				t.Error("an expired member lost its name")
			}
		})
	}
}

// weakKeys returns the 14 encodings of points of small order.
func weakKeys() [][32]byte {
	var all [][32]byte
	for _, k := range smallOrder {
		all = append(all, k)
		k[31] |= 0x80
		all = append(all, k)
	}
	return all
}

// Go's ed25519 accepts each of the 14 as a key, and anyone can forge a signature that
// verifies some messages under it. They are refused.
func TestSmallOrderKeysAreRefused(t *testing.T) {
	c := newMemberFixture(t)
	forged := make([]byte, ed25519.SignatureSize) // R neutral, S zero
	forged[0] = 1
	for _, key := range weakKeys() {
		broken := false
		for i := range 64 {
			broken = broken || ed25519.Verify(key[:], []byte{byte(i)}, forged)
		}
		if !broken {
			t.Errorf("%x is listed, but no signature could be forged under it", key)
		}
		peer := proto.PeerID(key)
		if _, err := c.root.IssueMember(Member{Peer: peer, Name: "weak"}, today); !errors.Is(err, ErrWeakKey) {
			t.Errorf("%x: admitted: %v", key, err)
		}
		if _, err := VerifyKeyRecord(&proto.Signed{Signer: key[:], Signature: forged}, peer, today); !errors.Is(err, ErrWeakKey) {
			t.Errorf("%x: states a sealing key: %v", key, err)
		}
		if err := NewVerifier().Verify(peer, [32]byte{}, Proof{}, forged); !errors.Is(err, ErrWeakKey) {
			t.Errorf("%x: signs a group: %v", key, err)
		}
		if _, err := NewMesh(key[:]); !errors.Is(err, ErrWeakKey) {
			t.Errorf("%x: is a mesh root: %v", key, err)
		}
	}
	if n := len(weakKeys()); n != 14 {
		t.Errorf("%d encodings, want 14", n)
	}
	if err := checkKey(c.admin.Peer()); err != nil {
		t.Errorf("a good key: %v", err)
	}
}

// The named cases of the bad-input family "membership records".
func TestBadCertificatesAreRefused(t *testing.T) {
	c, other := newMemberFixture(t), newMemberFixture(t)
	type edit = func(*proto.MemberDetails)
	byRoot := func(e edit) func() *proto.Signed {
		return func() *proto.Signed { d := c.details(); e(d); return signMember(t, c.root.private, nil, d) }
	}
	byAdmin := func(e edit) func() *proto.Signed {
		return func() *proto.Signed { d := c.details(); e(d); return signMember(t, c.admin.private, c.adminCert, d) }
	}
	changed := func(from *proto.Signed, e func(*proto.Signed)) func() *proto.Signed {
		return func() *proto.Signed { s := clone(from); e(s); return s }
	}
	nothing := func(*proto.MemberDetails) {}
	tests := []struct {
		name string
		cert func() *proto.Signed
		want error
	}{
		{"none", func() *proto.Signed { return nil }, ErrBadRecord},
		{"an empty one", func() *proto.Signed { return &proto.Signed{} }, ErrSignature},
		{"of another mesh's root", func() *proto.Signed { return other.adminCert }, ErrSignature},
		{"of another mesh's admin", func() *proto.Signed { return other.workerCert }, ErrSignature},
		{"of another mesh, by this root", byRoot(func(d *proto.MemberDetails) { d.Mesh = other.mesh.ID[:] }), ErrWrongMesh},
		{"of another mesh, by this admin", byAdmin(func(d *proto.MemberDetails) { d.Mesh = other.mesh.ID[:] }), ErrWrongMesh},
		{"of no mesh", byRoot(func(d *proto.MemberDetails) { d.Mesh = nil }), ErrWrongMesh},
		{"half a mesh", byRoot(func(d *proto.MemberDetails) { d.Mesh = d.Mesh[:8] }), ErrWrongMesh},
		{"without a peer", byRoot(func(d *proto.MemberDetails) { d.Peer = nil }), ErrBadRecord},
		{"half a peer", byRoot(func(d *proto.MemberDetails) { d.Peer = d.Peer[:31] }), ErrBadRecord},
		{"without a serial", byRoot(func(d *proto.MemberDetails) { d.Serial = nil }), ErrBadRecord},
		{"half a serial", byRoot(func(d *proto.MemberDetails) { d.Serial = d.Serial[:8] }), ErrBadRecord},
		{"without a name", byRoot(func(d *proto.MemberDetails) { d.Name = "" }), ErrBadRecord},
		{"a name in capitals", byRoot(func(d *proto.MemberDetails) { d.Name = "Laptop" }), ErrBadRecord},
		{"a name with a dot", byRoot(func(d *proto.MemberDetails) { d.Name = "a.b" }), ErrBadRecord},
		{"a name with a slash", byRoot(func(d *proto.MemberDetails) { d.Name = "../etc" }), ErrBadRecord},
		{"a name with a blank", byRoot(func(d *proto.MemberDetails) { d.Name = "a b" }), ErrBadRecord},
		{"a name with a newline", byRoot(func(d *proto.MemberDetails) { d.Name = "a\n" }), ErrBadRecord},
		{"a name with a colon", byRoot(func(d *proto.MemberDetails) { d.Name = "queue:a" }), ErrBadRecord},
		{"a name that looks like a flag", byRoot(func(d *proto.MemberDetails) { d.Name = "-rf" }), ErrBadRecord},
		{"a name that ends in a hyphen", byRoot(func(d *proto.MemberDetails) { d.Name = "a-" }), ErrBadRecord},
		{"a name of look-alikes", byRoot(func(d *proto.MemberDetails) { d.Name = "lаptop" }), ErrBadRecord},
		{"seventeen roles", func() *proto.Signed {
			return signDetails(c.root.private, domainMember, append(clone(c.adminCert).Details, strings.Repeat("\x22\x01a", 15)...))
		}, ErrBadRecord},
		{"a role twice", byRoot(func(d *proto.MemberDetails) { d.Roles = []string{RoleSend, RoleSend} }), ErrBadRecord},
		{"an empty role", byRoot(func(d *proto.MemberDetails) { d.Roles = []string{""} }), ErrBadRecord},
		{"a role in capitals", byRoot(func(d *proto.MemberDetails) { d.Roles = []string{"Admin"} }), ErrBadRecord},
		{"ends when it begins", byRoot(func(d *proto.MemberDetails) { d.NotAfterMs = d.NotBeforeMs }), ErrBadRecord},
		{"ends before it begins", byRoot(func(d *proto.MemberDetails) { d.NotAfterMs = d.NotBeforeMs - 1 }), ErrBadRecord},
		{"begins before 1970", byRoot(func(d *proto.MemberDetails) { d.NotBeforeMs = -1 }), ErrBadRecord},
		{"two years", byRoot(func(d *proto.MemberDetails) { d.NotAfterMs += MaxMemberLife.Milliseconds() }), ErrBadRecord},
		{"a second too long", byRoot(func(d *proto.MemberDetails) { d.NotAfterMs += 2*proto.Skew.Milliseconds() + 1000 }), ErrBadRecord},
		{"forever", byRoot(func(d *proto.MemberDetails) { d.NotAfterMs = 1<<63 - 1 }), ErrBadRecord},
		{"from next year", byRoot(func(d *proto.MemberDetails) {
			d.NotBeforeMs, d.NotAfterMs = today.AddDate(1, 0, 0).UnixMilli(), today.AddDate(1, 1, 0).UnixMilli()
		}), ErrNotYet},
		{"of last year", byRoot(func(d *proto.MemberDetails) {
			d.NotBeforeMs, d.NotAfterMs = today.AddDate(-1, -1, 0).UnixMilli(), today.AddDate(0, -1, 0).UnixMilli()
		}), ErrExpired},
		{"an admin's admin", byAdmin(func(d *proto.MemberDetails) { d.Roles = []string{RoleAdmin} }), ErrNotAdmin},
		{"issued before the issuer was admin", byAdmin(func(d *proto.MemberDetails) {
			d.NotBeforeMs, d.NotAfterMs = today.AddDate(0, -1, 0).UnixMilli(), today.AddDate(0, 1, 0).UnixMilli()
		}), ErrNotAdmin},
		{"issued after the issuer's time", byAdmin(func(d *proto.MemberDetails) {
			d.NotBeforeMs = today.Add(MaxMemberLife + time.Hour).UnixMilli()
			d.NotAfterMs = d.NotBeforeMs + 1000
		}), ErrNotAdmin},
		{"issued by a plain member", func() *proto.Signed {
			plain := signMember(t, c.root.private, nil, c.details())
			return signMember(t, c.worker.private, plain, c.details())
		}, ErrNotAdmin},
		{"issued by a member of the admin", func() *proto.Signed {
			return signMember(t, c.worker.private, c.workerCert, c.details())
		}, ErrBadRecord},
		{"its own issuer", func() *proto.Signed {
			s := signMember(t, c.worker.private, nil, c.details())
			return signMember(t, c.worker.private, s, c.details())
		}, ErrSignature},
		{"signed by the peer itself", func() *proto.Signed { return signMember(t, c.worker.private, nil, c.details()) }, ErrSignature},
		{"signed by the admin without its certificate", changed(c.workerCert, func(s *proto.Signed) { s.Issuer = nil }), ErrSignature},
		{"signed by the root, with an issuer", changed(c.adminCert, func(s *proto.Signed) { s.Issuer = c.adminCert }), ErrSignature},
		{"signed by another admin", func() *proto.Signed { return signMember(t, c.worker.private, c.adminCert, c.details()) }, ErrSignature},
		{"an issuer of another mesh", func() *proto.Signed { return signMember(t, other.admin.private, other.adminCert, c.details()) }, ErrSignature},
		{"another signer named", changed(c.workerCert, func(s *proto.Signed) { s.Signer = c.mesh.Root }), ErrSignature},
		{"no signer named", changed(c.workerCert, func(s *proto.Signed) { s.Signer = nil }), ErrSignature},
		{"a signer cut short", changed(c.workerCert, func(s *proto.Signed) { s.Signer = s.Signer[:31] }), ErrSignature},
		{"no signature", changed(c.workerCert, func(s *proto.Signed) { s.Signature = nil }), ErrSignature},
		{"a signature cut short", changed(c.workerCert, func(s *proto.Signed) { s.Signature = s.Signature[:63] }), ErrSignature},
		{"a signature with an extra byte", changed(c.workerCert, func(s *proto.Signed) { s.Signature = append(s.Signature, 0) }), ErrSignature},
		{"a signature of zeros", changed(c.workerCert, func(s *proto.Signed) { clear(s.Signature) }), ErrSignature},
		{"the same signature, encoded as S+L", changed(c.adminCert, func(s *proto.Signed) { addOrder(s.Signature[32:]) }), ErrSignature},
		{"no details", changed(c.workerCert, func(s *proto.Signed) { s.Details = nil }), ErrSignature},
		{"details cut short", changed(c.workerCert, func(s *proto.Signed) { s.Details = s.Details[:len(s.Details)-1] }), ErrSignature},
		{"a field added", changed(c.workerCert, func(s *proto.Signed) { s.Details = append(s.Details, 0x22, 5, 'a', 'd', 'm', 'i', 'n') }), ErrSignature},
		{"details of another", changed(c.workerCert, func(s *proto.Signed) { s.Details = c.adminCert.Details }), ErrSignature},
		{"5 KiB of details", changed(c.workerCert, func(s *proto.Signed) { s.Details = make([]byte, 5<<10) }), ErrBadRecord},
		{"signed in the domain of key records", func() *proto.Signed {
			return signDetails(c.root.private, domainKey, clone(c.adminCert).Details)
		}, ErrSignature},
		{"signed noise", func() *proto.Signed { return signDetails(c.root.private, domainMember, []byte{0xff, 0xff}) }, ErrBadRecord},
		{"signed nothing", func() *proto.Signed { return signDetails(c.root.private, domainMember, nil) }, ErrWrongMesh},
		{"a thousand signed roles", func() *proto.Signed {
			return signDetails(c.root.private, domainMember, []byte(strings.Repeat("\x22\x01a", 1000)))
		}, ErrBadRecord},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if m, err := c.mesh.VerifyMember(tt.cert(), today); !errors.Is(err, tt.want) {
				t.Errorf("member %+v, err = %v, want %v", m, err, tt.want)
			}
		})
	}
	if _, err := c.mesh.VerifyMember(byAdmin(nothing)(), today); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if _, err := (Mesh{}).VerifyMember(c.adminCert, today); !errors.Is(err, ErrBadRecord) {
		t.Errorf("in no mesh: %v", err)
	}
}

// addOrder adds the order of the curve's group to a little-endian scalar: another
// encoding of the same signature.
func addOrder(s []byte) {
	order := []byte{0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 31: 0x10}
	carry := 0
	for i := range s {
		carry += int(s[i]) + int(order[i])
		s[i], carry = byte(carry), carry>>8
	}
}

// A certificate that peers would refuse is not issued.
func TestIssueRefusesInvalidCertificates(t *testing.T) {
	c := newMemberFixture(t)
	for name, m := range map[string]Member{
		"a bad name":    {Peer: c.worker.Peer(), Name: "Not A Name"},
		"no peer":       {Name: "a"},
		"too long":      {Peer: c.worker.Peer(), Name: "a", NotAfter: today.AddDate(3, 0, 0)},
		"a long name":   {Peer: c.worker.Peer(), Name: strings.Repeat("a", 64)},
		"a bad role":    {Peer: c.worker.Peer(), Name: "a", Roles: []string{"Root"}},
		"too late":      {Peer: c.worker.Peer(), Name: "a", NotBefore: today, NotAfter: today.Add(-1)},
		"many roles":    {Peer: c.worker.Peer(), Name: "a", Roles: make([]string, 100)},
		"a huge role":   {Peer: c.worker.Peer(), Name: "a", Roles: []string{strings.Repeat("a", 5000)}},
		"not even UTF8": {Peer: c.worker.Peer(), Name: "\xff"},
	} {
		if _, err := c.root.IssueMember(m, today); !errors.Is(err, ErrBadRecord) && !errors.Is(err, ErrWeakKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.admin.IssueMember(c.mesh, c.adminCert, Member{Peer: c.worker.Peer(), Name: "a", Roles: []string{RoleAdmin}}, today); !errors.Is(err, ErrNotAdmin) {
		t.Errorf("an admin by an admin: %v", err)
	}
	if _, err := c.worker.IssueMember(c.mesh, c.adminCert, Member{Peer: c.worker.Peer(), Name: "a"}, today); !errors.Is(err, ErrSignature) {
		t.Errorf("by somebody with the admin's certificate: %v", err)
	}
	if _, err := c.worker.IssueMember(c.mesh, c.workerCert, Member{Peer: c.worker.Peer(), Name: "a"}, today); !errors.Is(err, ErrBadRecord) {
		t.Errorf("by a plain member: %v", err)
	}
}

// The named cases of the bad-input family "kem records".
func TestBadKeyRecordsAreRefused(t *testing.T) {
	k, other := NewKeys(nil, today), NewKeys(nil, today)
	good := func() *proto.KeyDetails {
		var d proto.KeyDetails
		if err := proto.Decode(k.KeyRecord().GetDetails(), &d); err != nil {
			t.Fatal(err)
		}
		return &d
	}
	otherPeer := other.Peer()
	key := func(suite uint32, public []byte) func(*proto.KeyDetails) {
		return func(d *proto.KeyDetails) {
			id := keyID(byte(suite), public)
			d.Suite, d.Public, d.KeyId = suite, public, id[:]
		}
	}
	lowOrder := func(d *proto.KeyDetails) { key(1, append([]byte{1}, make([]byte, 31)...))(d) }
	hybrid, err := suites[SuiteHybridAES].kem.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	hybridPublic := hybrid.PublicKey().Bytes()
	tests := []struct {
		name string
		edit func(*proto.KeyDetails)
		want error
	}{
		{"of another peer", func(d *proto.KeyDetails) { d.Peer = otherPeer[:] }, ErrBadRecord},
		{"of nobody", func(d *proto.KeyDetails) { d.Peer = nil }, ErrBadRecord},
		{"suite 0", func(d *proto.KeyDetails) { d.Suite = 0 }, ErrSuite},
		{"suite 4", func(d *proto.KeyDetails) { d.Suite = 4 }, ErrSuite},
		{"suite 257", func(d *proto.KeyDetails) { d.Suite = 257 }, ErrSuite},
		{"no key", func(d *proto.KeyDetails) { d.Public = nil }, ErrBadRecord},
		{"31 bytes of a key", key(1, make([]byte, 31)), ErrBadRecord},
		{"a hybrid key under suite 1", key(1, hybridPublic), ErrBadRecord},
		{"a small key under suite 3", key(3, k.SealingKey().Public), ErrBadRecord},
		{"a hybrid key of ones", key(3, []byte(strings.Repeat("\xff", 1216))), ErrBadRecord},
		{"a hybrid key with a weak half", key(3, append(slices.Clone(hybridPublic[:1184]), make([]byte, 32)...)), ErrWeakKey},
		{"a key of zeros", key(1, make([]byte, 32)), ErrWeakKey},
		{"a key of order 1", lowOrder, ErrWeakKey},
		{"a key of order 8", key(1, []byte("\xe0\xeb\x7a\x7c\x3b\x41\xb8\xae\x16\x56\xe3\xfa\xf1\x9f\xc4\x6a\xda\x09\x8d\xeb\x9c\x32\xb1\xfd\x86\x62\x05\x16\x5f\x49\xb8\x00")), ErrWeakKey},
		{"another key's id", func(d *proto.KeyDetails) { d.KeyId = make([]byte, 8) }, ErrBadRecord},
		{"no id", func(d *proto.KeyDetails) { d.KeyId = nil }, ErrBadRecord},
		{"the id of another suite", func(d *proto.KeyDetails) { d.Suite = 3 - d.Suite }, ErrBadRecord},
		{"number 0", func(d *proto.KeyDetails) { d.Seq = 0 }, ErrBadRecord},
		{"ends before it begins", func(d *proto.KeyDetails) { d.NotAfterMs = d.NotBeforeMs - 1 }, ErrBadRecord},
		{"valid for too long", func(d *proto.KeyDetails) { d.NotAfterMs += MaxKeyLife.Milliseconds() }, ErrBadRecord},
		{"begins before 1970", func(d *proto.KeyDetails) { d.NotBeforeMs = -1 << 63 }, ErrBadRecord},
		{"begins in half a year", func(d *proto.KeyDetails) { d.NotBeforeMs = today.AddDate(0, 6, 0).UnixMilli() }, ErrNotYet},
		{"ended yesterday", func(d *proto.KeyDetails) {
			d.NotBeforeMs, d.NotAfterMs = today.AddDate(0, 0, -9).UnixMilli(), today.AddDate(0, 0, -1).UnixMilli()
		}, ErrExpired},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := good()
			tt.edit(d)
			b, err := proto.Encode(nil, d)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := VerifyKeyRecord(signDetails(k.private, domainKey, b), k.Peer(), today); !errors.Is(err, tt.want) {
				t.Errorf("err = %v, want %v", err, tt.want)
			}
		})
	}
	for name, s := range map[string]*proto.Signed{
		"none":               nil,
		"empty":              {},
		"signed by another":  signDetails(other.private, domainKey, k.KeyRecord().GetDetails()),
		"in another domain":  signDetails(k.private, domainMember, k.KeyRecord().GetDetails()),
		"with an issuer":     {Details: k.KeyRecord().Details, Signature: k.KeyRecord().Signature, Signer: k.KeyRecord().Signer, Issuer: k.KeyRecord()},
		"5 KiB":              signDetails(k.private, domainKey, make([]byte, 5<<10)),
		"noise":              signDetails(k.private, domainKey, []byte{0xff}),
		"signature of zeros": {Details: k.KeyRecord().Details, Signature: make([]byte, 64), Signer: k.KeyRecord().Signer},
	} {
		if _, err := VerifyKeyRecord(s, k.Peer(), today); !errors.Is(err, ErrBadRecord) && !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// None of twenty thousand records with one bit changed is accepted. The kinds take turns:
// certificates of root and admin, key records of each suite, tickets.
func TestRecordsWithOneBitChangedAreRefused(t *testing.T) {
	const cases = 20_000
	c := newMemberFixture(t)
	k := NewKeys(nil, today)
	verifyKey := func(s *proto.Signed) error { _, err := VerifyKeyRecord(s, k.Peer(), today); return err }
	verifyMember := func(s *proto.Signed) error { _, err := c.mesh.VerifyMember(s, today); return err }
	type kind struct {
		good   *proto.Signed
		verify func(*proto.Signed) error
	}
	kinds := []kind{{c.adminCert, verifyMember}, {c.workerCert, verifyMember}}
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		if err := k.Rotate(suite, today); err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, kind{k.KeyRecord(), verifyKey})
	}
	ticket, _ := someTicket()
	text := ticket.Encode()

	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(w)))
			for i := w; i < cases; i += workers {
				n := i % (len(kinds) + 1)
				if n == len(kinds) {
					b := []byte(text)
					b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
					if got, err := ParseTicket(string(b)); err == nil && got.Encode() != text {
						t.Errorf("a changed ticket is accepted: %s", b)
					} else if err != nil && !errors.Is(err, ErrTicket) {
						t.Errorf("a changed ticket: %v", err)
					}
					continue
				}
				s := clone(kinds[n].good)
				fields := [][]byte{s.Details, s.Signature, s.Signer}
				if s.Issuer != nil {
					fields = append(fields, s.Issuer.Details, s.Issuer.Signature, s.Issuer.Signer)
				}
				f := fields[rnd.IntN(len(fields))]
				bit := rnd.IntN(len(f) * 8)
				f[bit/8] ^= 1 << (bit % 8)
				if err := kinds[n].verify(s); err == nil {
					t.Errorf("kind %d accepted with a bit changed", n)
				}
			}
		})
	}
	wg.Wait()
	for _, k := range kinds {
		if err := k.verify(k.good); err != nil {
			t.Errorf("the good one: %v", err)
		}
	}
}
