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

// A store that was put back from a copy may not know who was revoked since, nor may the
// folder of the keys if that was put back too. So a node that starts from a copy lets in
// admins alone, until it has compared revocations with one of them. A node that knows no
// other admin has nobody to ask, and one that meets none must go on in the end: then all
// members are let in, and a revocation comes with the first that knows it.
const (
	compareFor   = 5 * time.Minute // of running time that a node looks for an admin
	compareEvery = time.Second
)

// compareKey stands in Meta while a node has to compare.
var compareKey = []byte("node/compare")

// A admitter lets in whom the book knows, and while this node compares admins alone.
type admitter struct {
	*transport.Book
	node *Node
}

// Admit checks the hello of a peer.
func (g admitter) Admit(h *proto.Hello, from proto.PeerID) error {
	if err := g.Book.Admit(h, from); err != nil {
		return err
	}
	if m, ok := g.Renewable(from); g.node.comparing.Load() && (!ok || !m.HasRole(identity.RoleAdmin)) {
		return errors.New("this node was restored from a copy: until it has compared revocations with an admin it lets in admins alone; it dials you then")
	}
	return nil
}

// openCompare reads whether this node has to compare, and with whom it could.
func (n *Node) openCompare() error {
	_, err := n.storage.store.Get(store.Meta, compareKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whether this node was restored: %w", err)
	}
	n.comparing.Store(len(n.admins()) > 0)
	return nil
}

// admins are the other members with the role.
func (n *Node) admins() (all []proto.PeerID) {
	for _, p := range n.book.List() {
		if m, ok := n.book.Renewable(p.Peer); ok && p.Peer != n.keys.Peer() && m.HasRole(identity.RoleAdmin) {
			all = append(all, p.Peer)
		}
	}
	return all
}

// compare exchanges what is known with the first admin that is connected.
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
				return n.endCompare("revocations were compared with " + n.peerName(p) + ": members are let in again")
			}
		}
	}
	return n.endCompare(fmt.Sprintf("no admin was met for %s: members are let in again, also one that was revoked since the copy was made; look at balefire-node peers ls", compareFor))
}

// endCompare lets all members in.
func (n *Node) endCompare(how string) error {
	n.comparing.Store(false)
	n.log.Warn(how)
	n.addEvent("node.compared", proto.PeerID{}, how, nil)
	for _, p := range n.book.List() {
		n.net.Want(p.Peer)
	}
	var b store.Batch
	b.Delete(store.Meta, compareKey)
	if err := n.storage.store.Apply(context.Background(), &b); err != nil && n.storage.store.Err() == nil {
		n.log.Warn("it could not be noted that revocations were compared; the next start does it again", "err", err)
	}
	return nil
}

const comparingText = "this node was restored from a copy: until it has compared revocations with an admin, or has met none for 5 minutes, it lets in admins alone"
