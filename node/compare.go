package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// A store that was restored from a snapshot may not know which members were revoked
// since, nor may the folder of the keys if it was restored too. So a node that starts
// from a snapshot admits only admins until it has compared revocations with one of them.
// A node that knows no other admin has nobody to ask, and one that meets none must go on
// eventually: then all members are admitted, and a revocation comes with the first peer
// that knows it.
const (
	compareFor   = 5 * time.Minute // how long a node looks for an admin, in running time
	compareEvery = time.Second
)

// compareKey is set in Meta while a node has to compare.
var compareKey = []byte("node/compare")

// An admitter admits the peers that the book knows; while this node compares
// revocations, only admins.
type admitter struct {
	*transport.Book
	node *Node
}

// Admit checks the hello of a peer.
func (a admitter) Admit(h *proto.Hello, from proto.PeerID) error {
	if err := a.Book.Admit(h, from); err != nil {
		return err
	}
	if m, ok := a.Renewable(from); a.node.comparing.Load() && (!ok || !m.HasRole(identity.RoleAdmin)) {
		return errors.New("this node was restored from a snapshot: it admits only admins until it has compared revocations with one; then it dials you")
	}
	return nil
}

// openCompare reads whether this node has to compare, and whether there is an admin to
// compare with.
func (n *Node) openCompare() error {
	_, err := n.storage.Store.Get(store.Meta, compareKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whether this node was restored: %w", err)
	}
	n.comparing.Store(len(n.admins()) > 0)
	return nil
}

// admins returns the other members with the role admin.
func (n *Node) admins() (all []proto.PeerID) {
	for _, p := range n.book.List() {
		if m, ok := n.book.Renewable(p.Peer); ok && p.Peer != n.keys.Peer() && m.HasRole(identity.RoleAdmin) {
			all = append(all, p.Peer)
		}
	}
	return all
}

// compare exchanges revocations with the first connected admin.
func (n *Node) compare(ctx context.Context) error {
	if !n.comparing.Load() {
		return nil
	}
	n.log.Warn(comparingText)
	n.addEvent("node.comparing", proto.PeerID{}, comparingText, nil)
	tick := time.NewTicker(compareEvery)
	defer tick.Stop()
	for began := n.cfg.Clock.Boot(); n.cfg.Clock.Boot()-began < compareFor; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, p := range n.admins() {
			if n.net.Connected(p) && n.gossip.Compare(ctx, p) == nil {
				return n.endCompare("revocations were compared with " + n.peerName(p) + ": members are admitted again")
			}
		}
	}
	return n.endCompare(fmt.Sprintf("no admin was met for %s: members are admitted again, even one that was revoked after the snapshot was made; check balefire-node peers ls", compareFor))
}

// endCompare admits all members again.
func (n *Node) endCompare(how string) error {
	n.comparing.Store(false)
	n.log.Warn(how)
	n.addEvent("node.compared", proto.PeerID{}, how, nil)
	for _, p := range n.book.List() {
		n.net.Want(p.Peer)
	}
	var b store.Batch
	b.Delete(store.Meta, compareKey)
	if err := n.storage.Store.Apply(context.Background(), &b); err != nil && n.storage.Store.Err() == nil {
		n.log.Warn("the comparison of revocations could not be recorded; the next start repeats it", "err", err)
	}
	return nil
}

const comparingText = "this node was restored from a snapshot: it admits only admins until it has compared revocations with one, or has met none for 5 minutes"
