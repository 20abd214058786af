package node

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// findPeer finds a peer, or this node, by name or id.
func (n *Node) findPeer(ref string) (transport.Peer, error) {
	p, err := n.book.Find(ref)
	if err != nil {
		return p, fmt.Errorf("%w: %w", wire.ErrNotFound, err)
	}
	return p, nil
}

// findOtherPeer finds a peer by name or id and rejects this node itself.
func (n *Node) findOtherPeer(ref string) (transport.Peer, error) {
	p, err := n.findPeer(ref)
	if err == nil && p.Peer == n.keys.Peer() {
		err = fmt.Errorf("%w: %s is this node itself", wire.ErrInvalid, p.Label())
	}
	return p, err
}

// peerName returns the display name of a peer, or "" for the zero id.
func (n *Node) peerName(p proto.PeerID) string { return n.book.NameOf(p) }

// Ping measures the round-trip time to a peer over the path in use. If the peer is not
// connected, Ping starts a dial but does not wait for it.
func (n *Node) Ping(ctx context.Context, ref string) (wire.Pong, error) {
	p, err := n.findOtherPeer(ref)
	if err != nil {
		return wire.Pong{}, err
	}
	rtt, err := n.net.Ping(ctx, p.Peer)
	if err != nil {
		n.net.Want(p.Peer)
		return wire.Pong{}, fmt.Errorf("%w: %w (balefire-node path %s)", wire.ErrRefused, err, p.Label())
	}
	pong := wire.Pong{Peer: p.Label(), RTT: seconds(rtt)}
	if s := n.statuses()[p.Peer]; s.Connected {
		pong.Path, pong.Direct, pong.Relay = s.Network+" "+s.Path, s.Direct, n.peerName(s.Relay)
	}
	return pong, nil
}

// Rename gives a peer a name that only this node uses, or removes it.
func (n *Node) Rename(ctx context.Context, ref, name string) error {
	if name != "" && !nameRE.MatchString(name) {
		return fmt.Errorf("%w: name %.80q: use 1-63 of a-z 0-9 and -", wire.ErrInvalid, name)
	}
	return n.changePeer(ctx, ref, "peer.name", func(p proto.PeerID) error {
		if err := n.book.Rename(ctx, p, name); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrRefused, err)
		}
		return nil
	})
}
