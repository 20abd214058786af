package submit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// place puts the body of a request into the content of its draft if it is small. Otherwise it
// becomes an object, which is pinned until unpin.
func (s *Sealing) place(ctx context.Context, d *outbox.Draft, c *proto.Content, to identity.KeyRecord, r *Request) error {
	if r.Object != nil {
		return s.placeObject(d, c, r)
	}
	body := r.Body
	if r.Stream != nil {
		head, more, err := readHead(r.Stream)
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if more != nil {
			return s.sealObject(ctx, d, c, to, more)
		}
		body = head
	}
	if len(body) > proto.MaxInlineBody {
		return s.sealObject(ctx, d, c, to, bytes.NewReader(body))
	}
	sum := sha256.Sum256(body)
	c.Body, c.BodySize, c.BodyDigest = body, uint64(len(body)), sum[:]
	d.Record.BodySize = c.BodySize
	return nil
}

// readHead reads a body that may be small. If it is not, more is the whole stream.
func readHead(r io.Reader) (head []byte, more io.Reader, err error) {
	head, err = io.ReadAll(io.LimitReader(r, proto.MaxInlineBody+1))
	if err != nil || len(head) <= proto.MaxInlineBody {
		return head, nil, err
	}
	return nil, io.MultiReader(bytes.NewReader(head), r), nil
}

// sealObject seals a body of any size.
func (s *Sealing) sealObject(ctx context.Context, d *outbox.Draft, c *proto.Content, to identity.KeyRecord, r io.Reader) error {
	ref, m, err := s.Bodies.Seal(ctx, r, bodies.SealOptions{Suite: SuiteOf(to)})
	if err != nil {
		return storeError(err)
	}
	c.Body, c.BodySize, c.BodyDigest, c.Object = nil, uint64(ref.Size), ref.Digest[:], ref.Proto()
	d.Record.BodyBlob, d.Record.BodySize = ref.Name.String(), c.BodySize
	d.Header.SetObject(ref.Name, m.Size)
	return nil
}

// placeObject makes the object of an ended task that of its redrive too.
func (s *Sealing) placeObject(d *outbox.Draft, c *proto.Content, r *Request) error {
	m, err := s.Bodies.PinBody(r.Object)
	if err != nil {
		return fmt.Errorf("%w: the body is no longer stored: submit it again: %w", wire.ErrRefused, err)
	}
	c.Body, c.BodySize, c.BodyDigest, c.Object = nil, r.ObjectSize, r.ObjectDigest, r.Object
	d.Record.BodyBlob, d.Record.BodySize = m.Name().String(), c.BodySize
	d.Header.SetObject(m.Name(), m.Size)
	return nil
}

// SuiteOf returns how bodies for the owner of a sealing key are sealed.
func SuiteOf(k identity.KeyRecord) byte {
	if k.Suite == identity.SuiteX25519ChaCha {
		return bodies.ChaCha
	}
	return bodies.AES
}

// storeError explains why a body could not be stored.
func storeError(err error) error {
	switch {
	case errors.Is(err, bodies.ErrFull):
		return fmt.Errorf("%w: no space for the body: %w", wire.ErrFull, err)
	case errors.Is(err, bodies.ErrTooLarge):
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return fmt.Errorf("store the body: %w", err)
}

// offload moves a sealed body that is too large for a record into a file, which is
// durable before the record, and pinned.
func (s *Sealing) offload(d *outbox.Draft) (err error) {
	if len(d.Envelope.Body) <= proto.MaxSealedRecord {
		return nil
	}
	if d.Header.Streamed() { // the body is a file already
		if len(d.Envelope.Body) > inbox.MaxStreamContent {
			return fmt.Errorf("%w: a task with a body of more than %d bytes may have at most %d bytes beside it: send long arguments in the body", wire.ErrInvalid, proto.MaxInlineBody, inbox.MaxStreamContent)
		}
		return nil
	}
	if d.Record.BodyBlob, err = s.Bodies.Put(d.Envelope.Body, d.Header.What == proto.WhatResult); err != nil {
		return storeError(err)
	}
	d.Envelope.Body = nil
	return nil
}

// unpin no longer pins the body of a draft, whose write ended in err. If that leaves
// open whether it was written, the body is kept for a while.
func (s *Sealing) unpin(name string, err error) {
	switch {
	case name == "":
	case errors.Is(err, store.ErrUnknown):
		s.Bodies.Hold(name)
	case err != nil:
		s.Bodies.Release(name)
		s.Bodies.Drop(name)
	default:
		s.Bodies.Release(name)
	}
}
