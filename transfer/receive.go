package transfer

import (
	"context"
	"errors"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// A Receiver receives streamed bodies: those of tasks for the inbox, those of results for
// the outbox. It takes no bytes for an envelope that would be refused.
type Receiver struct{ *Transfers }

// Envelopes checks the envelopes of peers.
type Envelopes interface {
	// Task opens a task that a peer sends.
	Task(from proto.PeerID, m *proto.Message) (inbox.Arrival, error)
	// Result opens the result of a task whose home is this node.
	Result(from proto.PeerID, m *proto.Message) (*proto.Header, error)
	// NoteRefusal takes note of a peer that was refused, perhaps for lack of room.
	NoteRefusal(from proto.PeerID, code proto.Code)
}

// Offer checks the envelope that the body belongs to before it takes a byte.
func (r Receiver) Offer(ctx context.Context, from proto.PeerID, o *proto.Offer, object *bodies.Manifest) (transport.BodySink, *proto.OfferReply) {
	sink, reply, err := r.offer(ctx, from, o, object)
	if err != nil {
		code := proto.CodeBadForm
		if ce, ok := errors.AsType[*identity.CheckError](err); ok {
			code = ce.Code
		}
		return nil, &proto.OfferReply{Code: code, Detail: proto.Clip(err.Error(), 256)}
	}
	if sink == nil {
		r.check.NoteRefusal(from, reply.GetCode())
		return nil, reply
	}
	return sink, reply
}

func (r Receiver) offer(ctx context.Context, from proto.PeerID, o *proto.Offer, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	env, err := proto.Encode(nil, o.GetEnvelope())
	if err != nil {
		return nil, nil, err
	}
	m := &proto.Message{Type: o.GetType(), Payload: env, Signature: o.GetEnvelope().GetSignature()}
	switch o.GetType() {
	case proto.TypeData:
		a, err := r.check.Task(from, m)
		if err != nil {
			return nil, nil, err
		}
		v := r.inbox.Preview(&a)
		if a.Content.GetQueue() != "" && v.Code == proto.CodeNeedBody {
			return r.admit(&a, object)
		}
		return r.receive(v.Code, v.Detail, &a.Header, object, bodies.Terms{})
	case proto.TypeResult:
		h, err := r.check.Result(from, m)
		if err != nil {
			return nil, nil, err
		}
		code, detail, rec := r.WantsResult(from, h)
		ended := code == proto.CodeStale && rec != nil
		if ended || code == proto.CodeNeedBody && rec.GetOptions().Exceeded(proto.ResultSize(h, nil)) {
			return nil, &proto.OfferReply{}, nil // the result itself is answered, without its body
		}
		// A result is accepted even when there is no space for new work (I13).
		sink, reply, err := r.receive(code, detail, h, object, bodies.Terms{Essential: true})
		if reply != nil {
			reply.State = rec.GetState()
		}
		return sink, reply, err
	case proto.TypeGrant:
		return r.offerGrant(from, o.GetEnvelope(), object)
	case proto.TypeEnded:
		return r.offerResult(ctx, from, m, object)
	case proto.TypeHandoff:
		return r.offerHandoff(ctx, from, o.GetEnvelope(), object)
	case proto.TypeBundle, proto.TypeDeliver:
		return r.offerMail(ctx, from, o, object)
	}
	return nil, nil, identity.BadForm("a message of type %s has no body", o.GetType())
}

// offerMail accepts the body of a mail that only lacks it.
func (r Receiver) offerMail(ctx context.Context, from proto.PeerID, o *proto.Offer, object *bodies.Manifest) (*incomingBody, *proto.OfferReply, error) {
	m, l, err := o.Mail()
	if err != nil {
		return nil, nil, err
	}
	code, detail := r.mail.Wants(ctx, from, m, &l)
	h := l.BodyHeader(object.Size)
	h.Origin = from
	sink, reply, err := r.receive(code, detail, &h, object, bodies.Terms{})
	if sink != nil {
		sink.onEnd = func(whole bool) {
			if whole {
				r.mail.Received(from, m, proto.CodeOK, "")
			}
		}
	} else if err == nil {
		r.mail.Received(from, m, reply.GetCode(), reply.GetDetail())
	}
	return sink, reply, err
}

// WantsResult returns NEED_BODY while the home still waits for this result, and the
// record of the task; nil if the task is unknown.
func (t *Transfers) WantsResult(from proto.PeerID, h *proto.Header) (proto.Code, string, *proto.Record) {
	rec, err := t.outbox.Get(h.ID)
	_, queued := proto.QueueOf(rec.GetTarget())
	switch {
	case errors.Is(err, outbox.ErrNotFound):
		return proto.CodeStale, "the task is unknown here", nil
	case err != nil:
		return proto.CodeInternal, "the task could not be read", nil
	case !outbox.TakesResult(rec) || rec.Seq() != h.Seq:
		return proto.CodeStale, "the result is not awaited", rec
	case string(rec.GetPeer()) == string(from[:]) || t.queues.WasHomeOf(rec.GetTarget(), from):
	case queued:
		return proto.CodeBusy, "the sender is not yet known here as a home of the task's queue", rec
	default:
		return proto.CodeStale, "the result is not awaited", rec
	}
	return proto.CodeNeedBody, "", rec
}

// receive prepares to receive an object if code says that only the body is missing. The
// origin and the end of the header complete the terms.
func (t *Transfers) receive(code proto.Code, detail string, h *proto.Header, object *bodies.Manifest, terms bodies.Terms) (*incomingBody, *proto.OfferReply, error) {
	switch {
	case !h.Streamed():
		return nil, nil, identity.BadForm("the envelope has no streamed body")
	case code == proto.CodeOK:
		return nil, &proto.OfferReply{}, nil
	case code != proto.CodeNeedBody:
		return nil, &proto.OfferReply{Code: code, Detail: detail}, nil
	}
	terms.Origin, terms.NotAfter = h.Origin, t.Clock.Now().UnixMilli()+h.NotAfter-h.Created // its origin's clock may differ
	in, err := t.Bodies.Receive(*object, terms)
	switch {
	case errors.Is(err, bodies.ErrExists):
		return nil, &proto.OfferReply{}, nil
	case err == nil && !terms.Essential && t.Full():
		err = errors.Join(bodies.ErrFull, in.Close())
	case errors.Is(err, bodies.ErrBusy):
		return nil, &proto.OfferReply{Code: proto.CodeBusy, Detail: "the body is being received already"}, nil
	}
	if full := noSpace(err); full != nil {
		return nil, &proto.OfferReply{Code: full.Code, Detail: full.Detail}, nil
	}
	if err != nil {
		t.Logger.Error("a body cannot be received", "body", object.Name().String(), "err", err)
		return nil, &proto.OfferReply{Code: proto.CodeInternal, Detail: "the body cannot be stored"}, nil
	}
	return &incomingBody{Incoming: in}, &proto.OfferReply{Have: in.Have()}, nil
}

// noSpace returns the refusal of a body for which there is no space, nil for another
// error.
func noSpace(err error) *transport.CodeError {
	switch {
	case errors.Is(err, bodies.ErrShare):
		return &transport.CodeError{Code: proto.CodeFull, Detail: "you have used your share of the space for bodies; the rest is for others"}
	case errors.Is(err, bodies.ErrFull), errors.Is(err, bodies.ErrTooLarge):
		return &transport.CodeError{Code: proto.CodeFull, Detail: "no space for the body"}
	}
	return nil
}

// An incomingBody is an object being received for a message.
type incomingBody struct {
	*bodies.Incoming
	onProgress func() error // called before bytes are written; may be nil
	onEnd      func(whole bool)
}

// Put adds a chunk. Without space for it the task waits, as it does when the inbox is
// full.
func (in *incomingBody) Put(i int, chunk, path []byte) error {
	if in.onProgress != nil {
		if err := in.onProgress(); err != nil {
			return err
		}
	}
	err := in.Incoming.Put(i, chunk, path)
	if full := noSpace(err); full != nil {
		return full
	}
	return err
}

// End completes the object, or leaves the part for the next attempt.
func (in *incomingBody) End(whole bool) error {
	end := in.Close
	if whole {
		end = in.Commit
	}
	err := end()
	if in.onEnd != nil {
		in.onEnd(whole && err == nil)
	}
	return err
}
