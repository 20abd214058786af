package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/transport"
)

// A bodyReceiver receives streamed bodies: those of tasks for the inbox, those of
// results for the outbox. It takes no bytes for an envelope that would be refused.
type bodyReceiver struct{ node *Node }

// Offer checks the envelope that the body belongs to before it takes a byte.
func (b bodyReceiver) Offer(ctx context.Context, from proto.PeerID, o *proto.Offer) (transport.BodySink, *proto.OfferReply) {
	sink, reply, err := b.node.receiveBody(ctx, from, o)
	if err != nil {
		code := proto.CodeBadForm
		if ce, ok := errors.AsType[*identity.CheckError](err); ok {
			code = ce.Code
		}
		return nil, &proto.OfferReply{Code: code, Detail: proto.Clip(err.Error(), 256)}
	}
	if sink == nil {
		b.node.bodyGC.refused.add(from, reply.GetCode())
		return nil, reply
	}
	return sink, reply
}

func (n *Node) receiveBody(ctx context.Context, from proto.PeerID, o *proto.Offer) (*incomingBody, *proto.OfferReply, error) {
	env, err := proto.Encode(nil, o.GetEnvelope())
	if err != nil {
		return nil, nil, err
	}
	m := &proto.Message{Type: o.GetType(), Payload: env, Signature: o.GetEnvelope().GetSignature()}
	switch o.GetType() {
	case proto.TypeData:
		a, err := n.openTask(n.checks(), from, m)
		if err != nil {
			return nil, nil, err
		}
		v := n.inbox.Accept(ctx, []inbox.Arrival{a})[0]
		if a.Content.GetQueue() != "" && v.Code == proto.CodeNeedBody {
			return n.bodyTransfer.admit(ctx, &a)
		}
		return n.openBody(ctx, v.Code, v.Detail, inbox.BodyName(a.Header.ID), &a.Header, a.Digest)
	case proto.TypeResult:
		_, opened, err := n.openEnvelope(n.checks(), from, m, proto.WhatResult)
		if err != nil {
			return nil, nil, err
		}
		code, detail, rec := n.wantsResult(from, &opened.Header)
		if size := resultSize(&opened.Header, nil); code == proto.CodeNeedBody && rec.GetMaxResult() > 0 && size > rec.GetMaxResult() {
			sealed, _, _ := opened.Header.Stream()
			return nil, &proto.OfferReply{Offset: sealed}, nil // the result ends the task without its body
		}
		leaf := identity.EnvelopeLeaf(o.GetEnvelope().GetHeader(), o.GetEnvelope().GetBody(), proto.WhatResult)
		// A result is accepted even when there is no space for new work (I13).
		sink, reply, err := n.openBodyIn(ctx, n.storage.Blobs.Essential(), code, detail, arrivingBlob(opened.Header.ID), &opened.Header, leaf)
		if reply != nil {
			reply.State = rec.GetState()
		}
		return sink, reply, err
	case proto.TypeGrant:
		return n.bodyTransfer.offerGrant(ctx, from, o.GetEnvelope())
	case proto.TypeEnded:
		return n.bodyTransfer.offerResult(ctx, from, m)
	case proto.TypeHandoff:
		return n.bodyTransfer.offerHandoff(ctx, from, o.GetEnvelope())
	}
	return nil, nil, identity.BadForm("a message of type %s has no body", o.GetType())
}

// wantsResult returns NEED_BODY while the home still waits for this result, and the
// record of the task; nil if the task is unknown.
func (n *Node) wantsResult(from proto.PeerID, h *proto.Header) (proto.Code, string, *proto.Record) {
	rec, err := n.outbox.Get(h.ID)
	switch {
	case errors.Is(err, outbox.ErrNotFound):
		return proto.CodeStale, "the task is unknown here", nil
	case err != nil:
		return proto.CodeInternal, "the task could not be read", nil
	case !outbox.TakesResult(rec) || rec.Seq() != h.Seq:
		return proto.CodeStale, "the result is not awaited", rec
	case string(rec.GetPeer()) == string(from[:]) || n.queues.WasHomeOf(rec.GetTarget(), from):
	case strings.HasPrefix(rec.GetTarget(), proto.QueuePrefix):
		return proto.CodeBusy, "the sender is not yet known here as a home of the task's queue", rec
	default:
		return proto.CodeStale, "the result is not awaited", rec
	}
	return proto.CodeNeedBody, "", rec
}

