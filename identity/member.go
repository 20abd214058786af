package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// Roles that the mesh itself knows. A certificate may name others, for the
// allow-lists of handlers.
const (
	RoleSend    = "send"    // may make tasks
	RoleWork    = "work"    // may take tasks, and so state results
	RoleRelay   = "relay"   // forwards connections for others
	RoleCourier = "courier" // holds sealed tasks for others
	RoleAdmin   = "admin"   // admits nodes and renews certificates
)

// MeshRoles lists them.
func MeshRoles() []string { return []string{RoleSend, RoleWork, RoleRelay, RoleCourier, RoleAdmin} }

// DefaultRoles are those of a node that was not given any.
func DefaultRoles() []string { return []string{RoleSend, RoleWork, RoleRelay} }

const (
	// MaxMemberLife is how long a certificate may last.
	MaxMemberLife = 366 * 24 * time.Hour
	// MemberGrace is how long after its end a certificate still lets its
	// holder connect, to have it renewed and for nothing else.
	MemberGrace = 90 * 24 * time.Hour
	maxRoles    = 16
)

// Errors of membership certificates.
var (
	// ErrWrongMesh is returned for a certificate of another mesh.
	ErrWrongMesh = errors.New("identity: the certificate is of another mesh")
	// ErrNotAdmin is returned for a certificate whose issuer had no right to
	// issue it.
	ErrNotAdmin = errors.New("identity: the certificate's issuer may not issue it")
)

// A Member is a node that was admitted to a mesh.
type Member struct {
	Peer      proto.PeerID
	Name      string   // a DNS label: lower-case letters, digits, hyphens
	Roles     []string // DNS labels, at most 16
	NotBefore time.Time
	NotAfter  time.Time
	Serial    [16]byte      // random; what a revocation names
	Grace     bool          // expired, but no longer than MemberGrace ago
	Cert      *proto.Signed // the certificate that says all this
}

// HasRole reports whether m was given a role.
func (m Member) HasRole(role string) bool { return slices.Contains(m.Roles, role) }

// withDefaults fills what the issuer left open.
func (m Member) withDefaults(now time.Time) Member {
	if len(m.Roles) == 0 {
		m.Roles = DefaultRoles()
	}
	if m.NotBefore.IsZero() {
		m.NotBefore = now.Add(-proto.Skew)
	}
	if m.NotAfter.IsZero() {
		m.NotAfter = now.Add(MaxMemberLife)
	}
	if m.Serial == [16]byte{} {
		rand.Read(m.Serial[:])
	}
	return m
}

// IssueMember admits m.Peer under m.Name. Of the other fields, those left zero
// mean the default roles, a year from now and a random serial.
func (r *Root) IssueMember(m Member, now time.Time) (*proto.Signed, error) {
	return issue(r.mesh, r.private, nil, m.withDefaults(now))
}

// IssueMember admits m.Peer as Root.IssueMember does, by the right of own: the
// certificate of k itself, which must be of the root and have the admin role.
// An admin makes no other admins.
func (k *Keys) IssueMember(mesh Mesh, own *proto.Signed, m Member, now time.Time) (*proto.Signed, error) {
	issuer, err := mesh.VerifyMember(own, now)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate: the admin's own: %w", err)
	}
	if m.NotBefore.IsZero() { // not before the issuer's own certificate
		m.NotBefore = now.Add(-proto.Skew)
		if m.NotBefore.Before(issuer.NotBefore) {
			m.NotBefore = issuer.NotBefore
		}
	}
	return issue(mesh, k.private, own, m.withDefaults(now))
}

// issue signs a certificate, and refuses to hand out what others would refuse
// to accept.
func issue(mesh Mesh, key ed25519.PrivateKey, issuer *proto.Signed, m Member) (*proto.Signed, error) {
	details, err := proto.Encode(nil, &proto.MemberDetails{
		Mesh: mesh.ID[:], Peer: m.Peer[:], Name: m.Name, Roles: m.Roles, Serial: m.Serial[:],
		NotBeforeMs: m.NotBefore.UnixMilli(), NotAfterMs: m.NotAfter.UnixMilli(),
	})
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %.64q: %w: %w", m.Name, ErrBadRecord, err)
	}
	s := signDetails(key, domainMember, details)
	s.Issuer = issuer
	if _, _, err := mesh.readMember(s); err != nil {
		return nil, fmt.Errorf("issue a certificate for %.64q: %w", m.Name, err)
	}
	return s, nil
}

