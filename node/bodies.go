package node

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
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// placeBody puts a request's body into the content if it is small. Otherwise it becomes an
// object, which is pinned until finishSubmit.
func (n *Node) placeBody(ctx context.Context, d *outbox.Draft, c *proto.Content, r *repeated) error {
	if r.object != nil {
		return n.placeObject(d, c, r)
	}
	body := r.Body
	if r.Stream != nil {
		head, more, err := readHead(r.Stream)
		if err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if more != nil {
			return n.sealObject(ctx, d, c, more)
		}
		body = head
	}
	if len(body) > proto.MaxInlineBody {
		return n.sealObject(ctx, d, c, bytes.NewReader(body))
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
func (n *Node) sealObject(ctx context.Context, d *outbox.Draft, c *proto.Content, r io.Reader) error {
	ref, m, err := n.storage.Blobs.Seal(ctx, r, bodies.SealOptions{Suite: n.bodySuite(d.Header.Target)})
	if err != nil {
		return n.bodyError(err)
	}
	c.Body, c.BodySize, c.BodyDigest, c.Object = nil, uint64(ref.Size), ref.Digest[:], ref.Proto()
	d.Record.BodyBlob, d.Record.BodySize = ref.Name.String(), c.BodySize
	d.Header.SetObject(ref.Name, m.Size)
	return nil
}

// placeObject makes the object of an ended task that of its redrive too.
func (n *Node) placeObject(d *outbox.Draft, c *proto.Content, r *repeated) error {
	m, err := n.pinObject(r.object)
	if err != nil {
		return fmt.Errorf("%w: the body is no longer stored: submit it again: %w", wire.ErrRefused, err)
	}
	c.Body, c.BodySize, c.BodyDigest, c.Object = nil, r.objectSize, r.objectDigest, r.object
	d.Record.BodyBlob, d.Record.BodySize = m.Name().String(), c.BodySize
	d.Header.SetObject(m.Name(), m.Size)
	return nil
}

// pinObject pins the object of a reference and returns its manifest.
func (n *Node) pinObject(ref *proto.BodyRef) (m bodies.Manifest, err error) {
	if len(ref.GetName()) != 32 {
		return m, errMissingBody
	}
	name := fileOf(ref)
	if !n.storage.Blobs.Pin(name) {
		return m, errMissingBody
	}
	if m, err = n.storage.Blobs.Manifest(name); err != nil {
		n.storage.Blobs.Release(name)
	}
	return m, err
}

var errMissingBody = errors.New("the body is not here")

// fileOf returns the file of an object, empty if o is none.
func fileOf(o *proto.BodyRef) string {
	if len(o.GetName()) != 32 {
		return ""
	}
	return proto.ObjectFile([32]byte(o.GetName()))
}

// objectOf returns the file of the object that a header names, empty if it names none.
func objectOf(h *proto.Header) string {
	name, _, ok := h.Object()
	if !ok {
		return ""
	}
	return proto.ObjectFile(name)
}

// bodyError explains why a body could not be stored.
func (n *Node) bodyError(err error) error {
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
func (n *Node) offload(d *outbox.Draft) (err error) {
	if len(d.Envelope.Body) <= maxSealedRecord {
		return nil
	}
	if d.Header.Streamed() { // the body is a file already
		if len(d.Envelope.Body) > inbox.MaxStreamContent {
			return fmt.Errorf("%w: a task with a body of more than %d bytes may have at most %d bytes beside it: send long arguments in the body", wire.ErrInvalid, proto.MaxInlineBody, inbox.MaxStreamContent)
		}
		return nil
	}
	if d.Record.BodyBlob, err = n.storage.Blobs.Put(d.Envelope.Body, d.Header.What == proto.WhatResult); err != nil {
		d.Record.BodyBlob = ""
		return n.bodyError(err)
	}
	d.Envelope.Body = nil
	return nil
}

// maxSealedRecord is the largest sealed body that stays in its record.
const maxSealedRecord = proto.MaxInlineRecord + 1<<10

// releaseBody no longer pins the body of a draft, whose write ended in err. If that leaves
// open whether it was written, the body is kept for a while.
func (n *Node) releaseBody(name string, err error) {
	switch {
	case name == "":
	case errors.Is(err, store.ErrUnknown):
		n.storage.Blobs.Hold(name)
	case err != nil:
		n.storage.Blobs.Release(name)
		n.storage.Blobs.Drop(name)
	default:
		n.storage.Blobs.Release(name)
	}
}

// bodySuite returns how bodies for a peer are sealed.
func (n *Node) bodySuite(p proto.PeerID) byte {
	if k, _ := n.book.KeyRecord(p); k.Suite == identity.SuiteX25519ChaCha {
		return bodies.ChaCha
	}
	return bodies.AES
}

// outboxBodies gives the outbox the bodies that are stored beside its records.
type outboxBodies struct{ node *Node }

// Load returns a sealed body that fits into a frame.
func (o outboxBodies) Load(name string) ([]byte, error) {
	return o.node.storage.Blobs.Get(name, proto.MaxSealed)
}

// Send sends an object and returns once it is durable at the peer.
func (o outboxBodies) Send(ctx context.Context, to proto.PeerID, offer *proto.Offer, name string) error {
	src, err := o.node.storage.Blobs.Source(name)
	if err != nil {
		return err
	}
	defer src.Close()
	offer.Manifest = src.Manifest.Append(nil)
	if to != o.node.keys.Peer() {
		return o.node.net.SendBody(ctx, to, offer, src)
	}
	_, reply := bodyReceiver(o).Offer(ctx, to, offer, &src.Manifest) // it is here already
	if reply.GetCode() != proto.CodeOK {
		return &transport.CodeError{Code: reply.GetCode(), Detail: reply.GetDetail(), State: reply.GetState()}
	}
	return nil
}

// openObject returns the plain body that sealed content refers to.
func (n *Node) openObject(o *proto.BodyRef, size uint64, digest []byte) (io.ReadCloser, error) {
	ref, err := bodies.RefOf(o, size, digest)
	if err != nil {
		return nil, err
	}
	return n.storage.Blobs.Open(&ref)
}

// verifyObject reads the result that an outcome refers to, and checks it.
func (n *Node) verifyObject(ctx context.Context, o *proto.Outcome) error {
	r, err := n.openObject(o.GetObject(), o.GetBodySize(), o.GetBodyDigest())
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, contextReader{ctx, r})
	return err
}

// inboxBodies lets the inbox use the bodies of its tasks.
type inboxBodies struct {
	*bodies.Store
	node *Node
}

// Open reads the plain body.
func (b inboxBodies) Open(c *proto.Content) (io.ReadCloser, error) {
	return b.node.openObject(c.GetObject(), c.GetBodySize(), c.GetBodyDigest())
}

// inboxFiles stores what the inbox has that is too large for a record.
type inboxFiles struct{ *bodies.Store }

// Put makes the bytes durable and pins them.
func (f inboxFiles) Put(p []byte) (string, error) { return f.Store.Put(p, false) }

// Get returns the file.
func (f inboxFiles) Get(name string) ([]byte, error) { return f.Store.Get(name, proto.MaxSealed) }

// A contextReader stops reading when its context is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read reads until the context is done.
func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