// openBody prepares to receive a body if code says that only the body is missing. If
// the body is here already, the offset of the reply is its whole size.
func (n *Node) openBody(ctx context.Context, code proto.Code, detail, name string, h *proto.Header, leaf [32]byte) (*incomingBody, *proto.OfferReply, error) {
	return n.openBodyIn(ctx, n.storage.Blobs, code, detail, name, h, leaf)
}

// openBodyIn is openBody for the folder dir: results have one that max_blobs does not
// bound. In either folder one origin may hold nine times what is free.
func (n *Node) openBodyIn(ctx context.Context, dir *blob.Dir, code proto.Code, detail, name string, h *proto.Header, leaf [32]byte) (*incomingBody, *proto.OfferReply, error) {
	size, _, streamed := h.Stream()
	if !streamed {
		return nil, nil, identity.BadForm("the envelope has no streamed body")
	}
	if code == proto.CodeOK {
		return nil, &proto.OfferReply{Offset: size}, nil
	}
	if code != proto.CodeNeedBody {
		return nil, &proto.OfferReply{Code: code, Detail: detail}, nil
	}
	if has, err := n.storage.Blobs.Has(name); err == nil && has {
		return nil, &proto.OfferReply{Offset: size}, nil
	}
	full := &proto.OfferReply{Code: proto.CodeFull, Detail: "no space for the body"}
	if dir == n.storage.Blobs && n.storage.Store.Full() {
		return nil, full, nil
	}
	a, err := n.resumeBody(ctx, dir.Of(string(h.Origin[:])), name, int64(size), progress{notAfter: h.NotAfter, leaf: leaf, origin: h.Origin})
	switch {
	case errors.Is(err, blob.ErrShare):
		return nil, &proto.OfferReply{Code: proto.CodeFull, Detail: "you have used your share of the space for bodies; the rest is for others"}, nil
	case errors.Is(err, blob.ErrFull), errors.Is(err, blob.ErrTooLarge):
		return nil, full, nil
	case err != nil:
		n.log.Error("a body cannot be received", "blob", name, "err", err)
		return nil, &proto.OfferReply{Code: proto.CodeInternal, Detail: "the body cannot be stored"}, nil
	}
	return a, &proto.OfferReply{Offset: uint64(a.w.Offset())}, nil
}

// An incomingBody is a sealed body being received. How much of it is durable is
// recorded in the bucket Chunks, with the envelope that it belongs to: after a crash
// it resumes there (S12).
type incomingBody struct {
	node     *Node
	ctx      context.Context // of the stream it arrives on
	w        *blob.Writer
	name     string
	progress progress // all but the offset

	onProgress func() error // called before bytes are written; may be nil
	onEnd      func(whole bool)
}

func (n *Node) resumeBody(ctx context.Context, dir *blob.Dir, name string, size int64, note progress) (*incomingBody, error) {
	if size > n.cfg.Store.MaxBlob {
		return nil, blob.ErrTooLarge
	}
	w, err := dir.Resume(name)
	if err != nil {
		return nil, err
	}
	a := &incomingBody{node: n, ctx: ctx, w: w, name: name, progress: note}
	if err := w.Truncate(min(a.durable(), w.Offset())); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := dir.Fits(size - w.Offset()); err != nil { // a part that can never be completed only takes up space
		if w.Offset() == 0 {
			return nil, errors.Join(err, w.Abort())
		}
		return nil, errors.Join(err, w.Close())
	}
	return a, nil
}

// A progress records how much of a body is durable: offset 8 | not_after 8 | leaf 32 |
// origin 32, big endian.
type progress struct {
	offset   int64
	notAfter int64 // Unix milliseconds; nobody sends the rest after it
	leaf     [32]byte
	origin   proto.PeerID // of the envelope; the body counts against its share of the space
}

const progressSize = 80

func (p progress) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, progressSize), uint64(p.offset))
	b = binary.BigEndian.AppendUint64(b, uint64(p.notAfter))
	return append(append(b, p.leaf[:]...), p.origin[:]...)
}

func decodeProgress(b []byte) (p progress, ok bool) {
	if len(b) != progressSize {
		return p, false
	}
	p.offset, p.notAfter = int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))
	copy(p.leaf[:], b[16:])
	copy(p.origin[:], b[48:])
	return p, p.offset >= 0
}

// readProgress reads the record of a body that is being received.
func (n *Node) readProgress(name string) (progress, bool) {
	v, err := n.storage.Store.Get(store.Chunks, []byte(name))
	if err != nil {
		return progress{}, false
	}
	return decodeProgress(v)
}

