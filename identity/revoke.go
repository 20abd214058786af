package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Revocation states that a certificate no longer admits anybody. One by the
// root is final, one by an admin holds until the root revokes the admin: see
// [Revocations]. Exactly one of Peer and Serial is set.
type Revocation struct {
	Peer   proto.PeerID // every certificate of this node, including later ones
	Serial [16]byte     // only this certificate
	At     time.Time    // by the signer's clock
	By     [32]byte     // the mesh root's key, or an admin's
	Issuer Member       // the admin; zero: the root
	Signed *proto.Signed
}

// Admin reports whether an admin signed r, not the root.
func (r Revocation) Admin() bool { return !r.Issuer.Peer.IsZero() }

// Revokes reports whether r ends the membership of m. Only the root admits and
// revokes admins: the holder of one admin's key cannot remove the others.
func (r Revocation) Revokes(m Member) bool {
	switch {
	case r.Admin() && m.HasRole(RoleAdmin):
		return false
	case r.Peer.IsZero():
		return r.Serial == m.Serial
	}
	return r.Peer == m.Peer
}

// ID names a revocation: see [RevocationID].
func (r Revocation) ID() [32]byte { return RevocationID(r.Signed) }

// RevocationID returns the digest of what was signed; for an admin's revocation
// together with the signer's certificate, so that the same content by another
// signer is another revocation.
func RevocationID(s *proto.Signed) [32]byte {
	id := sha256.Sum256(s.GetDetails())
	if s.GetIssuer() == nil {
		return id
	}
	issuer := sha256.Sum256(s.GetIssuer().GetDetails())
	return sha256.Sum256(append(id[:], issuer[:]...))
}

// Revoke signs a revocation as described by what.
func (r *Root) Revoke(what Revocation, now time.Time) (*proto.Signed, error) {
	return revoke(r.mesh, r.private, nil, what, now)
}

// Revoke signs a revocation by the authority of own: the certificate of k itself,
// which must be issued by the root and have the admin role.
func (k *Keys) Revoke(mesh Mesh, own *proto.Signed, what Revocation, now time.Time) (*proto.Signed, error) {
	if _, err := mesh.VerifyMember(own, now); err != nil {
		return nil, fmt.Errorf("revoke: the admin's own certificate: %w", err)
	}
	return revoke(mesh, k.private, own, what, now)
}

func revoke(mesh Mesh, key ed25519.PrivateKey, issuer *proto.Signed, what Revocation, now time.Time) (*proto.Signed, error) {
	d := &proto.Revocation{Mesh: mesh.ID[:], TimeMs: now.UnixMilli()}
	if !what.Peer.IsZero() {
		d.Peer = what.Peer[:]
	}
	if what.Serial != [16]byte{} {
		d.Serial = what.Serial[:]
	}
	details, err := encodeDetails(proto.Encode(nil, d))
	if err != nil {
		return nil, fmt.Errorf("revoke: %w", err)
	}
	s := signDetails(key, domainRevocation, details)
	s.Issuer = issuer
	if _, err := mesh.VerifyRevocation(s); err != nil {
		return nil, fmt.Errorf("revoke: %w", err)
	}
	return s, nil
}

// VerifyRevocation returns a revocation by the root or an admin. It never
// expires, and the admin must have been one when it was signed, not now.
func (m Mesh) VerifyRevocation(s *proto.Signed) (Revocation, error) {
	r, err := m.readRevocation(s)
	if err != nil {
		return Revocation{}, fmt.Errorf("revocation: %w", err)
	}
	return r, nil
}

func (m Mesh) readRevocation(s *proto.Signed) (Revocation, error) {
	if s == nil || len(m.Root) != ed25519.PublicKeySize || len(s.GetDetails()) > maxDetails {
		return Revocation{}, fmt.Errorf("%w: there is none, or it is too long", ErrBadRecord)
	}
	by, issuer, err := m.authority(s, domainRevocation)
	if err != nil {
		return Revocation{}, err
	}
	var d proto.Revocation
	if err := proto.DecodeKnown(s.GetDetails(), &d); err != nil {
		return Revocation{}, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	if !bytes.Equal(d.GetMesh(), m.ID[:]) {
		return Revocation{}, fmt.Errorf("%w %x", ErrWrongMesh, d.GetMesh())
	}
	r := Revocation{At: time.UnixMilli(d.GetTimeMs()), By: by, Issuer: issuer, Signed: s}
	switch {
	case len(d.GetPeer()) == len(r.Peer) && len(d.GetSerial()) == 0:
		r.Peer = proto.PeerID(d.GetPeer())
	case len(d.GetPeer()) == 0 && len(d.GetSerial()) == len(r.Serial):
		r.Serial = [16]byte(d.GetSerial())
	default:
		return Revocation{}, fmt.Errorf("%w: it must name a peer or a serial", ErrBadRecord)
	}
	if s.GetIssuer() != nil && (r.At.Before(issuer.NotBefore) || r.At.After(issuer.NotAfter)) {
		return Revocation{}, fmt.Errorf("%w: %q was not an admin at that time", ErrNotAdmin, issuer.Name)
	}
	return r, nil
}

// authority returns who signed s in a domain with the authority of the mesh: its
// root, or an admin whose certificate s carries.
func (m Mesh) authority(s *proto.Signed, domain string) (by [32]byte, issuer Member, err error) {
	by = [32]byte(m.Root)
	if s.GetIssuer() != nil {
		if s.GetIssuer().GetIssuer() != nil {
			return by, issuer, fmt.Errorf("%w: more than one level of issuers", ErrBadRecord)
		}
		if issuer, err = m.readSignedBy(s.GetIssuer(), by); err != nil {
			return by, issuer, fmt.Errorf("of the issuer: %w", err)
		}
		if !issuer.HasRole(RoleAdmin) {
			return by, issuer, fmt.Errorf("%w: %q is not an admin", ErrNotAdmin, issuer.Name)
		}
		by = issuer.Peer
	}
	return by, issuer, verifyDetails(s, by, domain)
}
