package transfer

import (
	"context"
	"errors"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
)

// records are the records of this node that refer to bodies.
type records struct{ *Transfers }

// Mark calls refer for each body that is needed.
func (r records) Mark(refer func(name string, origin proto.PeerID)) error {
	own := func(name string) { refer(name, proto.PeerID{}) }
	if err := r.outbox.Blobs(own); err != nil {
		return err
	}
	r.mark(own)
	return r.inbox.Blobs(refer)
}

// Awaits reports whether a task of a queue is here, for which a body or a result may
// still come.
func (r records) Awaits(id proto.TaskID) bool {
	return r.inbox.Holds(id) || r.isGranted(id)
}

// Collect removes bodies that no record refers to, until ctx is done.
func (t *Transfers) Collect(ctx context.Context) error {
	return t.Bodies.Store.Run(ctx, records{t}, func(removed int, err error) {
		switch {
		case errors.Is(err, bodies.ErrBusy):
		case err != nil:
			t.Logger.Error("cannot sweep bodies; will retry", "err", err)
		case removed > 0:
			t.Logger.Debug("unreferenced bodies were removed", "count", removed)
		}
	})
}

// Sweep removes, at the start, the bodies that no record refers to.
func (t *Transfers) Sweep(ctx context.Context) error {
	_, err := t.Bodies.Store.Sweep(ctx, records{t})
	return err
}

// DropEnded says that a task ended as intended and needs its body no more: only dead
// letters are redriven.
func (b *Bodies) DropEnded(r *proto.Record) {
	if s := r.GetState(); r.GetMovesTo() == "" && (s == proto.Success || s == proto.Cancelled) {
		b.Store.Drop(r.GetBodyBlob())
	}
}
