package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/wire"
)

// The names of blobs: a node may be both ends of a task, so each use has its own.
func bodyBlob(id proto.TaskID) string     { return "out-" + id.String() }        // sealed, of a task made here
func outcomeBlob(id proto.TaskID) string  { return "res-" + id.String() }        // sealed, of a result made here
func resultBlob(id proto.TaskID) string   { return "got-" + id.String() }        // plain, of a received result
func arrivingBlob(id proto.TaskID) string { return "new-" + id.String() }        // sealed, of a result being received
func grantedBlob(id proto.TaskID) string  { return grantedPrefix + id.String() } // sealed, of a task that another home granted to this node

// leasedBlob is the sealed result of one run of a queued task, at its owner and at its
// home.
func leasedBlob(id proto.TaskID, key []byte) string {
	sum := sha256.Sum256(append([]byte("balefire/v1/result of a lease\x00"), key...))
	return leasedPrefix + id.String() + "-" + hex.EncodeToString(sum[:8])
}

const (
	grantedPrefix = "run-"
	leasedPrefix  = "end-"
)

// placeBody puts a request's body into the content if it is small, otherwise sealed
// into a blob. It returns the content key of what it sealed.
func (n *Node) placeBody(ctx context.Context, d *outbox.Draft, c *proto.Content, r *wire.Request) (*[32]byte, error) {
	body := r.Body
	if r.Stream != nil {
		head, more, err := readHead(r.Stream)
		if err != nil {
			return nil, fmt.Errorf("read the body: %w", err)
		}
		if more != nil {
			return n.sealStream(ctx, d, c, more)
		}
		body = head
	}
	if len(body) > proto.MaxInlineBody {
		return n.sealStream(ctx, d, c, bytes.NewReader(body))
	}
	sum := sha256.Sum256(body)
	c.Body, c.BodySize, c.BodyDigest = body, uint64(len(body)), sum[:]
	d.Record.BodySize = c.BodySize
	return nil, nil
}

// readHead reads a body that may be small. If it is not, more is the whole stream.
func readHead(r io.Reader) (head []byte, more io.Reader, err error) {
	head, err = io.ReadAll(io.LimitReader(r, proto.MaxInlineBody+1))
	if err != nil || len(head) <= proto.MaxInlineBody {
		return head, nil, err
	}
	return nil, io.MultiReader(bytes.NewReader(head), r), nil
}

// sealStream seals a body of any size into a blob, chunk by chunk.
func (n *Node) sealStream(ctx context.Context, d *outbox.Draft, c *proto.Content, r io.Reader) (*[32]byte, error) {
	var key [32]byte
	rand.Read(key[:])
	suite := n.suiteOf(d.Header.Target)
	name := bodyBlob(d.Header.ID)
	size, sum, err := n.sealInto(ctx, n.storage.Blobs, name, key, suite, proto.WhatTask, r)
	if err != nil {
		return nil, n.bodyError(err)
	}
	c.Body, c.BodySize, c.BodyDigest = nil, uint64(size), sum
	d.Record.BodyBlob, d.Record.BodySize = name, c.BodySize
	d.Header.SetStream(uint64(identity.SealedSize(size)), proto.ChunkSize)
	return &key, nil
}

// sealInto seals r into the blob called name and returns the plain size and digest.
// The blob is durable when the error is nil.
func (n *Node) sealInto(ctx context.Context, dir *blob.Dir, name string, key [32]byte, suite, what byte, r io.Reader) (size int64, sum []byte, err error) {
	sealer, err := identity.NewStreamSealer(key, suite, what)
	if err != nil {
		return 0, nil, err
	}
	w, err := dir.Create(name)
	if err != nil {
		return 0, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Abort())
		}
	}()
	digest := sha256.New()
	in := newChunker(io.TeeReader(r, digest))
	sealed := make([]byte, 0, identity.SealedChunk)
	for i := uint64(0); ; i++ {
		plain, last, err := in.next()
		if err == nil {
			sealed, err = sealer.SealChunk(sealed[:0], i, last, plain)
		}
		if err == nil {
			_, err = w.Write(sealed)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, nil, err
		}
		size += int64(len(plain))
		if last {
			return size, digest.Sum(nil), w.Commit()
		}
	}
}