// VerifyMember returns whom a certificate admits. With ErrExpired the member is
// returned too; its Grace says whether it may still connect to be renewed. So it is
// with ErrNotYet: the certificate is genuine, and one of two clocks is wrong.
// Whether it was revoked is not known here.
func (m Mesh) VerifyMember(s *proto.Signed, now time.Time) (Member, error) {
	member, issuer, err := m.readMember(s)
	if err != nil {
		return Member{}, fmt.Errorf("certificate: %w", err)
	}
	if issuer.NotBefore.After(now.Add(proto.Skew)) {
		return member, fmt.Errorf("certificate of %q's issuer: %w", member.Name, ErrNotYet)
	}
	err = checkTime(member.NotBefore, member.NotAfter, now)
	switch {
	case err == nil:
		return member, nil
	case errors.Is(err, ErrExpired):
		member.Grace = !now.After(member.NotAfter.Add(MemberGrace))
		return member, fmt.Errorf("certificate of %q: %w: any admin can renew it", member.Name, err)
	}
	return member, fmt.Errorf("certificate of %q: %w", member.Name, err)
}

// readMember checks everything of a certificate but the time. The issuer is
// zero when it is the root.
//
// An admin's certificate needs to be valid when it issued, not now: else
// everybody it admitted would have to leave with it. What its key can do later is
// bounded by the certificate's end and a year.
func (m Mesh) readMember(s *proto.Signed) (member, issuer Member, err error) {
	if s == nil || len(m.Root) != ed25519.PublicKeySize {
		return member, issuer, fmt.Errorf("%w: there is none", ErrBadRecord)
	}
	root := [32]byte(m.Root)
	if s.GetIssuer() == nil {
		member, err = m.readSignedBy(s, root)
		return member, issuer, err
	}
	if s.GetIssuer().GetIssuer() != nil {
		return member, issuer, fmt.Errorf("%w: more than one level of issuers", ErrBadRecord)
	}
	if issuer, err = m.readSignedBy(s.GetIssuer(), root); err != nil {
		return member, issuer, fmt.Errorf("of the issuer: %w", err)
	}
	if !issuer.HasRole(RoleAdmin) {
		return member, issuer, fmt.Errorf("%w: %q is no admin", ErrNotAdmin, issuer.Name)
	}
	if member, err = m.readSignedBy(s, issuer.Peer); err != nil {
		return member, issuer, err
	}
	if member.HasRole(RoleAdmin) {
		return member, issuer, fmt.Errorf("%w: only the mesh root makes an admin", ErrNotAdmin)
	}
	if member.NotBefore.Before(issuer.NotBefore) || member.NotBefore.After(issuer.NotAfter) {
		return member, issuer, fmt.Errorf("%w: %q was not an admin at that time", ErrNotAdmin, issuer.Name)
	}
	return member, issuer, nil
}

// readSignedBy checks one certificate against its signer's key. Nothing is
// decoded before the signature holds.
func (m Mesh) readSignedBy(s *proto.Signed, signer [32]byte) (Member, error) {
	if len(s.GetDetails()) > maxDetails {
		return Member{}, fmt.Errorf("%w: %d bytes", ErrBadRecord, len(s.GetDetails()))
	}
	if err := verifyDetails(s, signer, domainMember); err != nil {
		return Member{}, err
	}
	var d proto.MemberDetails
	if err := proto.DecodeKnown(s.GetDetails(), &d); err != nil {
		return Member{}, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	if !bytes.Equal(d.GetMesh(), m.ID[:]) {
		return Member{}, fmt.Errorf("%w %x", ErrWrongMesh, d.GetMesh())
	}
	member, err := memberOf(&d)
	member.Cert = s
	return member, err
}

// memberOf checks the form of d.
func memberOf(d *proto.MemberDetails) (Member, error) {
	var m Member
	if len(d.GetPeer()) != len(m.Peer) || len(d.GetSerial()) != len(m.Serial) {
		return m, fmt.Errorf("%w: peer id or serial have the wrong length", ErrBadRecord)
	}
	m.Peer, m.Serial = proto.PeerID(d.GetPeer()), [16]byte(d.GetSerial())
	if err := checkKey(m.Peer); err != nil {
		return m, err
	}
	m.Name, m.Roles = d.GetName(), d.GetRoles()
	if !isLabel(m.Name) {
		return m, fmt.Errorf("%w: %.64q is no name: use 1 to 63 lower-case letters, digits and hyphens", ErrBadRecord, m.Name)
	}
	if len(m.Roles) > maxRoles {
		return m, fmt.Errorf("%w: %d roles", ErrBadRecord, len(m.Roles))
	}
	for i, role := range m.Roles {
		if !isLabel(role) || slices.Contains(m.Roles[:i], role) {
			return m, fmt.Errorf("%w: %.64q is no role, or is named twice", ErrBadRecord, role)
		}
	}
	var err error
	m.NotBefore, m.NotAfter, err = period(d.GetNotBeforeMs(), d.GetNotAfterMs(), MaxMemberLife)
	return m, err
}

// isLabel reports whether s is a DNS label in lower case.
func isLabel(s string) bool {
	if len(s) < 1 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
