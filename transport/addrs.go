package transport

import (
	"context"
	"fmt"
	"slices"

	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// maxRelays bounds the relays that a peer may name.
const maxRelays = 4

// UpdateAddrs takes where a peer says that it is reached now, in a statement of its own
// that came another way than by a hello: its addresses and the relays that it
// holds a place at. What cannot be an address of it is left out; no addresses at all
// change nothing but the relays.
func (b *Book) UpdateAddrs(ctx context.Context, id proto.PeerID, addrs []string, relays []proto.PeerID) error {
	old := b.find(id)
	if old == nil {
		return fmt.Errorf("%w: %s", ErrUnknownPeer, id)
	}
	good := remoteAddrs(id, addrs, slices.ContainsFunc(old.Addrs, isLoopback))
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

// remoteAddrs returns the addresses that can lead to peer id, at most maxAddrs. One of
// this machine itself, or of its own cable, can do so only when the peer is known to
// be here: nobody shall have a member knock at its own doors.
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

// allowLoopback reports whether addresses of this machine may be true of a peer that
// is told of: others on this machine said hello, or nobody did so far, and the
// inviter, whom a person chose, tells.
func (b *Book) allowLoopback() bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	met := false
	for _, p := range b.entries {
		met = met || !p.LastSeen.IsZero()
		if !p.LastSeen.IsZero() && slices.ContainsFunc(p.announced, isLoopback) {
			return true
		}
	}
	return !met
}

func isLoopback(s string) bool {
	a, err := ma.NewMultiaddr(s)
	return err == nil && manet.IsIPLoopback(a)
}

// Rename gives a peer an alias: what a person calls it here and nobody else. An
// empty one takes it away. What an alias names is never a matter of permission:
// rules know peers by the names in their certificates.
func (b *Book) Rename(ctx context.Context, id proto.PeerID, alias string) error {
	if b.find(id) == nil {
		return fmt.Errorf("%w: %s", ErrUnknownPeer, id)
	}
	if alias != "" {
		for _, p := range append(b.List(), b.Self()) {
			if p.Peer != id && (p.Name == alias || p.Alias == alias) {
				return fmt.Errorf("%w %.64q: it names %s already", ErrAmbiguous, alias, p.Peer)
			}
		}
	}
	return b.change(ctx, id, func(p *Peer) error {
		p.Alias = alias
		return nil
	})
}

// Introduce returns what others need to know a member by, this node too, or nil.
func (b *Book) Introduce(id proto.PeerID) *proto.KnownPeer {
	if p := b.find(id); p != nil {
		return p.Known()
	}
	if self := b.Self(); self.Peer == id {
		return self.Known()
	}
	return nil
}
