package node

import (
	"context"
	"slices"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// Started takes the word of an owner that a task of ours is running.
func (n *Node) Started(from proto.PeerID, r *proto.Receipts) {
	select {
	case n.notices <- notice{from, r}:
	default: // a courtesy: the result will tell
	}
}

// A notice is what an owner said of a task that runs. The heartbeat waits behind
// it, so it is written down by somebody else.
type notice struct {
	from     proto.PeerID
	receipts *proto.Receipts
}

const maxNotices = 256

// genuine returns the receipts whose signatures hold: what is kept as a proof
// must be one.
func (n *Node) genuine(list []*proto.Receipt) []*proto.Receipt {
	return slices.DeleteFunc(list, func(rc *proto.Receipt) bool {
		_, err := identity.VerifyReceipt(n.verifier, rc)
		return err != nil
	})
}

func (n *Node) takeNotices(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-n.notices:
			n.outbox.Started(ctx, s.from, n.genuine(s.receipts.GetReceipts()))
		}
	}
}
