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

// Roles with a meaning to the mesh itself. A certificate may contain others, for
// the allow lists of handlers.
const (
	RoleSend    = "send"    // may create tasks
	RoleWork    = "work"    // may run tasks, and so state results
	RoleRelay   = "relay"   // forwards connections for others
	RoleCourier = "courier" // stores sealed tasks for others
	RoleAdmin   = "admin"   // admits nodes and renews certificates
)

// MeshRoles lists these roles.
func MeshRoles() []string { return []string{RoleSend, RoleWork, RoleRelay, RoleCourier, RoleAdmin} }

// DefaultRoles are the roles of a node that was given none.
func DefaultRoles() []string { return []string{RoleSend, RoleWork, RoleRelay} }

const (
	// MaxMemberLife is how long a certificate may last.
	MaxMemberLife = 366 * 24 * time.Hour
	// MemberGrace is how long an expired certificate still lets its holder connect,
	// only to have it renewed.
	MemberGrace = 90 * 24 * time.Hour
	// EarlyGrace is how long before its beginning a certificate or a key record is valid:
	// the clock of its issuer is ahead, or this node's is behind.
	EarlyGrace = 90 * 24 * time.Hour
	maxRoles   = 16
)

// Errors of membership certificates.
var (
	// ErrWrongMesh is returned for a certificate of another mesh.
	ErrWrongMesh = errors.New("identity: the certificate is for another mesh")
	// ErrNotAdmin is returned for a certificate whose issuer had no right to
	// issue it.
	ErrNotAdmin = errors.New("identity: the certificate's issuer was not allowed to issue it")
)

// A Member is a node that was admitted to a mesh.
type Member struct {
	Peer      proto.PeerID
	Name      string   // a DNS label: lower-case letters, digits, hyphens
	Roles     []string // DNS labels, at most 16
	NotBefore time.Time
	NotAfter  time.Time
	Serial    [16]byte      // random; identifies the certificate in a revocation
	Grace     bool          // expired, but no longer than MemberGrace ago
	Cert      *proto.Signed // the certificate with all of this
}

// HasRole reports whether m was given a role.
func (m Member) HasRole(role string) bool { return slices.Contains(m.Roles, role) }

// withDefaults fills in what the issuer left open.
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

// IssueMember admits m.Peer under m.Name. Other fields left zero mean the default
// roles, a year from now and a random serial.
func (r *Root) IssueMember(m Member, now time.Time) (*proto.Signed, error) {
	return issue(r.mesh, r.private, nil, m.withDefaults(now))
}

// IssueMember admits m.Peer as Root.IssueMember does, by the authority of own:
// the certificate of k itself, which must be issued by the root and have the
// admin role. An admin cannot admit other admins.
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

// issue signs a certificate. It refuses one that others would not accept.
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

// VerifyMember returns the member that a certificate admits. With ErrExpired it
// returns the member too; Grace reports whether it may still connect to be
// renewed. The same holds for ErrNotYet: the certificate is genuine, and one of
// the two clocks is wrong. It does not check revocations.
func (m Mesh) VerifyMember(s *proto.Signed, now time.Time) (Member, error) {
	member, issuer, err := m.readMember(s)
	if err != nil {
		return Member{}, fmt.Errorf("certificate: %w", err)
	}
	if issuer.NotBefore.After(now.Add(EarlyGrace)) {
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

// readMember checks everything of a certificate except the time. The issuer is
// zero if it is the root.
//
// An admin's certificate must have been valid when it issued, not now: otherwise
// everybody it admitted would be excluded when it expires. What its key can do
// later is bounded by the certificate's end and a year.
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
		return member, issuer, fmt.Errorf("%w: %q is not an admin", ErrNotAdmin, issuer.Name)
	}
	if member, err = m.readSignedBy(s, issuer.Peer); err != nil {
		return member, issuer, err
	}
	if member.HasRole(RoleAdmin) {
		return member, issuer, fmt.Errorf("%w: only the mesh root can admit an admin", ErrNotAdmin)
	}
	if member.NotBefore.Before(issuer.NotBefore) || member.NotBefore.After(issuer.NotAfter) {
		return member, issuer, fmt.Errorf("%w: %q was not an admin at that time", ErrNotAdmin, issuer.Name)
	}
	return member, issuer, nil
}

// readSignedBy checks one certificate against its signer's key. Nothing is
// decoded before the signature is verified.
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

// memberOf converts d and checks its format.
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
	if !IsLabel(m.Name) {
		return m, fmt.Errorf("%w: %.64q is not a valid name: use 1 to 63 lower-case letters, digits and hyphens", ErrBadRecord, m.Name)
	}
	if len(m.Roles) > maxRoles {
		return m, fmt.Errorf("%w: %d roles", ErrBadRecord, len(m.Roles))
	}
	for i, role := range m.Roles {
		if !IsLabel(role) || slices.Contains(m.Roles[:i], role) {
			return m, fmt.Errorf("%w: %.64q is not a role, or is listed twice", ErrBadRecord, role)
		}
	}
	var err error
	m.NotBefore, m.NotAfter, err = period(d.GetNotBeforeMs(), d.GetNotAfterMs(), MaxMemberLife)
	return m, err
}

// IsLabel reports whether s is a DNS label in lower case.
func IsLabel(s string) bool {
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
