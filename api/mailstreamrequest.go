package api

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A streamReply is what became of a request.
type streamReply struct {
	request wire.MailReply // with its reply, unless that is in letter
	letter  mail.Delivery  // in frames
}

// request sends a request, and answers with its reply, or without one at the end of its wait.
// Other requests go on meanwhile.
func (m *mailStream) request(ctx context.Context, q *streamRequest) error {
	if !m.requests.TryAcquire(1) {
		return notAllowed("more than %d requests that wait for their replies", wire.MaxMailRequests)
	}
	ref, ask := q.ref, q.ask // q belongs to the caller, who uses it again
	m.work.Go(func() {
		a := streamAnswer{op: wire.OpReplied, ref: ref}
		a.reply, a.err = ask(ctx, m.boxes)
		m.requests.Release(1)
		if ctx.Err() == nil {
			m.out.add(m.form, &a)
		}
	})
	return nil
}

// askDocument returns what sends the request of a document.
func askDocument(doc json.RawMessage) func(context.Context, *mailbox.Boxes) (streamReply, error) {
	return func(ctx context.Context, b *mailbox.Boxes) (r streamReply, err error) {
		var m newMailRequest
		if err := m.form().decode(doc); err != nil {
			return r, err
		}
		r.request, err = b.Request(ctx, m.MailRequest)
		return r, err
	}
}

// askFrame returns what sends the request of a frame.
func askFrame(f wire.FramedRequest) func(context.Context, *mailbox.Boxes) (streamReply, error) {
	x := mailbox.Letter{To: bytes.Clone(f.To), Letter: bytes.Clone(f.Letter)}
	return func(ctx context.Context, b *mailbox.Boxes) (r streamReply, err error) {
		r.request.SentMail, r.letter, err = b.RequestLetter(ctx, x, f.ReplyFrom, time.Duration(f.Ms)*time.Millisecond)
		return r, err
	}
}

// framed returns the answer to a request in frames.
func (r *streamReply) framed(err error) *wire.FramedReply {
	out := &wire.FramedReply{Known: r.request.Known}
	if id, bad := proto.ParseMailID(r.request.ID); bad == nil {
		out.ID = id
	}
	if out.Code, out.Detail = reasonOf(err); err == nil {
		out.From, out.Letter = r.letter.From, r.letter.Letter
	}
	return out
}
