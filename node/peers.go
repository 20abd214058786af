package node

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// findPeer finds a peer, or this node, by name or id.
func (n *Node) findPeer(ref string) (transport.Peer, error) { return n.FindPeer(ref) }

// findOtherPeer finds a peer by name or id and rejects this node itself.
func (n *Node) findOtherPeer(ref string) (transport.Peer, error) { return n.FindOtherPeer(ref) }

// peerName returns the display name of a peer, or "" for the zero id.
func (n *Node) peerName(p proto.PeerID) string { return n.book.NameOf(p) }

// peerNameID returns the name and the id of a peer.
func (n *Node) peerNameID(key []byte) (name, id string) { return n.book.Identify(key) }

func msTime(ms int64) time.Time { return proto.Time(ms) }

func msOrNil(ms int64) *time.Time { return proto.TimeOrNil(ms) }

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
