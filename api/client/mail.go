package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/wire"
)

// SendMail sends a mail: when it returns, the mail is on the node's disk. A mail without a
// dedupe key gets a number, so that it is sent once if its connection breaks and the request
// is repeated. A Stream of any size is sent as it is read, and not repeated.
func (c *Client) SendMail(ctx context.Context, m wire.Mail) (wire.SentMail, error) {
	p := c.producers.take()
	p.number(&m)
	r, err := mailCall(&m)
	if err != nil {
		return wire.SentMail{}, err
	}
	sent, err := fetch[wire.SentMail](ctx, c, r)
	if err == nil {
		c.producers.put(p)
	}
	return sent, err
}

// mailCall returns the request that sends m.
func mailCall(m *wire.Mail) (r call, err error) {
	if m.Stream == nil {
		r, err = document(http.MethodPost, "/v1/mail", m)
		r.idempotent = true
		return r, err
	}
	if len(m.Body) > 0 {
		return r, fmt.Errorf("%w: body and stream are both given: a mail has one body", wire.ErrInvalid)
	}
	q, err := m.Query()
	return call{method: http.MethodPost, path: "/v1/mail", query: q, body: m.Stream, contentType: "application/octet-stream", expect: true}, err
}

// noMailStream returns the error of a mail that cannot be in a document.
func noMailStream(m *wire.Mail) error {
	if m.Stream != nil {
		return fmt.Errorf("%w: a mail with a stream is sent alone: use SendMail", wire.ErrInvalid)
	}
	return nil
}

// MailBody opens the body, of any size, of a mail that waits on the node or is a dead letter
// there. The returned mail has only the id, and the size, digest and type of the body.
func (c *Client) MailBody(ctx context.Context, id string) (io.ReadCloser, wire.ReceivedMail, error) {
	return c.mailBody(ctx, call{method: http.MethodGet, path: "/v1/mail/" + escape(id) + "/body"})
}

// DeliveredBody is MailBody for a delivery of a mailbox, or of a subscription of a topic, which
// its lease names.
func (c *Client) DeliveredBody(ctx context.Context, box, sub, lease string) (io.ReadCloser, wire.ReceivedMail, error) {
	return c.mailBody(ctx, call{method: http.MethodGet, path: readPath(box, sub) + "/body", query: url.Values{"lease": {lease}}})
}

func (c *Client) mailBody(ctx context.Context, r call) (io.ReadCloser, wire.ReceivedMail, error) {
	res, err := c.do(ctx, r)
	if err != nil {
		return nil, wire.ReceivedMail{}, err
	}
	return res.Body, wire.ReceivedMail{
		ID: res.Header.Get("Balefire-Mail-Id"), Size: max(res.ContentLength, 0), Digest: strings.Trim(res.Header.Get("ETag"), `"`), ContentType: res.Header.Get("Content-Type"),
	}, nil
}

// Request sends a mail and waits for the reply, as long as r.Wait says: without a reply in the
// answer, go on with [Client.Reply]. The mail is sent once, also if a connection breaks and the
// request is repeated. The error wraps [wire.ErrBounced] if the mail was not delivered.
func (c *Client) Request(ctx context.Context, r wire.MailRequest) (wire.MailReply, error) {
	if err := noMailStream(&r.Mail); err != nil {
		return wire.MailReply{}, err
	}
	p := c.producers.take()
	p.number(&r.Mail)
	doc, err := document(http.MethodPost, "/v1/mail/request", r)
	if err != nil {
		return wire.MailReply{}, err
	}
	doc.idempotent = true
	out, err := fetch[wire.MailReply](ctx, c, doc)
	if err == nil {
		c.producers.put(p)
	}
	return out, err
}

// Reply waits for the reply to a request until ctx is done.
func (c *Client) Reply(ctx context.Context, id string) (wire.MailReply, error) {
	for {
		out, err := get[wire.MailReply](ctx, c, "/v1/mail/"+escape(id)+"/reply", url.Values{"wait": {waitStep.String()}})
		if err != nil || out.Reply != nil {
			return out, err
		}
	}
}

