package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
)

// inboxResults seals the results of finished tasks for their homes and gives them to
// the outbox, in one batch with the end of the task.
type inboxResults struct {
	node   *Node
	signer *identity.ReceiptSigner
}

// PutResult makes the end of a task and its result durable together.
func (r inboxResults) PutResult(ctx context.Context, f *inbox.Finished, also func(*store.Batch)) error {
	n := r.node
	defer r.sign(f)()
	d, err := n.resultDraft(ctx, f)
	if err != nil {
		return fmt.Errorf("result of %s: %w", f.ID, err)
	}
	err = n.cfg.Fail(PointResult)
	if err == nil {
		err = n.outbox.PutResult(ctx, d, also)
	}
	n.transfers.Bodies.Unpin(d.Record.GetBodyBlob(), err)
	if err != nil {
		return fmt.Errorf("result of %s: %w", f.ID, err)
	}
	if f.File != "" {
		if err := os.Remove(f.File); err != nil {
			n.log.Warn("a result's file could not be removed", "file", f.File, "err", err)
		}
	}
	if f.Origin != n.keys.Peer() {
		n.net.Want(f.Origin)
	}
	return nil
}

// sign makes receipts of what f states, and returns a function to call when f is
// written. A large result does not make others wait for it.
func (r inboxResults) sign(f *inbox.Finished) (written func()) {
	statements := r.node.statements(f)
	if f.File != "" {
		f.Outcome.Receipts = r.node.keys.Receipts(statements)
		return func() {}
	}
	f.Outcome.Receipts, written = r.signer.Sign(statements)
	return written
}

func (n *Node) resultDraft(ctx context.Context, f *inbox.Finished) (*outbox.Draft, error) {
	key, ok := n.book.KeyRecord(f.Origin)
	if !ok {
		return nil, fmt.Errorf("%w: the sealing key of %s", inbox.ErrNoOrigin, f.Origin.Short())
	}
	now := n.cfg.Clock.Now()
	d := &outbox.Draft{
		Record: &proto.Record{Kind: f.Kind, Class: f.Class},
		Header: proto.Header{
			What: proto.WhatResult, Mesh: n.mesh.ID, ID: f.ID, Origin: n.keys.Peer(), Target: f.Origin,
			Seq: f.Seq, Created: now.UnixMilli(), NotAfter: now.Add(proto.MaxTTL).UnixMilli(),
		},
	}
	if err := n.placeResult(ctx, d, f, key.Peer); err != nil {
		return nil, err
	}
	plain, err := proto.Encode(nil, f.Outcome)
	if err == nil {
		err = n.sealBytes(d, key, plain)
	}
	if err != nil {
		n.transfers.Bodies.Unpin(d.Record.GetBodyBlob(), err)
	}
	return d, err
}

// resultRefused adds an event for a result that its home refuses.
func (n *Node) resultRefused(id proto.TaskID, home proto.PeerID, r *proto.Refusal, over bool) {
	kind := "result.refused"
	if over {
		kind = "result.dead"
	}
	n.addEvent(kind, home, fmt.Sprintf("the home of task %s refuses its result: %s: %s", id, r.GetCode().Name(), r.GetDetail()), map[string]string{"task": id.String()})
}

// resultStale adds an event for a result that does not count.
func (n *Node) resultStale(id proto.TaskID, home proto.PeerID, r *proto.Refusal) {
	n.addEvent("result.stale", home, fmt.Sprintf("the home of task %s has recorded its result, which does not count: %s", id, r.GetDetail()), map[string]string{"task": id.String()})
}

// resultLost adds an event for a result that did not reach its home in time.
func (n *Node) resultLost(id proto.TaskID, home proto.PeerID, reason string) {
	n.addEvent("result.dead", home, fmt.Sprintf("the result of task %s did not reach its home: %s", id, reason), map[string]string{"task": id.String()})
}

// statements are what this node states about a task with its result. They include its
// acceptance, since a quick result overtakes the ack.
func (n *Node) statements(f *inbox.Finished) [][]byte {
	accepted := n.cfg.Clock.Now().UnixMilli()
	for _, e := range f.Outcome.GetEvents() {
		if e.GetState() == proto.Accepted {
			accepted = e.GetTimeMs()
			break
		}
	}
	s := outbox.AcceptedStatement(n.mesh.ID, f.ID, n.keys.Peer(), f.Seq, accepted)
	out := [][]byte{s.Append(nil)}
	for i := range f.Statements {
		out = append(out, f.Statements[i].Append(nil))
	}
	return out
}