// durable returns how many bytes of exactly this body are on record.
func (in *incomingBody) durable() int64 {
	p, ok := in.node.readProgress(in.name)
	if !ok || p.leaf != in.progress.leaf {
		return 0
	}
	return p.offset
}

// dropOldProgress drops the records of bodies whose rest nobody will send, and returns
// a function that reports whether a body is still awaited.
func (n *Node) dropOldProgress(ctx context.Context) (awaited func(name string) bool, err error) {
	keep, old := map[string]bool{}, new(store.Batch)
	late := n.cfg.Clock.Now().Add(-proto.Skew).UnixMilli()
	for pair, err := range n.storage.Store.All(store.Chunks, nil, nil) {
		if err != nil {
			return nil, fmt.Errorf("read the progress of bodies: %w", err)
		}
		if p, ok := decodeProgress(pair.Val); ok && (p.notAfter > late || n.cfg.Clock.Doubted()) && !n.bodyTransfer.abandoned(string(pair.Key)) {
			keep[string(pair.Key)] = true
			n.storage.Blobs.SetOwner(string(pair.Key), string(p.origin[:]))
		} else {
			old.Delete(store.Chunks, pair.Key)
		}
	}
	if old.Len() > 0 {
		err = n.storage.Store.Apply(ctx, old)
	}
	return func(name string) bool { return keep[name] }, err
}

// Write adds the next sealed bytes, whose hash was checked. Without space for them the
// task waits, as it does when the inbox is full.
func (in *incomingBody) Write(p []byte) (int, error) {
	if in.onProgress != nil {
		if err := in.onProgress(); err != nil {
			return 0, err
		}
	}
	k, err := in.w.Write(p)
	switch {
	case errors.Is(err, blob.ErrShare):
		err = &transport.CodeError{Code: proto.CodeFull, Detail: "you have used your share of the space for bodies; the rest is for others"}
	case errors.Is(err, blob.ErrFull):
		err = &transport.CodeError{Code: proto.CodeFull, Detail: "no space for the rest of the body"}
	}
	return k, err
}

// Sync makes what was written durable, then the record of how much that is.
func (in *incomingBody) Sync() (int64, error) {
	if err := in.w.Sync(); err != nil {
		return 0, err
	}
	note := in.progress
	note.offset = in.w.Offset()
	var b store.Batch
	b.Put(store.Chunks, []byte(in.name), note.encode())
	if err := in.node.storage.Store.Apply(context.WithoutCancel(in.ctx), &b); err != nil {
		return 0, fmt.Errorf("record the progress of a body: %w", err)
	}
	return in.w.Offset(), nil
}

// End gives the complete body its name, or leaves the part for the next attempt.
func (in *incomingBody) End(whole bool) error {
	err := in.end(whole)
	if in.onEnd != nil {
		in.onEnd(whole && err == nil)
	}
	return err
}

func (in *incomingBody) end(whole bool) error {
	if !whole {
		return in.w.Close()
	}
	if err := in.w.Commit(); err != nil {
		return err
	}
	return in.node.dropProgress(in.ctx, in.name)
}

// dropProgress drops the record of a body that is complete or unwanted.
func (n *Node) dropProgress(ctx context.Context, name string) error {
	var b store.Batch
	b.Delete(store.Chunks, []byte(name))
	return n.storage.Store.Apply(context.WithoutCancel(ctx), &b)
}

// inboxBodies lets the inbox read the bodies of its tasks.
type inboxBodies struct{ node *Node }

// Has reports whether the whole body is here.
func (b inboxBodies) Has(name string) bool {
	has, err := b.node.storage.Blobs.Has(name)
	return err == nil && has
}

// Open reads the plain body.
func (b inboxBodies) Open(name string, key [32]byte, suite byte) (io.ReadCloser, error) {
	return openSealed(b.node.storage.Blobs, name, key, suite, proto.WhatTask)
}

// inboxFiles stores what the inbox has that is too large for a record.
type inboxFiles struct{ node *Node }

// Put makes the file durable.
func (f inboxFiles) Put(name string, p []byte) error { return f.node.storage.Blobs.Put(name, p) }

// Get returns the file.
func (f inboxFiles) Get(name string) ([]byte, error) { return readBlob(f.node.storage.Blobs, name) }

// Delete removes the file; a missing file is not an error.
func (f inboxFiles) Delete(name string) error {
	err := f.node.storage.Blobs.Delete(name)
	if errors.Is(err, blob.ErrNotFound) {
		return nil
	}
	return err
}