// NewReplyBox makes a box for the replies to the requests of this program.
func (c *Client) NewReplyBox(ctx context.Context, r wire.NewReplyBox) (wire.ReplyBox, error) {
	return post[wire.ReplyBox](ctx, c, "/v1/mail/reply-box", r)
}

// SendMails sends many mails in as many batches as needed. Each has its own result or error.
// It sets the number of each of mails that has no dedupe key: a second call with those that
// have an error, after an answer that was lost, sends each once. To send other mails from the
// same slice, clear their Producer, Number and ID: a number that was used is not sent again, and
// its answer is Known.
func (c *Client) SendMails(ctx context.Context, mails []wire.Mail) ([]wire.SentMail, []error) {
	out, errs := make([]wire.SentMail, len(mails)), make([]error, len(mails))
	p := c.producers.take()
	for at := 0; at < len(mails); {
		end := min(at+wire.MaxMailBatch, len(mails))
		for i := range mails[at:end] {
			p.number(&mails[at+i])
		}
		doc, n, err := lines(mails[at:end], wire.MaxMailBatch, noMailStream)
		if err == nil {
			err = c.sendBatch(ctx, doc, out[at:at+n], errs[at:at+n])
		}
		for i := range n {
			if err != nil {
				errs[at+i] = err
			}
			if errs[at+i] != nil {
				p = nil
			}
		}
		if at += n; p == nil {
			p = c.producers.take()
		}
	}
	c.producers.put(p)
	return out, errs
}

// producers are the names under which a client numbers its mails. One call has a name for
// itself, so that its numbers come in order; the name of a mail with an error is used no more,
// so that the node knows the number when it is sent again.
type producers struct {
	mu   sync.Mutex
	idle []*producer
}

type producer struct {
	id   string
	last uint64 // number
}

func (p *producers) take() *producer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		taken := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return taken
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return &producer{id: hex.EncodeToString(id[:])}
}

func (p *producers) put(back *producer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, back)
}

// number numbers a mail that has no dedupe key, and no number.
func (p *producer) number(m *wire.Mail) {
	if m.Dedupe != "" || m.Producer != "" {
		return
	}
	p.last++
	m.Producer, m.Number, m.ID = p.id, p.last, newMailID(time.Now())
}

// newMailID returns a UUIDv7 (RFC 9562).
func newMailID(now time.Time) string {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], uint64(now.UnixMilli())<<16)
	_, _ = rand.Read(id[6:]) // it never fails
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func (c *Client) sendBatch(ctx context.Context, doc []byte, out []wire.SentMail, errs []error) error {
	b, err := fetch[wire.MailBatch](ctx, c, call{
		method: http.MethodPost, path: "/v1/mail/batch", body: bytes.NewReader(doc), contentType: "application/x-ndjson", idempotent: true,
	})
	if err != nil {
		return err
	}
	if len(b.Items) != len(out) {
		return fmt.Errorf("the node answered for %d mails of %d", len(b.Items), len(out))
	}
	for i, item := range b.Items {
		switch {
		case item.Problem != nil:
			errs[i] = item.Problem
		case item.Mail != nil:
			out[i] = *item.Mail
		}
	}
	return nil
}

// Outgoing returns what waits on the node for boxes on other nodes.
func (c *Client) Outgoing(ctx context.Context) ([]wire.MailSpool, error) {
	p, err := get[wire.Page[wire.MailSpool]](ctx, c, "/v1/mail/outgoing", nil)
	return p.Items, err
}

// MailReceipts returns what the node of its box has signed about a mail that asked for a receipt; none:
// it asked for none, was not signed, or is on its way. For that it waits, at most ten minutes.
func (c *Client) MailReceipts(ctx context.Context, id string, wait time.Duration) ([]wire.MailReceipt, error) {
	p, err := get[wire.Page[wire.MailReceipt]](ctx, c, "/v1/mail/"+escape(id)+"/receipts", url.Values{"wait": {wait.String()}})
	return p.Items, err
}

// Mail returns the mail with this id, or with the only id that begins with it, if it waits
// on the node, also for another one, or is a dead letter there.
func (c *Client) Mail(ctx context.Context, id string) (wire.BoxedMail, error) {
	return get[wire.BoxedMail](ctx, c, "/v1/mail/"+escape(id), nil)
}
