package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/transport"
)

// inboxResults seals the results of finished tasks for their homes and gives them to
// the outbox, in one batch with the end of the task.
type inboxResults struct {
	node   *Node
	signer *receiptSigner
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
	if err != nil {
		if !errors.Is(err, store.ErrUnknown) { // otherwise it may still be written
			n.dropBody(d)
		}
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
	f.Outcome.Receipts, written = r.signer.sign(statements)
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
	stream, err := n.sealResultFile(ctx, d, f, key.Suite)
	if err != nil {
		return nil, err
	}
	plain, err := proto.Encode(nil, f.Outcome)
	if err != nil {
		return nil, err
	}
	return d, n.sealBytes(d, key, plain, stream)
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

// sealResultFile seals a result that is in a file into a blob.
func (n *Node) sealResultFile(ctx context.Context, d *outbox.Draft, f *inbox.Finished, suite byte) (*[32]byte, error) {
	if key := f.Outcome.GetBodyKey(); len(key) > 0 { // as its owner sealed it
		name := leasedBlob(f.ID, key)
		if has, err := n.storage.Blobs.Has(name); err != nil || !has {
			return nil, errors.Join(errors.New("the body of the result is missing"), err)
		}
		d.Record.BodyBlob = name
		d.Header.SetStream(uint64(identity.SealedSize(int64(f.Outcome.GetBodySize()))), proto.ChunkSize)
		return nil, nil
	}
	if f.File == "" {
		return nil, nil
	}
	file, err := os.Open(f.File)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	key, name := newContentKey(), outcomeBlob(f.ID)
	size, sum, err := n.sealInto(ctx, n.storage.Blobs.Essential(), name, key, suite, proto.WhatResult, file)
	if errors.Is(err, blob.ErrFull) || errors.Is(err, blob.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", inbox.ErrNoRoom, err)
	}
	if err != nil {
		return nil, err
	}
	f.Outcome.BodySize, f.Outcome.BodyDigest = uint64(size), sum
	d.Record.BodyBlob = name
	d.Header.SetStream(uint64(identity.SealedSize(size)), proto.ChunkSize)
	return &key, nil
}

// resultIn prepares a result for the commit rule: it checks the receipts, and moves a
// body that is too large for the record into a blob.
func (n *Node) resultIn(ctx context.Context, opened identity.Verified, outcome *proto.Outcome) (outbox.ResultIn, error) {
	in := outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}
	for _, rc := range outcome.GetReceipts() {
		if _, err := identity.VerifyReceipt(n.verifier, rc); err != nil {
			return in, &identity.CheckError{Code: proto.CodeBadSignature, Err: err}
		}
	}
	if _, _, streamed := opened.Header.Stream(); streamed {
		return in, n.openStreamed(ctx, &in, opened)
	}
	if err := identity.CheckBody(outcome.GetBody(), outcome.GetBodySize(), outcome.GetBodyDigest()); err != nil {
		return in, err
	}
	if len(outcome.GetBody()) > proto.MaxInlineRecord {
		in.Blob = resultBlob(in.ID)
		if err := n.storage.Blobs.Essential().Put(in.Blob, outcome.GetBody()); err != nil {
			return in, &identity.CheckError{Code: proto.CodeInternal, Err: n.bodyError(err)}
		}
	}
	return in, nil
}

// openStreamed turns the sealed body that arrived before its result into the
// plain blob that the record will name.
func (n *Node) openStreamed(ctx context.Context, in *outbox.ResultIn, opened identity.Verified) error {
	in.Blob = resultBlob(in.ID)
	arrived := arrivingBlob(in.ID)
	if has, err := n.storage.Blobs.Has(in.Blob); err == nil && has {
		n.removeSealed(arrived)
		return nil
	}
	if has, err := n.storage.Blobs.Has(arrived); err != nil || !has {
		return &identity.CheckError{Code: proto.CodeNeedBody, Err: errors.New("the result's body is not here yet")}
	}
	err := n.unseal(ctx, in, arrived, opened)
	switch {
	case errors.Is(err, errForgedBody):
		n.removeSealed(arrived)
		return &identity.CheckError{Code: proto.CodeBadForm, Err: err}
	case err != nil: // a disk error or a timeout: it is offered again
		return &identity.CheckError{Code: proto.CodeInternal, Err: n.bodyError(err)}
	}
	n.removeSealed(arrived)
	return nil
}

// resultTooLarge reports a task that ended because its target sent a larger result
// than it accepts.
func (n *Node) resultTooLarge(from proto.PeerID, id proto.TaskID, reason string) {
	n.log.Warn("a result is larger than its task accepts: it is refused, and the task is a dead letter", "task", id.String(), "peer", from, "reason", reason)
	n.addEvent("task.result_too_large", from, "task "+id.String()+": "+reason, map[string]string{"task": id.String()})
}

func newContentKey() (key [32]byte) {
	fillRandom(key[:])
	return key
}

// result returns the result of a task whose home is here, to be read and closed.
func (n *Node) result(rec *proto.Record) (resultBody, error) {
	if rec.GetResultBlob() == "" {
		return resultBody{Reader: bytes.NewReader(rec.GetResult())}, nil
	}
	b, err := n.storage.Blobs.Open(rec.GetResultBlob())
	if err != nil {
		return resultBody{}, fmt.Errorf("result: %w", err)
	}
	return resultBody{Reader: b, close: b.Close}, nil
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
		n.Started(to, receipts)
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
