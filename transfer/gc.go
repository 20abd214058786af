package transfer

import (
	"context"
	"errors"
	"io"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// records are the records of this node that refer to bodies.
type records struct{ *Transfers }

// Mark calls refer for each body that is needed. Once the store has failed nobody knows: the
// record of a body may be on disk.
func (r records) Mark(refer func(name string, origin proto.PeerID)) error {
	if err := r.inbox.Err(); err != nil {
		return err
	}
	own := func(name string) { refer(name, proto.PeerID{}) }
	if err := r.outbox.Blobs(own); err != nil {
		return err
	}
	r.mark(own)
	if err := r.inbox.Blobs(refer); err != nil {
		return err
	}
	return r.mail.Objects(context.Background(), func(name [32]byte, origin proto.PeerID) { refer(proto.ObjectFile(name), origin) })
}

// Awaits reports whether a task of a queue is here, for which a body or a result may
// still come.
func (r records) Awaits(id proto.TaskID) bool {
	return r.inbox.Holds(id) || r.isGranted(id)
}

// Collect removes bodies that no record refers to, until ctx is done.
func (t *Transfers) Collect(ctx context.Context) error {
	return t.Bodies.Run(ctx, records{t}, func(removed int, err error) {
		switch {
		case errors.Is(err, bodies.ErrBusy), errors.Is(err, store.ErrFailed):
		case err != nil:
			t.Logger.Error("cannot sweep bodies; will retry", "err", err)
		case removed > 0:
			t.Logger.Debug("unreferenced bodies were removed", "count", removed)
		}
	})
}

// Sweep removes, at the start, the bodies that no record refers to.
func (t *Transfers) Sweep(ctx context.Context) error {
	_, err := t.Bodies.Sweep(ctx, records{t})
	return err
}

// DropEnded says that a task ended as intended and needs its body no more: only dead
// letters are redriven, and only a cancelled task moves to another queue.
func (t *Transfers) DropEnded(r *proto.Record) {
	if s := r.GetState(); s == proto.Success || s == proto.Cancelled && r.GetMovesTo() == "" {
		t.Bodies.Drop(r.GetBodyBlob())
	}
}

// InboxBodies lets the inbox use the bodies of its tasks.
type InboxBodies struct{ *bodies.Store }

// Open reads the plain body.
func (b InboxBodies) Open(c *proto.Content) (io.ReadCloser, error) {
	return b.OpenBody(c.GetObject(), c.GetBodySize(), c.GetBodyDigest())
}

// InboxFiles stores what the inbox has that is too large for a record.
type InboxFiles struct{ *bodies.Store }

// Put makes the bytes durable and pins them.
func (f InboxFiles) Put(p []byte) (string, error) { return f.Store.Put(p, false) }

// Get returns the file.
func (f InboxFiles) Get(name string) ([]byte, error) { return f.Store.Get(name, proto.MaxSealed) }
