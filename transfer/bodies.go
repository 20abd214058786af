package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Bodies makes objects of the bodies that are too large for a record, and reads them. A
// body that it made is pinned until [Bodies.Unpin].
type Bodies struct {
	*bodies.Store
	Book *addressbook.Book // of the peers for which bodies are sealed
}

// A Source is the body of a new task: one of its fields is set, or none.
type Source struct {
	Inline []byte
	Stream io.Reader
	Object *proto.BodyRef // of an ended task, with the plain size and digest of the body
	Size   uint64
	Digest []byte
}

// Place puts the body of a draft into its content if it is small. Otherwise it becomes an
// object.
func (b *Bodies) Place(ctx context.Context, d *outbox.Draft, c *proto.Content, src Source) error {
	if src.Object != nil {
		return b.placeObject(d, c, src)
	}
	body := src.Inline
	if src.Stream != nil {
		head, more, err := readHead(src.Stream)
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if more != nil {
			return b.sealObject(ctx, d, c, more)
		}
		body = head
	}
	if len(body) > proto.MaxInlineBody {
		return b.sealObject(ctx, d, c, bytes.NewReader(body))
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
func (b *Bodies) sealObject(ctx context.Context, d *outbox.Draft, c *proto.Content, r io.Reader) error {
	ref, m, err := b.Store.Seal(ctx, r, bodies.SealOptions{Suite: b.Suite(d.Header.Target)})
	if err != nil {
		return storeError(err)
	}
	c.Body, c.BodySize, c.BodyDigest, c.Object = nil, uint64(ref.Size), ref.Digest[:], ref.Proto()
	d.Record.BodyBlob, d.Record.BodySize = ref.Name.String(), c.BodySize
	d.Header.SetObject(ref.Name, m.Size)
	return nil
}

// placeObject makes the object of an ended task that of its redrive too.
func (b *Bodies) placeObject(d *outbox.Draft, c *proto.Content, src Source) error {
	m, err := b.PinObject(src.Object)
	if err != nil {
		return fmt.Errorf("%w: the body is no longer stored: submit it again: %w", wire.ErrRefused, err)
	}
	c.Body, c.BodySize, c.BodyDigest, c.Object = nil, src.Size, src.Digest, src.Object
	d.Record.BodyBlob, d.Record.BodySize = m.Name().String(), c.BodySize
	d.Header.SetObject(m.Name(), m.Size)
	return nil
}

// PinObject pins the object of a reference and returns its manifest.
func (b *Bodies) PinObject(ref *proto.BodyRef) (m bodies.Manifest, err error) {
	if len(ref.GetName()) != 32 {
		return m, errMissingBody
	}
	name := FileOf(ref)
	if !b.Store.Pin(name) {
		return m, errMissingBody
	}
	if m, err = b.Store.Manifest(name); err != nil {
		b.Store.Release(name)
	}
	return m, err
}

var errMissingBody = errors.New("the body is not here")

// FileOf returns the file of an object, empty if o is none.
func FileOf(o *proto.BodyRef) string {
	if len(o.GetName()) != 32 {
		return ""
	}
	return proto.ObjectFile([32]byte(o.GetName()))
}

// ObjectOf returns the file of the object that a header names, empty if it names none.
func ObjectOf(h *proto.Header) string {
	name, _, ok := h.Object()
	if !ok {
		return ""
	}
	return proto.ObjectFile(name)
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

// Offload moves a sealed body that is too large for a record into a file, which is
// durable before the record, and pinned.
func (b *Bodies) Offload(d *outbox.Draft) (err error) {
	if len(d.Envelope.Body) <= maxSealedRecord {
		return nil
	}
	if d.Header.Streamed() { // the body is a file already
		if len(d.Envelope.Body) > inbox.MaxStreamContent {
			return fmt.Errorf("%w: a task with a body of more than %d bytes may have at most %d bytes beside it: send long arguments in the body", wire.ErrInvalid, proto.MaxInlineBody, inbox.MaxStreamContent)
		}
		return nil
	}
	if d.Record.BodyBlob, err = b.Store.Put(d.Envelope.Body, d.Header.What == proto.WhatResult); err != nil {
		d.Record.BodyBlob = ""
		return storeError(err)
	}
	d.Envelope.Body = nil
	return nil
}

// maxSealedRecord is the largest sealed body that stays in its record.
const maxSealedRecord = proto.MaxInlineRecord + 1<<10

// Unpin no longer pins the body of a draft, whose write ended in err. If that leaves
// open whether it was written, the body is kept for a while.
func (b *Bodies) Unpin(name string, err error) {
	switch {
	case name == "":
	case errors.Is(err, store.ErrUnknown):
		b.Store.Hold(name)
	case err != nil:
		b.Store.Release(name)
		b.Store.Drop(name)
	default:
		b.Store.Release(name)
	}
}

// Suite returns how bodies for a peer are sealed.
func (b *Bodies) Suite(p proto.PeerID) byte {
	if k, _ := b.Book.KeyRecord(p); k.Suite == identity.SuiteX25519ChaCha {
		return bodies.ChaCha
	}
	return bodies.AES
}

// verifyStep is how many bytes are read between two looks at a context.
const verifyStep = 1 << 20

// OpenObject returns the plain body that sealed content refers to.
func (b *Bodies) OpenObject(o *proto.BodyRef, size uint64, digest []byte) (io.ReadCloser, error) {
	ref, err := bodies.RefOf(o, size, digest)
	if err != nil {
		return nil, err
	}
	return b.Store.Open(&ref)
}

// Verify reads the result that an outcome refers to, and checks it.
func (b *Bodies) Verify(ctx context.Context, o *proto.Outcome) error {
	r, err := b.OpenObject(o.GetObject(), o.GetBodySize(), o.GetBodyDigest())
	if err != nil {
		return err
	}
	defer r.Close()
	for err == nil {
		if err = ctx.Err(); err == nil {
			_, err = io.CopyN(io.Discard, r, verifyStep)
		}
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// SealFile seals the file with a result.
func (b *Bodies) SealFile(ctx context.Context, path string, suite byte) (bodies.Ref, bodies.Manifest, error) {
	file, err := os.Open(path)
	if err != nil {
		return bodies.Ref{}, bodies.Manifest{}, err
	}
	defer file.Close()
	return b.Store.Seal(ctx, file, bodies.SealOptions{Suite: suite, Essential: true})
}

// FindResult pins and verifies the object that arrived before its result, and sets the file
// of in.
func (b *Bodies) FindResult(ctx context.Context, in *outbox.ResultIn, h *proto.Header) error {
	o := in.Outcome
	if err := o.GetObject().Check(h, o.GetBodySize()); err != nil {
		return identity.BadForm("%w", err)
	}
	if _, err := b.PinObject(o.GetObject()); err != nil {
		return &identity.CheckError{Code: proto.CodeNeedBody, Err: errors.New("the result's body is not here yet")}
	}
	name := FileOf(o.GetObject())
	err := b.Verify(ctx, o)
	if err == nil {
		in.Blob = name
		return nil
	}
	b.Release(name)
	if errors.Is(err, bodies.ErrSealed) {
		b.Drop(name)
		return identity.BadForm("%w", err)
	}
	return &identity.CheckError{Code: proto.CodeInternal, Err: storeError(err)} // a disk error or a timeout: it is offered again
}

// PutResult makes a file of the body of a result, and sets the file of in.
func (b *Bodies) PutResult(in *outbox.ResultIn) (err error) {
	if in.Blob, err = b.Store.Put(in.Outcome.GetBody(), true); err != nil {
		return &identity.CheckError{Code: proto.CodeInternal, Err: storeError(err)}
	}
	return nil
}

// UnpinResult no longer pins the body of a result that was answered with code.
func (b *Bodies) UnpinResult(name string, code proto.Code) {
	switch {
	case name == "":
	case code == proto.CodeInternal: // it may be written nevertheless
		b.Hold(name)
	default:
		b.Release(name)
		b.Drop(name) // the record refers to it, or nothing does
	}
}

// InboxBodies lets the inbox use the bodies of its tasks.
type InboxBodies struct{ *Bodies }

// Open reads the plain body.
func (b InboxBodies) Open(c *proto.Content) (io.ReadCloser, error) {
	return b.OpenObject(c.GetObject(), c.GetBodySize(), c.GetBodyDigest())
}

// InboxFiles stores what the inbox has that is too large for a record.
type InboxFiles struct{ *bodies.Store }

// Put makes the bytes durable and pins them.
func (f InboxFiles) Put(p []byte) (string, error) { return f.Store.Put(p, false) }

// Get returns the file.
func (f InboxFiles) Get(name string) ([]byte, error) { return f.Store.Get(name, proto.MaxSealed) }