// placeResult makes a result that is in a file an object, which is pinned.
func (n *Node) placeResult(ctx context.Context, d *outbox.Draft, f *inbox.Finished, home proto.PeerID) error {
	o := f.Outcome
	if o.GetObject() != nil { // as its owner sealed it
		m, err := n.transfers.Bodies.PinObject(o.GetObject())
		if err != nil {
			return fmt.Errorf("the body of the result: %w", err)
		}
		d.Record.BodyBlob = m.Name().String()
		d.Header.SetObject(m.Name(), m.Size)
		return nil
	}
	if f.File == "" {
		return nil
	}
	ref, m, err := n.transfers.Bodies.SealFile(ctx, f.File, n.transfers.Bodies.Suite(home))
	if errors.Is(err, bodies.ErrFull) || errors.Is(err, bodies.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", inbox.ErrNoRoom, err)
	}
	if err != nil {
		return err
	}
	o.BodySize, o.BodyDigest, o.Object = uint64(ref.Size), ref.Digest[:], ref.Proto()
	d.Record.BodyBlob = ref.Name.String()
	d.Header.SetObject(ref.Name, m.Size)
	return nil
}

// resultIn prepares a result for the commit rule: it checks the receipts, and finds or
// makes the file of a body that is too large for the record. That is pinned.
func (n *Node) resultIn(ctx context.Context, opened identity.Verified, outcome *proto.Outcome) (outbox.ResultIn, error) {
	in := outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}
	for _, rc := range outcome.GetReceipts() {
		if _, err := identity.VerifyReceipt(n.verifier, rc); err != nil {
			return in, &identity.CheckError{Code: proto.CodeBadSignature, Err: err}
		}
	}
	if opened.Header.Streamed() {
		err := n.transfers.Bodies.FindResult(ctx, &in, &opened.Header)
		return in, err // which has the file now
	}
	outcome.Object = nil
	if err := identity.CheckBody(outcome.GetBody(), outcome.GetBodySize(), outcome.GetBodyDigest()); err != nil {
		return in, err
	}
	if len(outcome.GetBody()) > proto.MaxInlineRecord {
		if err := n.transfers.Bodies.PutResult(&in); err != nil {
			return in, err
		}
	}
	return in, nil
}

// resultTooLarge reports a task that ended because its target sent a larger result
// than it accepts.
func (n *Node) resultTooLarge(from proto.PeerID, id proto.TaskID, reason string) {
	n.log.Warn("a result is larger than its task accepts: it is refused, and the task is a dead letter", "task", id.String(), "peer", from, "reason", reason)
	n.addEvent("task.result_too_large", from, "task "+id.String()+": "+reason, map[string]string{"task": id.String()})
}

// result returns the result of a task whose home is here, to be read and closed.
func (n *Node) result(rec *proto.Record) (io.ReadCloser, error) {
	b, err := rec.GetResult(), error(nil)
	if o := rec.GetResultObject(); o != nil {
		return n.transfers.Bodies.OpenObject(o, rec.GetResultSize(), rec.GetResultDigest())
	} else if rec.GetResultBlob() != "" {
		b, err = n.storage.Blobs.Get(rec.GetResultBlob(), proto.MaxInlineBody)
	}
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

// sendStarted tells a home that its task is running: the origin or, for a lease, the
// home of the queue, which tells the origin. It is best effort: there is no answer and
// no retry.
func (n *Node) sendStarted(s inbox.Started) {
	to := s.Origin
	if !s.Home.IsZero() {
		to = s.Home
	}
	n.notifyStarted(to, &proto.Receipts{Receipts: n.keys.Receipts([][]byte{s.Statement.Append(nil)})})
}

func (n *Node) notifyStarted(to proto.PeerID, receipts *proto.Receipts) {
	if to == n.keys.Peer() {
		receiver{n}.Started(to, receipts)
		return
	}
	payload, err := proto.Encode(nil, receipts)
	if err == nil {
		err = n.net.SendCtl(to, &proto.Message{Type: proto.TypeStarted, Payload: payload, Timestamp: n.cfg.Clock.Now().UnixNano()})
	}
	if err != nil && !errors.Is(err, transport.ErrNotConnected) {
		n.log.Debug("a start could not be reported", "peer", to, "err", err)
	}
}
