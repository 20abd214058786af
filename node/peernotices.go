package node

import (
	"context"
	"slices"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// Started receives an owner's notice that a task of this node is running.
func (n receiver) Started(from proto.PeerID, r *proto.Receipts) {
	select {
	case n.notices <- peerNotice{from: from, receipts: r}:
	default: // dropping it is harmless: the result will follow
	}
}

// A peerNotice is a message of an owner: a task has started, or the owner can accept more.
// It is stored by another goroutine so that it does not delay the heartbeat.
type peerNotice struct {
	from     proto.PeerID
	receipts *proto.Receipts
	ready    *proto.Ready // nil: the notice contains receipts
}

const maxNotices = 256

// verifyReceipts returns the receipts with valid signatures, because a stored receipt serves as
// proof.
func (n *Node) verifyReceipts(list []*proto.Receipt) []*proto.Receipt {
	return slices.DeleteFunc(list, func(rc *proto.Receipt) bool {
		_, err := identity.VerifyReceipt(n.verifier, rc)
		return err != nil
	})
}

func (n *Node) handleNotices(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-n.notices:
			if s.ready != nil {
				n.retryRefused(ctx, s.from, s.ready)
				continue
			}
			receipts := n.verifyReceipts(s.receipts.GetReceipts())
			n.outbox.Started(ctx, s.from, receipts)
			n.forwardStarted(ctx, s.from, receipts)
		}
	}
}

// forwardStarted forwards an owner's notice of the start to the origins of tasks of queues
// whose home is this node. It drops notices that are not from the owner of the newest
// lease.
func (n *Node) forwardStarted(ctx context.Context, from proto.PeerID, receipts []*proto.Receipt) {
	for _, rc := range receipts {
		s, err := proto.ParseStatement(rc.GetStatement())
		if err != nil || s.Fact != proto.FactStarted || s.Node != from {
			continue
		}
		r, err := n.inbox.Get(s.Task)
		if err != nil || r.GetQueue() == "" || r.GetState().Terminal() {
			continue
		}
		v, known, err := n.Queues.Driver.Task(ctx, s.Task)
		origin, malformed := proto.PeerIDFrom(r.GetPeer())
		if err != nil || malformed != nil || !known || v.Peer != from || v.Epoch != s.Epoch {
			continue
		}
		one := []*proto.Receipt{rc}
		if origin == n.keys.Peer() {
			n.outbox.Started(ctx, origin, one)
			continue
		}
		n.notifyStarted(origin, &proto.Receipts{Receipts: one})
	}
}
