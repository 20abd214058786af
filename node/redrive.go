package node

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// Retry makes an ended task anew: a new task with a new id, the same content
// and idempotency key, and a fresh time to live. Of a task that succeeded the
// content is no longer kept.
func (n *Node) Retry(ctx context.Context, ref string) (Submitted, error) {
	n.redriving.Lock() // of two who ask at once one comes too late
	defer n.redriving.Unlock()
	id, role, rec, err := n.find(ref)
	if err != nil {
		return Submitted{}, err
	}
	switch {
	case role == RoleOwner:
		return Submitted{}, fmt.Errorf("%w: a task is redriven at its home: ask %s", ErrRefused, n.view(id, role, rec).Peer)
	case !rec.GetState().Terminal():
		return Submitted{}, fmt.Errorf("%w: task %s is %s: only an ended task can be redriven", ErrRefused, id, rec.GetState().Name())
	case rec.GetRedrivenAs() != "":
		return Submitted{}, fmt.Errorf("%w: task %s was redriven as %s", ErrRefused, id, rec.GetRedrivenAs())
	}
	as, there, err := n.outbox.RedrivenAs(id) // and the process died then
	if err != nil {
		return Submitted{}, err
	}
	var s Submitted
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

// resubmit submits what an ended task asked for once more. The commit of the new
// task says what it was made of.
func (n *Node) resubmit(ctx context.Context, id proto.TaskID, rec *proto.Record) (s Submitted, as proto.TaskID, err error) {
	r, done, err := n.rebuildRequest(id, rec)
	if err != nil {
		return s, as, err
	}
	defer done()
	if s, err = n.Submit(ctx, r); err != nil {
		return s, as, err
	}
	if as, err = proto.ParseTaskID(s.ID); err != nil {
		return s, as, err
	}
	return s, as, n.cfg.Fail(PointRedriven)
}

// rebuildRequest turns an ended task back into the request that it was made of.
func (n *Node) rebuildRequest(id proto.TaskID, rec *proto.Record) (Request, func(), error) {
	st, err := n.outbox.Stored(id)
	if err != nil || st.GetEnvelope() == nil {
		return Request{}, nil, fmt.Errorf("%w: the content of %s is no longer kept: submit it again", ErrRefused, id)
	}
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return Request{}, nil, err
	}
	_, _, streamed := h.Stream()
	if rec.GetBodyBlob() != "" && !streamed {
		if st.Envelope.Body, err = readBlob(n.storage.blobs, rec.GetBodyBlob()); err != nil {
			return Request{}, nil, fmt.Errorf("redrive %s: %w", id, err)
		}
	}
	plain, err := identity.OpenWith([32]byte(st.GetKey()), st.GetEnvelope(), &h)
	if err != nil {
		return Request{}, nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	c := new(proto.Content)
	if err := proto.Decode(plain, c); err != nil {
		return Request{}, nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	target := rec.GetTarget() // as it was written: the request keeps its digest
	if strings.HasPrefix(target, queuePrefix) {
		// whoever is its home now
	} else if p, err := n.book.Find(target); err != nil || p.Peer != h.Target {
		target = h.Target.String() // forgotten, or the name is another's now
	}
	r := Request{
		Target: target, Kind: c.GetKind(), Class: c.GetClass(), Mode: c.GetMode(), TTL: time.Duration(h.NotAfter-h.Created) * time.Millisecond,
		Key: rec.GetIdempotencyKey(), Order: c.GetOrderingKey(), OnDead: c.GetOnDead(), Args: c.GetArgs(), Body: c.GetBody(),
		Type: c.GetContentType(), Labels: c.GetLabels(), Trace: c.GetTraceparent(), RedriveOf: id,
		Bounds:   Bounds{Retries: c.GetMaxAttempts(), MaxResult: int64(min(c.GetMaxResult(), math.MaxInt64))},
		Affinity: Affinity{Require: c.GetRequire(), Prefer: c.GetPrefer()}, delegates: c.GetVouchers(),
	}
	if !streamed {
		return r, func() {}, nil
	}
	body, err := openSealed(n.storage.blobs, rec.GetBodyBlob(), [32]byte(st.GetKey()), h.Suite, proto.WhatTask)
	if err != nil {
		return Request{}, nil, fmt.Errorf("redrive %s: %w", id, err)
	}
	r.Stream = io.Reader(body)
	return r, func() { body.Close() }, nil
}
