package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"

	"github.com/balefire/balefire/wire"
)

// SendMail sends a mail: when it returns, the mail is on the node's disk. A mail without a
// dedupe key gets a random one, so that it is sent once if its connection breaks and the
// request is repeated.
func (c *Client) SendMail(ctx context.Context, m wire.Mail) (wire.SentMail, error) {
	setDedupe(&m)
	r, err := document(http.MethodPost, "/v1/mail", m)
	if err != nil {
		return wire.SentMail{}, err
	}
	r.idempotent = true
	return fetch[wire.SentMail](ctx, c, r)
}

// SendMails sends many mails in as many batches as needed. Each has its own result or error.
// It sets a random dedupe key in each of mails that has none: a second call with the same
// mails, after an answer that was lost, sends each once.
func (c *Client) SendMails(ctx context.Context, mails []wire.Mail) ([]wire.SentMail, []error) {
	for i := range mails {
		setDedupe(&mails[i])
	}
	out, errs := make([]wire.SentMail, len(mails)), make([]error, len(mails))
	for at := 0; at < len(mails); {
		doc, n, err := lines(mails[at:], wire.MaxMailBatch, nil)
		if err == nil {
			err = c.sendBatch(ctx, doc, out[at:at+n], errs[at:at+n])
		}
		for i := range n {
			if err != nil {
				errs[at+i] = err
			}
		}
		at += n
	}
	return out, errs
}

func setDedupe(m *wire.Mail) {
	if m.Dedupe == "" {
		m.Dedupe = rand.Text()
	}
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

// Mail returns the mail with this id, or with the only id that begins with it, if it waits
// on the node, also for another one, or is a dead letter there.
func (c *Client) Mail(ctx context.Context, id string) (wire.BoxedMail, error) {
	return get[wire.BoxedMail](ctx, c, "/v1/mail/"+escape(id), nil)
}
