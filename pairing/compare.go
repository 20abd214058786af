package pairing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// A store that was restored from a snapshot may not know which members were revoked
// since, nor may the folder of the keys if it was restored too. So a node that starts
// from a snapshot admits only admins until it has compared revocations with one of them.
// A node that knows no other admin has nobody to ask, and one that meets none must go on
// eventually: then all members are admitted, and a revocation comes with the first peer
// that knows it.
const compareEvery = time.Second // between two looks for a connected admin

// compareKey is set in Meta while a node has to compare.
var compareKey = []byte("node/compare")

// A Gate admits the peers that the book knows; while this node compares revocations,
// only admins.
type Gate struct {
	*addressbook.Book
	pairing *Pairing
}

// Gate returns what decides which peers may connect.
func (p *Pairing) Gate() Gate { return Gate{p.Book, p} }

// Admit checks the hello of a peer.
func (g Gate) Admit(h *proto.Hello, from proto.PeerID) error {
	if err := g.Book.Admit(h, from); err != nil {
		if ms := h.GetClockMs(); ms != 0 && (errors.Is(err, identity.ErrExpired) || errors.Is(err, identity.ErrNotYet)) {
			g.pairing.PeerClock(time.UnixMilli(ms)) // a member, unless this node's clock is right
		}
		return err
	}
	if g.pairing.comparing.Load() && !g.pairing.isAdmin(from) {
		return errors.New("this node was restored from a snapshot: it admits only admins until it has compared revocations with one; then it dials you")
	}
	return nil
}

// MarkRestored makes the next start compare revocations.
func MarkRestored(b *store.Batch) { b.Put(store.Meta, compareKey, []byte{1}) }

// Comparing reports whether this node admits only admins, because it was restored.
func (p *Pairing) Comparing() bool { return p.comparing.Load() }

// openCompare reads whether this node has to compare, and whether there is an admin to
// compare with.
func (p *Pairing) openCompare() error {
	_, err := p.Store.Get(store.Meta, compareKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whether this node was restored: %w", err)
	}
	p.comparing.Store(len(p.admins()) > 0)
	return nil
}

// isAdmin reports whether peer has the role admin.
func (p *Pairing) isAdmin(peer proto.PeerID) bool {
	m, ok := p.Book.Renewable(peer)
	return ok && m.HasRole(identity.RoleAdmin)
}

// admins returns the other members with the role admin.
func (p *Pairing) admins() (all []proto.PeerID) {
	for _, x := range p.Book.List() {
		if p.isAdmin(x.Peer) {
			all = append(all, x.Peer)
		}
	}
	return all
}

// compare exchanges revocations with the first connected admin.
func (p *Pairing) compare(ctx context.Context) error {
	if !p.comparing.Load() {
		return nil
	}
	p.Logger.Warn("this node was restored from a snapshot: it admits only admins until it has compared revocations with one, or has met none for 5 minutes")
	p.Event(wire.EventComparing, proto.PeerID{}, nil)
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for began := p.Clock.Mono(); p.Clock.Mono()-began < CompareFor; { // not while it is suspended: it meets nobody then
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, admin := range p.admins() {
			if p.net.Connected(admin) && p.gossip.Compare(ctx, admin) == nil {
				return p.endCompare(admin)
			}
		}
	}
	return p.endCompare(proto.PeerID{})
}

// endCompare admits all members again, after revocations were compared with admin, or
// without that if it is zero.
func (p *Pairing) endCompare(admin proto.PeerID) error {
	p.comparing.Store(false)
	if admin.IsZero() {
		p.Logger.Warn("no admin was met: members are admitted again, even one that was revoked after the snapshot was made", "waited", CompareFor)
	} else {
		p.Logger.Warn("revocations were compared: members are admitted again", "admin", p.Book.NameOf(admin))
	}
	p.Event(wire.EventCompared, admin, nil)
	for _, x := range p.Book.List() {
		p.net.Want(x.Peer)
	}
	var b store.Batch
	b.Delete(store.Meta, compareKey)
	if err := p.Store.Apply(context.Background(), &b); err != nil && p.Store.Err() == nil {
		p.Logger.Warn("the comparison of revocations could not be recorded; the next start repeats it", "err", err)
	}
	return nil
}
