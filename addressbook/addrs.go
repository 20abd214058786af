package addressbook

import (
	"context"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// maxRelays bounds the relays that a peer may announce.
const maxRelays = 4

// UpdateAddrs stores the addresses and relays of a peer from a statement that it signed,
// other than a hello. Addresses that cannot be the peer's are dropped; if there are none,
// only the relays are updated.
func (b *Book) UpdateAddrs(ctx context.Context, id proto.PeerID, addrs []string, relays []proto.PeerID) error {
	old := b.find(id)
	if old == nil {
		return fmt.Errorf("%w: %s", ErrUnknownPeer, id)
	}
	good := b.multi.Usable(id, addrs, slices.ContainsFunc(old.Addrs, b.multi.Loopback))
	relays = relays[:min(len(relays), maxRelays)]
	if len(good) == 0 {
		good = old.Addrs
	}
	if slices.Equal(old.Addrs, good) && slices.Equal(old.Relays, relays) {
		return nil
	}
	return b.change(ctx, id, func(p *Peer) error {
		p.Addrs, p.Relays = good, slices.Clone(relays)
		return nil
	})
}

// allowLoopback reports whether loopback addresses may be valid for an introduced peer:
// another node on this machine completed the hello, or no one has so far, and the
// introduction is by the inviter, whom an operator chose.
func (b *Book) allowLoopback() bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	met := false
	for _, p := range b.entries {
		met = met || !p.LastSeen.IsZero()
		if !p.LastSeen.IsZero() && slices.ContainsFunc(p.Addrs, b.multi.Loopback) {
			return true
		}
	}
	return !met
}

// Rename gives a peer an alias, which only this node uses. An empty one removes it. An
// alias never affects permissions: rules identify peers by the names in their
// certificates.
func (b *Book) Rename(ctx context.Context, id proto.PeerID, alias string) error {
	if b.find(id) == nil {
		return fmt.Errorf("%w: %s", ErrUnknownPeer, id)
	}
	if alias != "" {
		for _, p := range append(b.List(), b.Self()) {
			if p.Peer != id && (p.Name == alias || p.Alias == alias) {
				return fmt.Errorf("%w %.64q: it already names %s", ErrAmbiguous, alias, p.Peer)
			}
		}
	}
	return b.change(ctx, id, func(p *Peer) error {
		p.Alias = alias
		return nil
	})
}

// Introduce returns an introduction of a member, or of this node itself, for others; nil:
// it is unknown.
func (b *Book) Introduce(id proto.PeerID) *proto.KnownPeer {
	if p := b.find(id); p != nil {
		return p.Known()
	}
	if self := b.Self(); self.Peer == id {
		return self.Known()
	}
	return nil
}
