package addressbook

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// find returns the entry of a peer, which must not be modified, or nil.
func (b *Book) find(id proto.PeerID) *Peer {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.entries[id]
}

// Get returns what is known about a peer.
func (b *Book) Get(id proto.PeerID) (Peer, bool) {
	if p := b.find(id); p != nil {
		return p.clone(), true
	}
	return Peer{}, false
}

// Recipient is Get for callers that seal for a peer: it does not copy, so the entry must
// only be read. It returns nil if the peer is unknown.
func (b *Book) Recipient(id proto.PeerID) *Peer { return b.find(id) }

// NameOf returns the name of a peer, or of this node, for display: the one in its
// certificate or, if that is unknown, its short id; "" for the zero id.
func (b *Book) NameOf(p proto.PeerID) string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if known := b.entries[p]; known != nil && known.Name != "" {
		return known.Name
	}
	switch {
	case p.IsZero():
		return ""
	case p == b.self.Peer && b.self.Name != "":
		return b.self.Name
	}
	return p.Short()
}

// Identify returns the name and the id of the peer with a key, both empty if the key is
// not one.
func (b *Book) Identify(key []byte) (name, id string) {
	p, err := proto.PeerIDFrom(key)
	if err != nil {
		return "", ""
	}
	return b.NameOf(p), p.String()
}

// Self returns this node as its peers know it, without addresses.
func (b *Book) Self() Peer {
	b.mu.RLock()
	p := b.self.clone()
	b.mu.RUnlock()
	p.KeyRecord, p.key = b.keys.SealingKey(), b.keys.KeyRecord()
	return p
}

// Mesh returns the mesh of this node, or the zero mesh before it joined one.
func (b *Book) Mesh() identity.Mesh {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.mesh
}

// List returns every peer, ordered by name, without this node.
func (b *Book) List() []Peer {
	b.mu.RLock()
	defer b.mu.RUnlock()
	all := make([]Peer, 0, len(b.entries))
	for _, p := range b.entries {
		all = append(all, p.clone())
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Label() < all[j].Label() })
	return all
}

// Find returns the peer, or this node, that ref identifies: an alias, a name, an id, or
// the beginning or end of an id (at least four characters). An alias takes precedence
// over another peer's name.
func (b *Book) Find(ref string) (Peer, error) {
	all := b.List()
	var byAlias, byName, byPart []Peer
	for _, p := range append(all, b.Self()) {
		id := p.Peer.String()
		switch {
		case id == ref:
			return p, nil
		case p.Alias == ref && ref != "":
			byAlias = append(byAlias, p)
		case p.Name == ref && ref != "":
			byName = append(byName, p)
		case len(ref) >= 4 && (strings.HasPrefix(id, ref) || strings.HasSuffix(id, ref)):
			byPart = append(byPart, p)
		}
	}
	found := byAlias
	for _, next := range [][]Peer{byName, byPart} {
		if len(found) == 0 {
			found = next
		}
	}
	switch len(found) {
	case 0:
		return Peer{}, fmt.Errorf("%w: %w %.64q: %s", wire.ErrNotFound, ErrUnknownPeer, ref, hint(all))
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, p := range found[:min(len(found), 8)] {
		ids = append(ids, p.Peer.String())
	}
	return Peer{}, fmt.Errorf("%w: %w %.64q: write the id, one of %s", wire.ErrNotFound, ErrAmbiguous, ref, strings.Join(ids, ", "))
}

// FindOther is Find for what cannot be done to this node itself.
func (b *Book) FindOther(ref string) (Peer, error) {
	p, err := b.Find(ref)
	if err == nil && p.Peer == b.keys.Peer() {
		err = fmt.Errorf("%w: %s is this node itself", wire.ErrInvalid, p.Label())
	}
	return p, err
}

// RoleKnown reports whether a role is predefined or assigned to a peer or this node.
func (b *Book) RoleKnown(role string) bool {
	return slices.Contains(identity.MeshRoles(), role) || slices.ContainsFunc(append(b.List(), b.Self()), func(p Peer) bool { return p.Member.HasRole(role) })
}

// hint suggests what the user may have meant.
func hint(all []Peer) string {
	if len(all) == 0 {
		return "no peer is known yet; pair with one using `invite` and `join`"
	}
	var names []string
	for _, p := range all[:min(len(all), 8)] {
		names = append(names, p.Label())
	}
	if len(all) > len(names) {
		names = append(names, fmt.Sprintf("and %d more", len(all)-len(names)))
	}
	return "known peers: " + strings.Join(names, ", ")
}

// Member returns the current membership of a peer, or of this node: known, not blocked,
// its certificate not expired.
func (b *Book) Member(id proto.PeerID) (identity.Member, bool) {
	m, ok := b.Enrolled(id)
	if p := b.find(id); !ok || p != nil && p.Blocked {
		return identity.Member{}, false
	}
	return m, true
}

// Enrolled is Member, ignoring whether an operator blocked the peer here.
func (b *Book) Enrolled(id proto.PeerID) (identity.Member, bool) {
	b.mu.RLock()
	p := b.entryOrSelf(id)
	revoked := p != nil && b.isRevokedLocked(p.Member)
	b.mu.RUnlock()
	if revoked || !p.valid(b.clock.Now()) {
		return identity.Member{}, false
	}
	return p.Member, true
}

// Renewable is Member, but also for a peer, or this node, whose expired certificate may
// still be renewed: what it sends waits, and what was accepted from it continues.
func (b *Book) Renewable(id proto.PeerID) (identity.Member, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	p := b.entryOrSelf(id)
	if b.gone(p) || p.Blocked {
		return identity.Member{}, false
	}
	return p.Member, true
}

// Gone reports whether a peer is no member, and nothing that this node alone can take back
// makes it one: it is unknown, revoked, or expired for too long to be renewed. One that is
// only blocked is not gone.
func (b *Book) Gone(id proto.PeerID) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.gone(b.entryOrSelf(id))
}

