package addressbook

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// ErrRevoked is returned for a revoked certificate.
var ErrRevoked = errors.New("addressbook: the certificate was revoked")

// revokedPrefix is the key prefix of a revocation in the bucket Peers; its id follows.
const revokedPrefix = 'r'

// maxRevocations bounds the stored revocations of the root, and separately those of all
// admins, so that a stolen admin key cannot leave the root no room. Beyond it a mesh
// needs a new root.
const maxRevocations = 10_000

// Revoke stores a revocation with a valid signature: the node that it names is no longer
// a member. If the root revokes an admin, that admin's revocations become void: see
// [identity.Revocations]. It does not close existing connections.
func (b *Book) Revoke(ctx context.Context, s *proto.Signed) error {
	r, err := b.Mesh().VerifyRevocation(s)
	if err != nil {
		return fmt.Errorf("address book: %w", err)
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	known, void, err := b.checkRevocation(r)
	if err != nil || known {
		return err
	}
	val, err := proto.Encode(nil, s)
	if err != nil {
		return fmt.Errorf("address book: %w", err)
	}
	var batch store.Batch
	batch.Put(store.Peers, revokedKey(r), val)
	for _, o := range void {
		batch.Delete(store.Peers, revokedKey(o))
	}
	batch.After(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.revoked.Add(r)
	})
	if err := b.store.Apply(ctx, &batch); err != nil {
		return fmt.Errorf("address book: %w", err)
	}
	return nil
}

func revokedKey(r identity.Revocation) []byte {
	id := r.ID()
	return append([]byte{revokedPrefix}, id[:]...)
}

// checkRevocation reports whether r is already stored, and which revocations it makes
// void. It rejects one that is void itself, or for which there is no room.
func (b *Book) checkRevocation(r identity.Revocation) (known bool, void []identity.Revocation, err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all, admins := b.revoked.Len()
	count := all - admins
	if r.Admin() {
		count = admins
	}
	switch {
	case b.revoked.Has(r.ID()):
		return true, nil, nil
	case b.revoked.IsVoid(r):
		return false, nil, fmt.Errorf("address book: a revocation signed by %s is void: %w", r.Issuer.Peer.Short(), ErrRevoked)
	case count >= maxRevocations && r.Admin():
		return false, nil, fmt.Errorf("address book: %d revocations by admins are stored, the maximum: revoke the admin that creates so many", count)
	case count >= maxRevocations:
		return false, nil, fmt.Errorf("address book: %d revocations are stored, the maximum: create a new mesh", count)
	}
	return false, b.revoked.VoidedBy(r), nil
}

// Revocations returns all revocations in force.
func (b *Book) Revocations() []*proto.Signed {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []*proto.Signed
	for _, id := range b.revoked.IDs([32]byte{}, [32]byte{}) {
		if r, ok := b.revoked.Get(id); ok {
			all = append(all, r.Signed)
		}
	}
	return all
}

// Revoked reports whether the known certificate of p was revoked, or, if none is known, p.
func (b *Book) Revoked(p proto.PeerID) bool { return b.Revokes(identity.Member{Peer: p}) }

// Revokes reports whether m was revoked. If m has no certificate, that of the book's entry
// counts; without an entry a revocation that names the peer does.
func (b *Book) Revokes(m identity.Member) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if e := b.entries[m.Peer]; e != nil && m.Cert == nil {
		m = e.Member
	}
	return b.revoked.Revokes(m)
}

// RevocationOf returns the revocation of p, or of this node; false: none is known.
func (b *Book) RevocationOf(p proto.PeerID) (identity.Revocation, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	e := b.entries[p]
	if p == b.self.Peer {
		e = b.self
	}
	if e == nil || e.Member.Cert == nil {
		return identity.Revocation{}, false
	}
	return b.revoked.Find(e.Member)
}

// SelfRevoked stores a revocation of this node's own membership that a peer presented. It
// returns an error if it is not one.
func (b *Book) SelfRevoked(s *proto.Signed) error {
	r, err := b.Mesh().VerifyRevocation(s)
	if err != nil {
		return err
	}
	if !r.Revokes(b.Self().Member) {
		return fmt.Errorf("%w: it revokes another certificate", identity.ErrBadRecord)
	}
	ctx, cancel := context.WithTimeout(context.Background(), bookTimeout)
	defer cancel()
	return b.Revoke(ctx, s)
}

// issuerRevoked reports whether the admin who issued a genuine certificate was revoked.
// Only that admin states the issue date, and a stolen key can backdate it. Such a
// certificate is therefore valid only where it was known before the revocation arrived.
func (b *Book) issuerRevoked(mesh identity.Mesh, cert *proto.Signed) bool {
	if cert.GetIssuer() == nil {
		return false
	}
	admin, err := mesh.VerifyMember(cert.GetIssuer(), b.clock.Now())
	return !acceptable(err) || b.isRevoked(admin)
}

// isRevoked is isRevokedLocked for callers that do not hold mu.
func (b *Book) isRevoked(m identity.Member) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.isRevokedLocked(m)
}

// isRevokedLocked reports whether the certificate of m was revoked. The caller holds mu.
func (b *Book) isRevokedLocked(m identity.Member) bool {
	return m.Cert != nil && b.revoked.Revokes(m)
}

// loadRevocations reads the stored revocations. Invalid and void ones are ignored.
func (b *Book) loadRevocations() error {
	var all identity.Revocations
	for pair, err := range b.store.All(store.Peers, []byte{revokedPrefix}, []byte{revokedPrefix + 1}) {
		if err != nil {
			return err
		}
		s := decodeSigned(bytes.Clone(pair.Val))
		if s == nil {
			return fmt.Errorf("%w: revocation", errRecord)
		}
		if r, err := b.mesh.VerifyRevocation(s); err == nil {
			all.Add(r)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revoked = all
	return nil
}
