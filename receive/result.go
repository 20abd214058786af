package receive

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// commit passes the results to the outbox, which applies the commit rule.
func (r *Receiver) commit(ctx context.Context, from proto.PeerID, in *frameGroup) {
	var files []string // of the results, which are pinned
	for _, result := range in.results {
		files = append(files, result.Blob)
	}
	for i, v := range r.Outbox.Commit(ctx, from, in.results) {
		r.unpin(files[i], v.Code)
		if result := &in.results[i]; result.TooLarge {
			r.tooLarge(from, result.ID, result.Outcome.GetReason())
		}
		in.refuse(in.resultAt[i], v.Code, v.Detail, v.State, 0)
	}
}

func (r *Receiver) openResult(ctx context.Context, checks *identity.Checks, from proto.PeerID, m *proto.Message) (outbox.ResultIn, error) {
	_, opened, err := r.openEnvelope(checks.CheckInPlace, from, m, proto.WhatResult)
	if err != nil {
		return outbox.ResultIn{}, err
	}
	outcome := new(proto.Outcome)
	if err := proto.DecodeShared(opened.Content, outcome); err != nil {
		return outbox.ResultIn{}, err
	}
	if opened.Header.Streamed() || len(outcome.GetBody()) > proto.MaxInlineRecord {
		// The body becomes a file before the commit rule is evaluated, so it must not be
		// written for a result that will be rejected.
		switch code, detail, rec := r.Wants(from, &opened.Header); code {
		case proto.CodeNeedBody:
			if size := proto.ResultSize(&opened.Header, outcome); rec.GetOptions().Exceeded(size) {
				outcome.Body, outcome.BodySize = nil, size // see outbox.Commit
				return outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}, nil
			}
		case proto.CodeStale:
			return outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}, nil
		default:
			return outbox.ResultIn{}, &identity.CheckError{Code: code, Err: errors.New(detail)}
		}
	}
	return r.resultIn(ctx, opened, outcome)
}

// resultIn prepares a result for the commit rule: it checks the receipts, and finds or
// makes the file of a body that is too large for the record. That is pinned.
func (r *Receiver) resultIn(ctx context.Context, opened identity.Verified, outcome *proto.Outcome) (outbox.ResultIn, error) {
	in := outbox.ResultIn{ID: opened.Header.ID, Seq: opened.Header.Seq, Outcome: outcome}
	for _, rc := range outcome.GetReceipts() {
		if _, err := identity.VerifyReceipt(r.Verifier, rc); err != nil {
			return in, &identity.CheckError{Code: proto.CodeBadSignature, Err: err}
		}
	}
	if opened.Header.Streamed() {
		err := r.findResult(ctx, &in, &opened.Header)
		return in, err // which has the file now
	}
	outcome.Object = nil
	err := identity.CheckBody(outcome.GetBody(), outcome.GetBodySize(), outcome.GetBodyDigest())
	if err != nil {
		return in, err
	}
	if len(outcome.GetBody()) > proto.MaxInlineRecord {
		if in.Blob, err = r.Bodies.Put(outcome.GetBody(), true); err != nil {
			return in, storeError(err)
		}
	}
	return in, nil
}

// storeError refuses a result whose body could not be stored or read: it is sent again.
func storeError(err error) error {
	return &identity.CheckError{Code: proto.CodeInternal, Err: fmt.Errorf("store the body: %w", err)}
}

// findResult pins and verifies the object that arrived before its result, and sets the file
// of in.
func (r *Receiver) findResult(ctx context.Context, in *outbox.ResultIn, h *proto.Header) error {
	o, files := in.Outcome, r.Bodies
	if err := o.GetObject().Check(h, o.GetBodySize()); err != nil {
		return identity.BadForm("%w", err)
	}
	if _, err := files.PinBody(o.GetObject()); err != nil {
		return &identity.CheckError{Code: proto.CodeNeedBody, Err: errors.New("the result's body is not here yet")}
	}
	name := o.GetObject().File()
	err := files.Verify(ctx, o)
	if err == nil {
		in.Blob = name
		return nil
	}
	files.Release(name)
	if errors.Is(err, bodies.ErrSealed) {
		files.Drop(name)
		return identity.BadForm("%w", err)
	}
	return storeError(err) // a disk error or a timeout: it is offered again
}

// unpin no longer pins the body of a result that was answered with code.
func (r *Receiver) unpin(name string, code proto.Code) {
	switch {
	case name == "":
	case code == proto.CodeInternal: // it may be written nevertheless
		r.Bodies.Hold(name)
	default:
		r.Bodies.Release(name)
		r.Bodies.Drop(name) // the record refers to it, or nothing does
	}
}

// tooLarge reports a task that ended because its target sent a larger result
// than it accepts.
func (r *Receiver) tooLarge(from proto.PeerID, id proto.TaskID, reason string) {
	r.Logger.Warn("a result is larger than its task accepts: it is refused, and the task is a dead letter", "task", id.String(), "peer", from, "reason", reason)
	r.Event(wire.EventResultTooLarge, from, map[string]string{"task": id.String(), "detail": reason})
}
