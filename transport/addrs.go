package transport

import (
	"context"
	"fmt"
	"slices"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

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
	good := remoteAddrs(id, addrs, slices.ContainsFunc(old.Addrs, IsLoopback))
	relays = relays[:min(len(relays), maxRelays)]
	if len(good) == 0 {
		good = old.announced
	}
	if slices.Equal(old.announced, good) && slices.Equal(old.Relays, relays) {
		return nil
	}
	return b.change(ctx, id, func(p *Peer) error {
		p.announced, p.Relays = good, slices.Clone(relays)
		return nil
	})
}

// remoteAddrs returns the addresses that can lead to peer id, at most maxAddrs. Loopback
// and link-local addresses are accepted only for a peer known to be on this machine, so
// that no one can make a member dial itself.
func remoteAddrs(id proto.PeerID, addrs []string, here bool) (good []string) {
	for _, s := range addrs {
		a, err := parseAddrs(id, []string{s})
		if err != nil || len(good) == maxAddrs || manet.IsIPUnspecified(a[0]) || !here && (manet.IsIPLoopback(a[0]) || manet.IsIP6LinkLocal(a[0])) {
			continue
		}
		good = append(good, s)
	}
	return good
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
		if !p.LastSeen.IsZero() && slices.ContainsFunc(p.announced, IsLoopback) {
			return true
		}
	}
	return !met
}

// IsLoopback reports whether a multiaddr leads to its own machine.
func IsLoopback(s string) bool {
	a, err := ma.NewMultiaddr(s)
	return err == nil && manet.IsIPLoopback(a)
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
