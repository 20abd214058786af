package submit

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// PutResult seals the result of a finished task for its home, and makes the end of the task
// and its result durable together.
func (s *Submitter) PutResult(ctx context.Context, f *inbox.Finished, also func(*store.Batch)) error {
	defer s.sign(f)()
	d, err := s.resultDraft(ctx, f)
	if err != nil {
		return fmt.Errorf("result of %s: %w", f.ID, err)
	}
	err = s.Fail(PointResult)
	if err == nil {
		err = s.Outbox.PutResult(ctx, d, also)
	}
	s.unpin(d.Record.GetBodyBlob(), err)
	if err != nil {
		return fmt.Errorf("result of %s: %w", f.ID, err)
	}
	if f.File != "" {
		if err := os.Remove(f.File); err != nil {
			s.Logger.Warn("a result's file could not be removed", "file", f.File, "err", err)
		}
	}
	if f.Origin != s.Keys.Peer() {
		s.Want(f.Origin)
	}
	return nil
}

// sign makes receipts of what f states, and returns a function to call when f is
// written. A large result does not make others wait for it.
func (s *Submitter) sign(f *inbox.Finished) (written func()) {
	statements := s.statements(f)
	if f.File != "" {
		f.Outcome.Receipts = s.Keys.Receipts(statements)
		return func() {}
	}
	f.Outcome.Receipts, written = s.receipts.Sign(statements)
	return written
}

func (s *Submitter) resultDraft(ctx context.Context, f *inbox.Finished) (*outbox.Draft, error) {
	key, ok := s.Book.KeyRecord(f.Origin)
	if !ok {
		return nil, fmt.Errorf("%w: the sealing key of %s", inbox.ErrNoOrigin, f.Origin.Short())
	}
	now := s.Clock.Now()
	d := &outbox.Draft{
		Record: &proto.Record{Kind: f.Kind, Class: f.Class},
		Header: proto.Header{
			What: proto.WhatResult, Mesh: s.Mesh, ID: f.ID, Origin: s.Keys.Peer(), Target: f.Origin,
			Seq: f.Seq, Created: now.UnixMilli(), NotAfter: now.Add(proto.MaxTTL).UnixMilli(),
		},
	}
	if err := s.placeResult(ctx, d, f, key); err != nil {
		return nil, err
	}
	if err := roomError(s.seal(d, key, f.Outcome)); err != nil {
		s.unpin(d.Record.GetBodyBlob(), err)
		return nil, err
	}
	return d, nil
}

// statements are what this node states about a task with its result. They include its
// acceptance, since a quick result overtakes the ack.
func (s *Submitter) statements(f *inbox.Finished) [][]byte {
	accepted := s.Clock.Now().UnixMilli()
	for _, e := range f.Outcome.GetEvents() {
		if e.GetState() == proto.Accepted {
			accepted = e.GetTimeMs()
			break
		}
	}
	first := outbox.AcceptedStatement(s.Mesh, f.ID, s.Keys.Peer(), f.Seq, accepted)
	buf := make([]byte, 0, (1+len(f.Statements))*proto.StatementSize)
	out := make([][]byte, 0, 1+len(f.Statements))
	add := func(s *proto.Statement) {
		from := len(buf)
		buf = s.Append(buf)
		out = append(out, buf[from:len(buf):len(buf)])
	}
	add(&first)
	for i := range f.Statements {
		add(&f.Statements[i])
	}
	return out
}

// placeResult makes a result that is in a file an object, which is pinned.
func (s *Submitter) placeResult(ctx context.Context, d *outbox.Draft, f *inbox.Finished, home identity.KeyRecord) error {
	o := f.Outcome
	if o.GetObject() != nil { // as its owner sealed it
		m, err := s.Bodies.PinBody(o.GetObject())
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
	ref, m, err := s.Bodies.SealFile(ctx, f.File, SuiteOf(home))
	if errors.Is(err, bodies.ErrTooLarge) {
		return fmt.Errorf("%w: %w", inbox.ErrNoRoom, err)
	}
	if err != nil {
		return roomError(err)
	}
	o.BodySize, o.BodyDigest, o.Object = uint64(ref.Size), ref.Digest[:], ref.Proto()
	d.Record.BodyBlob = ref.Name.String()
	d.Header.SetObject(ref.Name, m.Size)
	return nil
}

// roomError makes an error of the bodies one that tells the inbox that the disk is full.
func roomError(err error) error {
	if errors.Is(err, bodies.ErrFull) {
		return fmt.Errorf("%w: %w", inbox.ErrNoRoom, err)
	}
	return err
}

// UntoldHook adds an event for each result that could not be sealed for its home.
func UntoldHook(event func(kind string, p proto.PeerID, fields map[string]string)) func(*inbox.Finished) {
	return func(f *inbox.Finished) {
		event(wire.EventResultDead, f.Origin, map[string]string{
			"task": f.ID.String(), "cause": proto.TaskResultUnsealed.Name(), "detail": f.Outcome.GetState().Name(),
		})
	}
}
