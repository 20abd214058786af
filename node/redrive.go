package node

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/wire"
)

// Retry redrives an ended task: it submits a new task with a new id, the same content
// and idempotency key, and a fresh time to live. The content of a task that succeeded is
// no longer stored.
func (n *Node) Retry(ctx context.Context, ref string) (wire.Submitted, error) {
	n.moves.redriving.Lock() // of two concurrent calls the second one fails
	defer n.moves.redriving.Unlock()
	id, role, rec, err := n.Views.Find(ref)
	if err != nil {
		return wire.Submitted{}, err
	}
	switch {
	case role == wire.RoleOwner:
		return wire.Submitted{}, fmt.Errorf("%w: a task can only be redriven at its home: run this on %s", wire.ErrRefused, n.Views.View(id, role, rec).Peer)
	case !rec.GetState().Terminal():
		return wire.Submitted{}, fmt.Errorf("%w: task %s is %s: only an ended task can be redriven", wire.ErrRefused, id, rec.GetState().Name())
	case rec.GetRedrivenAs() != "":
		return wire.Submitted{}, fmt.Errorf("%w: task %s was already redriven as %s", wire.ErrRefused, id, rec.GetRedrivenAs())
	}
	as, there, err := n.outbox.RedrivenAs(id) // the process may have died after creating it
	if err != nil {
		return wire.Submitted{}, err
	}
	var s wire.Submitted
	if there {
		s = n.existingTask(as, s)
	} else if s, as, err = n.resubmit(ctx, id, rec); err != nil {
		return s, err
	}
	if err := n.outbox.MarkRedriven(ctx, id, as); err != nil {
		return s, fmt.Errorf("the task was submitted as %s, but the old one could not be marked as redriven: %w", as, err)
	}
	return s, n.audit(ctx, "task.redrive", id.String()+" as "+s.ID)
}

// resubmit submits the request of an ended task again. The commit of the new task
// records the old one.
func (n *Node) resubmit(ctx context.Context, id proto.TaskID, rec *proto.Record) (s wire.Submitted, as proto.TaskID, err error) {
	r, err := n.rebuildRequest(id, rec)
	if err != nil {
		return s, as, err
	}
	if s, err = n.submit(ctx, r); err != nil {
		return s, as, err
	}
	if as, err = proto.ParseTaskID(s.ID); err != nil {
		return s, as, err
	}
	return s, as, n.cfg.Fail(PointRedriven)
}

// rebuildRequest reconstructs the request of an ended task.
func (n *Node) rebuildRequest(id proto.TaskID, rec *proto.Record) (*repeated, error) {
	st, err := n.outbox.Stored(id)
	if err != nil || st.GetEnvelope() == nil {
		return nil, fmt.Errorf("%w: the content of %s is no longer stored: submit it again", wire.ErrRefused, id)
	}
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return nil, err
	}
	if rec.GetBodyBlob() != "" && !h.Streamed() {
		if st.Envelope.Body, err = n.storage.Blobs.Get(rec.GetBodyBlob(), proto.MaxSealed); err != nil {
			return nil, fmt.Errorf("redrive %s: %w", id, err)
		}
	}
	plain, err := identity.OpenWith([32]byte(st.GetKey()), st.GetEnvelope(), &h)
	if err != nil {
		return nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	c := new(proto.Content)
	if err := proto.Decode(plain, c); err != nil {
		return nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	target := rec.GetTarget() // as given in the request, so that its digest stays the same
	if strings.HasPrefix(target, proto.QueuePrefix) {
		// keep the queue: its home may have changed
	} else if p, err := n.book.Find(target); err != nil || p.Peer != h.Target {
		target = h.Target.String() // the peer was forgotten, or the name belongs to another peer now
	}
	r := &repeated{of: id, delegates: c.GetVouchers(), Request: wire.Request{
		Target: target, Kind: c.GetKind(), Class: c.GetClass().Name(), Mode: c.GetMode().Name(), TTL: wire.Duration(h.NotAfter-h.Created) * wire.Duration(time.Millisecond),
		Key: rec.GetIdempotencyKey(), Order: c.GetOrderingKey(), OnDead: c.GetOnDead(), Args: c.GetArgs(), Body: c.GetBody(),
		Type: c.GetContentType(), Labels: c.GetLabels(), Trace: c.GetTraceparent(),
		Retries: c.GetMaxAttempts(), MaxResult: int64(min(c.GetMaxResult(), math.MaxInt64)),
		Require: c.GetRequire(), Prefer: c.GetPrefer(),
	}}
	if h.Streamed() {
		if !n.storage.Blobs.Has(transfer.ObjectOf(&h)) {
			return nil, fmt.Errorf("%w: the body of %s is no longer stored: submit it again", wire.ErrRefused, id)
		}
		r.object = transfer.Source{Object: c.GetObject(), Size: c.GetBodySize(), Digest: c.GetBodyDigest()}
	}
	return r, nil
}