// entryOrSelf returns the entry of a peer or of this node, or nil. b.mu is held.
func (b *Book) entryOrSelf(id proto.PeerID) *Peer {
	if id == b.self.Peer {
		return b.self
	}
	return b.entries[id]
}

// gone is Gone of an entry. A doubted clock ends no membership. b.mu is held.
func (b *Book) gone(p *Peer) bool {
	if p == nil || p.cert == nil || b.isRevokedLocked(p.Member) {
		return true
	}
	doubted := b.clock.Doubted() // before the time: the doubt may end
	return b.clock.Now().After(p.Member.NotAfter.Add(identity.MemberGrace)) && !doubted
}

// current reports whether this node considers p a member now.
func (p *Peer) current(now time.Time) bool { return p.valid(now) && !p.Blocked }

// valid reports whether p has a certificate that is not expired.
func (p *Peer) valid(now time.Time) bool {
	return p != nil && p.cert != nil && !now.After(p.Member.NotAfter)
}

// Unique reports whether m is the only known member with its name: two admins may give
// two nodes the same name, which then identifies neither.
func (b *Book) Unique(m identity.Member) bool {
	now := b.clock.Now()
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, p := range b.entries {
		if p.Name == m.Name && p.Peer != m.Peer && p.current(now) {
			return false
		}
	}
	return b.self.Peer == m.Peer || b.self.Name != m.Name
}

// KeyRecord returns the sealing key of a peer.
func (b *Book) KeyRecord(id proto.PeerID) (identity.KeyRecord, bool) {
	if id == b.keys.Peer() {
		return b.keys.SealingKey(), true
	}
	if p := b.find(id); p != nil && p.key != nil {
		return p.KeyRecord, true
	}
	return identity.KeyRecord{}, false
}

// Blocked reports whether a peer is rejected: by an operator here, or because its
// certificate was revoked.
func (b *Book) Blocked(id proto.PeerID) bool {
	p := b.find(id)
	return p != nil && (p.Blocked || b.isRevoked(p.Member))
}

// Contacts returns the peers to stay connected with: all that are not blocked and have an
// address.
func (b *Book) Contacts() []proto.Contact {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var all []proto.Contact
	for id, p := range b.entries {
		if !p.Blocked && len(p.Addrs)+len(p.Relays) > 0 && !b.isRevokedLocked(p.Member) {
			all = append(all, proto.Contact{Peer: id, Addrs: p.Addrs, Relays: p.Relays})
		}
	}
	return all
}
