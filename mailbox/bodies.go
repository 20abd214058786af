package mailbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A body above [proto.MaxInlineBody] is an object of the store of bodies. It is durable before the
// letter that names it, here and at the home of the box:
//
//	Send ─▶ Seal, fsync ─▶ letter, fsync ─▶ answer
//	         BUNDLE ─▶ home: NEED_BODY ─▶ OFFER, chunks, fsync ─▶ BUNDLE: taken
//
// It stays as long as a mail that waits, is kept or is a dead letter names it: see [Boxes.Objects].

// A BodySender sends bodies to other nodes.
type BodySender interface {
	// Send returns nil once the object is durable at the peer. A refusal is a
	// [*transport.CodeError].
	Send(ctx context.Context, to proto.PeerID, offer *proto.Offer, name string) error
}

// letterBodies stores and opens the large bodies of letters, and sends them to other nodes. It
// keeps nothing: the store counts which are pinned.
type letterBodies struct {
	store  *bodies.Store
	sender BodySender
	most   int64 // sealed bytes of a body
	suite  byte  // how they are sealed
}

// admit decides about the body of a letter that its box takes. One that is here stays until
// the letter is on disk.
func (b *letterBodies) admit(to string, l *proto.Letter) (proto.Code, string) {
	switch {
	case l.Object.IsZero():
		return proto.CodeOK, ""
	case wire.IsReplyBox(to):
		return proto.CodeTooLarge, largeReply
	}
	return b.stored(l)
}

// stored returns CodeOK for a letter whose large body is here, where it stays for a while.
func (b *letterBodies) stored(l *proto.Letter) (proto.Code, string) {
	name := l.Object.File()
	switch {
	case proto.SealedSize(int64(l.Object.Size)) > b.most:
		return proto.CodeTooLarge, fmt.Sprintf("its body of %d bytes: this node takes at most %d", l.Object.Size, b.most)
	case !b.store.Pin(name):
		return proto.CodeNeedBody, fmt.Sprintf("its body of %d bytes is not there yet", l.Object.Size)
	}
	b.store.Hold(name)
	return proto.CodeOK, ""
}

// largeReply is why a reply has no large body: its requester is given it as it is.
var largeReply = fmt.Sprintf("a reply to a request has at most %d bytes: send a mail to a mailbox", proto.MaxInlineBody)

// seal stores a body, durably, and pins it.
func (b *letterBodies) seal(ctx context.Context, r io.Reader) (o proto.LetterObject, err error) {
	ref, _, err := b.store.Seal(ctx, r, bodies.SealOptions{Suite: b.suite})
	switch {
	case errors.Is(err, bodies.ErrFull):
		return o, fmt.Errorf("%w: no space for the body: %w", wire.ErrFull, err)
	case errors.Is(err, bodies.ErrTooLarge):
		return o, fmt.Errorf("%w: %w", wire.ErrTooLarge, err)
	case err != nil:
		return o, fmt.Errorf("store the body: %w", err)
	case proto.SealedSize(ref.Size) > b.most:
		err = fmt.Errorf("%w: %w: %d bytes, at most %d", wire.ErrTooLarge, bodies.ErrTooLarge, ref.Size, b.most)
	}
	o = proto.LetterObject{Name: ref.Name, Size: uint64(ref.Size), SHA256: ref.Digest, Key: ref.Key, Suite: ref.Suite, Packed: ref.Packed}
	return o, err
}

// unpin no longer pins the body of a mail whose send ended in err. If that leaves open whether the
// mail was written, the body is kept for a while.
func (b *letterBodies) unpin(o proto.LetterObject, err error) {
	name := o.File()
	switch {
	case name == "":
	case errors.Is(err, store.ErrUnknown):
		b.store.Hold(name)
	case err != nil:
		b.store.Release(name)
		b.store.Drop(name)
	default:
		b.store.Release(name)
	}
}

// send sends a peer the body of a mail.
func (b *letterBodies) send(ctx context.Context, peer proto.PeerID, x *mail.MissingBody) error {
	l, err := proto.ParseLetter(x.Letter)
	if err != nil {
		return err
	}
	offer, err := proto.OfferedMail{Box: x.Box, Letter: x.Letter}.Offer()
	if err != nil {
		return err
	}
	err = b.sender.Send(ctx, peer, offer, l.Object.File())
	if refused, ok := errors.AsType[*transport.CodeError](err); ok {
		return &mail.RefusedError{Code: refused.Code, Detail: refused.Detail}
	}
	if isLost(err) {
		return fmt.Errorf("%w: %w", mail.ErrNoBody, err)
	}
	return err
}

// isLost reports whether a body cannot be read here, now or later.
func isLost(err error) bool {
	return errors.Is(err, bodies.ErrDamaged) || errors.Is(err, bodies.ErrNotFound) || errors.Is(err, bodies.ErrSealed)
}

// openChecked opens the body of a letter when all of it has been checked: no program gets a byte
// of any other. The error wraps [mail.ErrNoBody] if it can never be read.
func (b *letterBodies) openChecked(ctx context.Context, l *proto.Letter) (io.ReadCloser, error) {
	body, err := b.open(l)
	if err == nil && !l.Object.IsZero() {
		_, err = io.Copy(io.Discard, handler.ContextReader(ctx, body))
		if err = errors.Join(err, body.Close()); err == nil {
			body, err = b.open(l)
		}
	}
	if isLost(err) {
		err = fmt.Errorf("%w: %w", mail.ErrNoBody, err)
	}
	return body, err
}

// open opens the body of a letter.
func (b *letterBodies) open(l *proto.Letter) (io.ReadCloser, error) {
	if l.Object.IsZero() {
		return io.NopCloser(bytes.NewReader(l.Body)), nil
	}
	return b.store.OpenBody(l.Object.Body(), l.Object.Size, l.Object.SHA256[:])
}
