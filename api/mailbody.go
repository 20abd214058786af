package api

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/wire"
)

const octetStream = "application/octet-stream"

// rawMail parses the fields of a mail from the query: its body is still to come.
func rawMail(r *http.Request) (wire.Mail, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return wire.Mail{}, malformed("read the query: %v", err)
	}
	if q.Get("to") == "" {
		return wire.Mail{}, problem(wire.CodeInvalid, "no to in the query. A mail in JSON needs the header Content-Type: application/json; with any other type the content is the mail's body, and to is in the query")
	}
	m, err := wire.MailOfQuery(q)
	if t := r.Header.Get("Content-Type"); t != octetStream { // which says nothing
		m.ContentType = cmp.Or(m.ContentType, t)
	}
	m.Stream = r.Body
	return m, err
}

// A bodyResponse is the body of a mail, byte for byte.
type bodyResponse struct {
	Type   string `header:"Content-Type"`
	Length int64  `header:"Content-Length"`
	ETag   string `header:"ETag" doc:"the digest of a body above 256 KiB, algorithm:hex"`
	ID     string `header:"Balefire-Mail-Id"`
	Body   func(huma.Context)
}

// bodyOp completes the description of a route of the body of a mail.
func (s *Server) bodyOp(id string, o huma.Operation) huma.Operation {
	o.OperationID = id
	o.Description = "Of any size. A response that ends early was damaged on the disk: use no byte of it."
	o.Responses = answers[string](s, "200", "The body, byte for byte, in its own content type")
	o.Responses["200"].Content = content(&huma.Schema{Type: "string", Format: "binary"}, "*/*")
	return o
}

// routeMailBodies adds the routes that read bodies.
func (s *Server) routeMailBodies() {
	register(s, s.bodyOp("getMailBody", op("GET", "/v1/mail/{id}/body", "getMailBody", "mail", "Read the body of a mail that waits on this node or is a dead letter there")), func(ctx context.Context, in *ByID) (*bodyResponse, error) {
		return s.mailBody(s.mail.Body(ctx, in.ID))
	})
	type leaseOf struct {
		Lease string `query:"lease" required:"true" maxLength:"64" doc:"of a delivery"`
	}
	type ofMailbox struct {
		ByMailbox
		leaseOf
	}
	register(s, s.bodyOp("getMailboxBody", ofBox.op("GET", "body", "Read the body of leased mail")), func(ctx context.Context, in *ofMailbox) (*bodyResponse, error) {
		return s.mailBody(s.mail.DeliveredBody(ctx, in.Box, "", in.Lease))
	})
	type ofSubscription struct {
		BySubscription
		leaseOf
	}
	register(s, s.bodyOp("getSubscriptionBody", ofSub.op("GET", "body", "Read the body of leased mail")), func(ctx context.Context, in *ofSubscription) (*bodyResponse, error) {
		return s.mailBody(s.mail.DeliveredBody(ctx, in.name(), in.Subscription, in.Lease))
	})
}

func (s *Server) mailBody(body io.ReadCloser, m wire.ReceivedMail, err error) (*bodyResponse, error) {
	if err != nil {
		return nil, err
	}
	out := &bodyResponse{Type: cmp.Or(m.ContentType, octetStream), Length: m.Size, ID: m.ID}
	if m.Digest != "" {
		out.ETag = `"` + m.Digest + `"`
	}
	out.Body = func(c huma.Context) {
		defer body.Close()
		n, err := io.Copy(c.BodyWriter(), body)
		if err != nil || n != m.Size {
			s.cfg.Logger.Warn("a body of a mail was not sent completely", "mail", m.ID, "bytes", n, "of", m.Size, "err", err)
			panic(http.ErrAbortHandler) // the client must not mistake a part for the whole
		}
	}
	return out, nil
}
