package node

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// Invite is [pairing.Pairing.Invite].
func (n *Node) Invite(ctx context.Context, o wire.InviteOptions) (wire.Invitation, error) {
	return n.Pairing.Invite(ctx, o)
}

// JoinRequests is [pairing.Pairing.Requests].
func (n *Node) JoinRequests(context.Context) []wire.JoinRequest { return n.Pairing.Requests() }

// Accept is [pairing.Pairing.Accept].
func (n *Node) Accept(ctx context.Context, ref string, o wire.AcceptOptions) (wire.Peer, error) {
	return n.Pairing.Accept(ctx, ref, o)
}

// Revoke is [pairing.Pairing.Revoke].
func (n *Node) Revoke(ctx context.Context, ref, reason string) error {
	return n.Pairing.Revoke(ctx, ref, reason)
}

// Block is [pairing.Pairing.Block].
func (n *Node) Block(ctx context.Context, ref string) error { return n.Pairing.Block(ctx, ref) }

// Unblock is [pairing.Pairing.Unblock].
func (n *Node) Unblock(ctx context.Context, ref string) error { return n.Pairing.Unblock(ctx, ref) }

// Forget is [pairing.Pairing.Forget].
func (n *Node) Forget(ctx context.Context, ref string) error { return n.Pairing.Forget(ctx, ref) }

// Rename is [pairing.Pairing.Rename].
func (n *Node) Rename(ctx context.Context, ref, name string) error {
	return n.Pairing.Rename(ctx, ref, name)
}
