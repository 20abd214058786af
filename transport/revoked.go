package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// ErrRevoked is returned for a certificate that was withdrawn.
var ErrRevoked = errors.New("transport: the certificate was revoked")

// revokedPrefix begins the key of a revocation in the bucket Peers; its id follows.
const revokedPrefix = 'r'

// maxRevocations bounds what is kept for ever of the root, and as much again of all
// admins: who has the key of one cannot leave the root no room. Beyond it a mesh needs
// a new root.
const maxRevocations = 10_000

// Revoke takes a revocation whose signature holds and keeps it: whom it names is no
// member from then on. With the root's revocation of an admin goes what that admin
// revoked: see [identity.Revocations]. It does not end the connections that are there:
// see [Transport.Disconnect].
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

// checkRevocation reports whether r is kept already, and what is void when it is taken. It
// refuses what is void itself, and what there is no room for.
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
	case b.revoked.Void(r):
		return false, nil, fmt.Errorf("address book: a revocation signed by %s counts for nothing: %w", r.Issuer.Peer.Short(), ErrRevoked)
	case count >= maxRevocations && r.Admin():
		return false, nil, fmt.Errorf("address book: %d revocations of admins are kept, the most that are: revoke the admin who makes so many", count)
	case count >= maxRevocations:
		return false, nil, fmt.Errorf("address book: %d revocations are kept, the most that are: begin a new mesh", count)
	}
	return false, b.revoked.VoidBy(r), nil
}

// Revocations returns all that are in force.
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

// Revoked reports whether the certificate that is known of p was withdrawn.
func (b *Book) Revoked(p proto.PeerID) bool {
	e := b.find(p)
	return e != nil && b.isRevoked(e.Member)
}

// RevocationOf returns what ended the membership of p, or of this node; false: nothing
// that is known here.
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
	return b.revoked.By(e.Member)
}

// SelfRevoked takes what a peer shows as the end of this node's own membership. An error
// says that it is not that.
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
// When it was issued only that admin says: its key may be in other hands and date it
// back. So it counts where it was known before the revocation came, and nowhere else.
func (b *Book) issuerRevoked(mesh identity.Mesh, cert *proto.Signed) bool {
	if cert.GetIssuer() == nil {
		return false
	}
	admin, err := mesh.VerifyMember(cert.GetIssuer(), b.clock.Now())
	return !acceptable(err) || b.isRevoked(admin)
}

// isRevoked is withdrawn for who does not hold mu.
func (b *Book) isRevoked(m identity.Member) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.isRevokedLocked(m)
}

// isRevokedLocked reports whether the certificate of m was revoked. The caller holds mu.
func (b *Book) isRevokedLocked(m identity.Member) bool {
	return m.Cert != nil && b.revoked.Revokes(m)
}

// loadRevocations reads what was taken. What does not hold, or is void, is passed over.
func (b *Book) loadRevocations() error {
	var all identity.Revocations
	for pair, err := range b.store.All(store.Peers, []byte{revokedPrefix}, []byte{revokedPrefix + 1}) {
		if err != nil {
			return err
		}
		s := decodeSigned(bytes.Clone(pair.Val))
		if s == nil {
			return fmt.Errorf("%w: a revocation", errRecord)
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
