package pairing

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Block blocks a peer: its connections are closed, and no new ones are made or accepted.
func (p *Pairing) Block(ctx context.Context, ref string) error {
	return p.change(ctx, ref, "peer.block", func(peer proto.PeerID) error {
		defer p.net.Disconnect(peer)
		return p.Book.Block(ctx, peer)
	})
}

// Unblock unblocks a peer.
func (p *Pairing) Unblock(ctx context.Context, ref string) error {
	return p.change(ctx, ref, "peer.unblock", func(peer proto.PeerID) error { return p.Book.Unblock(ctx, peer) })
}

// Forget removes a peer from the address book. Its certificate stays valid; to keep the
// peer out, block it. It is refused while something waits for the peer, or a task of it is
// here: the peer would get no result.
func (p *Pairing) Forget(ctx context.Context, ref string) error {
	return p.change(ctx, ref, "peer.forget", func(peer proto.PeerID) error {
		if w := p.outbox.Waiting(peer); w > 0 {
			return fmt.Errorf("%w: %d tasks and results wait for it: cancel the tasks and wait until the results are there, or block the peer", wire.ErrRefused, w)
		}
		if n := p.inbox.Unfinished(peer); n > 0 {
			return fmt.Errorf("%w: %d tasks of it are here and have not ended: wait for them, or block the peer", wire.ErrRefused, n)
		}
		if err := p.Book.Forget(ctx, peer); err != nil {
			return err
		}
		p.gossip.Forgotten(peer)
		return nil
	})
}

// Rename gives a peer a name that only this node uses, or removes it.
func (p *Pairing) Rename(ctx context.Context, ref, name string) error {
	if name != "" {
		if err := checkName(name); err != nil {
			return err
		}
	}
	return p.change(ctx, ref, "peer.name", func(peer proto.PeerID) error {
		if err := p.Book.Rename(ctx, peer, name); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrRefused, err)
		}
		return nil
	})
}

// Revoke permanently ends the membership of a peer in the whole mesh. This node must be
// an admin or have the root key.
func (p *Pairing) Revoke(ctx context.Context, ref, reason string) error {
	x, err := p.Book.FindOther(ref)
	if err != nil {
		return err
	}
	what, now := identity.Revocation{Peer: x.Peer}, p.Clock.Now()
	var s *proto.Signed
	if root := p.root(); root != nil {
		s, err = root.Revoke(what, now)
	} else if x.Member.HasRole(identity.RoleAdmin) {
		return fmt.Errorf("%w: %s is an admin, and only the mesh's root key can revoke an admin: run this on the node that created the mesh", wire.ErrDenied, ref)
	} else if s, err = p.Keys.Revoke(p.Mesh, p.Book.Self().Member.Cert, what, now); err != nil {
		return fmt.Errorf("%w: this node may not revoke: run this on the node that created the mesh or on one with the admin role: %w", wire.ErrDenied, err)
	}
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	if err := p.gossip.Revoke(ctx, s); err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	return p.Audit(ctx, "peer.revoke", x.Peer.String()+" "+reason)
}

// change changes the entry of a peer in the book, and audits it.
func (p *Pairing) change(ctx context.Context, ref, action string, change func(proto.PeerID) error) error {
	x, err := p.Book.FindOther(ref)
	if err != nil {
		return err
	}
	if err := change(x.Peer); err != nil {
		return err
	}
	return p.Audit(ctx, action, x.Peer.String())
}