// bodyError explains why a body could not be stored.
func (n *Node) bodyError(err error) error {
	switch {
	case errors.Is(err, blob.ErrFull):
		return fmt.Errorf("%w: no space for the body: %w", wire.ErrFull, err)
	case errors.Is(err, blob.ErrTooLarge):
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return fmt.Errorf("store the body: %w", err)
}

// offload moves a sealed body that is too large for a record into a file, which is
// durable before the record.
func (n *Node) offload(d *outbox.Draft) error {
	if len(d.Envelope.Body) <= maxSealedRecord {
		return nil
	}
	if d.Header.Streamed() { // the body is a file already
		if len(d.Envelope.Body) > inbox.MaxStreamContent {
			return fmt.Errorf("%w: a task with a body of more than %d bytes may have at most %d bytes beside it: send long arguments in the body", wire.ErrInvalid, proto.MaxInlineBody, inbox.MaxStreamContent)
		}
		return nil
	}
	name, dir := bodyBlob(d.Header.ID), n.storage.Blobs
	if d.Header.What == proto.WhatResult {
		name, dir = outcomeBlob(d.Header.ID), n.storage.Blobs.Essential()
	}
	if err := dir.Put(name, d.Envelope.Body); err != nil {
		return n.bodyError(err)
	}
	d.Record.BodyBlob, d.Envelope.Body = name, nil
	return nil
}

// maxSealedRecord is the largest sealed body that stays in its record.
const maxSealedRecord = proto.MaxInlineRecord + 1<<10

// dropBody removes the file of a draft that was not written. Once the store has failed
// nobody knows whether it was: the sweep of the next start decides.
func (n *Node) dropBody(d *outbox.Draft) {
	if d.Record.GetBodyBlob() == "" || n.storage.Store.Err() != nil || strings.HasPrefix(d.Record.GetBodyBlob(), leasedPrefix) {
		return // the result of a lease is sent again
	}
	if err := n.storage.Blobs.Delete(d.Record.GetBodyBlob()); err != nil {
		n.log.Warn("an unneeded body could not be removed", "blob", d.Record.GetBodyBlob(), "err", err)
	}
}

// suiteOf returns the suite that envelopes for a peer are sealed with.
func (n *Node) suiteOf(p proto.PeerID) byte {
	k, _ := n.book.KeyRecord(p)
	return k.Suite
}

// outboxBodies gives the outbox the bodies that are stored beside its records.
type outboxBodies struct{ node *Node }

// Load returns a sealed body that fits into a frame.
func (o outboxBodies) Load(name string) ([]byte, error) { return readBlob(o.node.storage.Blobs, name) }

// Send streams a sealed body and returns once it is durable at the peer.
func (o outboxBodies) Send(ctx context.Context, to proto.PeerID, offer *proto.Offer, name string) error {
	b, err := o.node.storage.Blobs.Open(name)
	if err != nil {
		return err
	}
	defer b.Close()
	if to == o.node.keys.Peer() {
		return o.node.copyBody(ctx, offer, b)
	}
	return o.node.net.SendBody(ctx, to, offer, b, b.Size())
}

func readBlob(dir *blob.Dir, name string) ([]byte, error) {
	b, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if b.Size() > proto.MaxSealed {
		return nil, fmt.Errorf("blob %s has %d bytes, a frame holds %d", name, b.Size(), proto.MaxSealed)
	}
	return io.ReadAll(b)
}

// unseal writes the plain body of a result into its blob and checks it against the
// signed digest.
func (n *Node) unseal(ctx context.Context, in *outbox.ResultIn, sealed string, opened identity.Verified) (err error) {
	key, suite := opened.Key, opened.Header.Suite
	if k := in.Outcome.GetBodyKey(); len(k) == len(key) { // as the owner sealed it
		key, suite = [32]byte(k), byte(in.Outcome.GetBodySuite())
	}
	r, err := openSealed(n.storage.Blobs, sealed, key, suite, proto.WhatResult)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := n.storage.Blobs.Essential().Create(in.Blob)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Abort())
		}
	}()
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(w, sum), contextReader{ctx, r})
	if err != nil {
		return err
	}
	if uint64(size) != in.Outcome.GetBodySize() || string(sum.Sum(nil)) != string(in.Outcome.GetBodyDigest()) {
		return errForgedBody
	}
	return w.Commit()
}

// removeSealed removes a sealed body that was opened or is useless. What it cannot
// remove is swept later.
func (n *Node) removeSealed(name string) {
	if err := n.storage.Blobs.Delete(name); err != nil && !errors.Is(err, blob.ErrNotFound) {
		n.log.Warn("an opened body could not be removed", "blob", name, "err", err)
	}
}

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

// A resultBody is a result to be read and closed.
type resultBody struct {
	io.Reader
	close func() error
}

// Close closes the file of the result, if it has one.
func (b resultBody) Close() error {
	if b.close == nil {
		return nil
	}
	return b.close()
}

func fillRandom(b []byte) { rand.Read(b) }
