package node

import (
	"context"
	"errors"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
)

// bodyRecords are the records of this node that refer to bodies.
type bodyRecords struct{ node *Node }

// Mark calls refer for each body that is needed.
func (r bodyRecords) Mark(refer func(name string, origin proto.PeerID)) error {
	own := func(name string) { refer(name, proto.PeerID{}) }
	if err := r.node.outbox.Blobs(own); err != nil {
		return err
	}
	r.node.bodyTransfer.mark(own)
	return r.node.inbox.Blobs(refer)
}

// Awaits reports whether a task of a queue is here, for which a body or a result may
// still come.
func (r bodyRecords) Awaits(id proto.TaskID) bool {
	return r.node.inbox.Holds(id) || r.node.bodyTransfer.isGranted(id)
}

// runBodyGC removes bodies that no record refers to.
func (n *Node) runBodyGC(ctx context.Context) error {
	return n.storage.Blobs.Run(ctx, bodyRecords{n}, func(removed int, err error) {
		switch {
		case errors.Is(err, bodies.ErrBusy):
		case err != nil:
			n.log.Error("cannot sweep bodies; will retry", "err", err)
		case removed > 0:
			n.log.Debug("unreferenced bodies were removed", "count", removed)
		}
	})
}

// sweepBodies removes, at the start, the bodies that no record refers to.
func (n *Node) sweepBodies(ctx context.Context) error {
	_, err := n.storage.Blobs.Sweep(ctx, bodyRecords{n})
	return err
}

// dropEnded says that a task ended as intended and needs its body no more: only dead
// letters are redriven.
func (n *Node) dropEnded(r *proto.Record) {
	if s := r.GetState(); r.GetMovesTo() == "" && (s == proto.Success || s == proto.Cancelled) {
		n.storage.Blobs.Drop(r.GetBodyBlob())
	}
}
