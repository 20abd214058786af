package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A newMail is a mail in the form of the API.
type newMail struct {
	wire.Mail
	Text string `json:"text,omitempty" doc:"the body as plain text"`
}

var mailFields = fieldsOf[newMail]()

func (m *newMail) form() form { return form{"mail", mailFields, m, &m.Body, &m.ContentType, &m.Text} }

// maxMailDocument is the size limit of a mail in JSON: its body is a third longer in base64,
// and there are other fields.
const maxMailDocument = proto.MaxInlineBody/3*4 + smallDocument

// largeMailFix is what to do about a mail that is too large.
const largeMailFix = "send a task with the body, or a mail that says where it is"

// routeMail adds the routes that send mail and look at one.
func (s *Server) routeMail() {
	s.mux.HandleFunc("POST /v1/mail", s.sendMail)
	s.mux.HandleFunc("POST /v1/mail/batch", s.sendMails)
	s.mux.HandleFunc("GET /v1/mail/batch", postOnly)
	one := op("POST", "/v1/mail", "sendMail", "mail", "Send a mail to a mailbox or a topic")
	one.Description = "The response means that the mail is on disk, unless it was sent as relaxed."
	one.Parameters = []*huma.Param{
		{Name: "Idempotency-Key", In: "header", Description: "the dedupe key: same key, same mail", Schema: &huma.Schema{Type: "string"}},
		{Name: "Traceparent", In: "header", Description: "W3C trace context of the mail; ignored if it is not valid", Schema: &huma.Schema{Type: "string"}},
	}
	one.RequestBody = &huma.RequestBody{Required: true, Content: content(schema[newMail](s), jsonType)}
	one.RequestBody.Content[jsonType].Example = json.RawMessage(`{"to": "agent:ceo@laptop", "class": "high", "key": "order-7", "dedupe": "invoice-1", "text": "hello"}`)
	one.Responses = answers[wire.SentMail](s, "202", "The mail is on disk; Location is its URL while it waits")
	s.api.OpenAPI().AddOperation(&one)

	many := op("POST", "/v1/mail/batch", "sendMails", "mail", "Send many mails")
	many.Description = fmt.Sprintf("At most %d mails and %d MiB. An invalid mail does not affect the others: each has its own status. Mails for one box are sent in order.", wire.MaxMailBatch, wire.MaxBatchBytes>>20)
	many.RequestBody = &huma.RequestBody{Required: true, Content: content(&huma.Schema{Type: "array", Items: schema[newMail](s)}, jsonType)}
	many.RequestBody.Content[ndjsonType] = &huma.MediaType{Schema: schema[newMail](s)}
	many.Responses = answers[wire.MailBatch](s, "200", "The result for each mail")
	s.api.OpenAPI().AddOperation(&many)

	out := op("GET", "/v1/mail/outgoing", "listOutgoing", "mail", "List what waits here for boxes on other nodes")
	route(s, out, func(ctx context.Context, _ *struct{}) (wire.Page[wire.MailSpool], error) {
		all, err := s.node.Mail.Outgoing(ctx)
		return list(all), err
	})
	look := op("GET", "/v1/mail/{id}", "getMail", "mail", "Show a mail that waits on this node, also for another one, or is a dead letter there")
	look.Description = "This changes nothing. It reads the mail of this node until it has found this one."
	route(s, look, func(ctx context.Context, in *ByID) (wire.BoxedMail, error) {
		return s.node.Mail.Mail(ctx, in.ID)
	})
}

// decodeMail decodes one mail strictly.
func decodeMail(b []byte) (wire.Mail, error) {
	var m newMail
	if err := m.form().decode(b); err != nil {
		return wire.Mail{}, err
	}
	return m.Mail, nil
}

func (s *Server) sendMail(w http.ResponseWriter, r *http.Request) {
	m, err := readMail(w, r)
	if err != nil {
		writeProblem(w, err)
		return
	}
	sent, errs := s.node.Mail.Send(r.Context(), []wire.Mail{m})
	if errs[0] != nil {
		writeProblem(w, errs[0])
		return
	}
	w.Header().Set("Location", "/v1/mail/"+sent[0].ID)
	writeJSON(w, http.StatusAccepted, sent[0])
}

// readMail reads the mail of a request.
func readMail(w http.ResponseWriter, r *http.Request) (m wire.Mail, err error) {
	if mediaType(r) != jsonType {
		return m, problem(wire.CodeType, "content type %.80q", r.Header.Get("Content-Type"))
	}
	b, err := readForm(w, r, "mail", maxMailDocument)
	if err != nil {
		p := ProblemOf(err)
		if p.Code == wire.CodeTooLarge {
			p.Fix = largeMailFix
		}
		return m, p
	}
	if m, err = decodeMail(b); err != nil {
		return m, err
	}
	trace := m.Trace
	if err := headers(r.Header, "dedupe", &m.Dedupe, &m.Trace); err != nil {
		return m, err
	}
	if trace == "" && !proto.ValidTraceparent([]byte(m.Trace)) {
		m.Trace = ""
	}
	return m, nil
}

// sendMails sends many mails: a JSON array, or one mail per line. An invalid mail does not
// affect the others.
func (s *Server) sendMails(w http.ResponseWriter, r *http.Request) {
	parts, err := readBatch(w, r, "mail", "dedupe", wire.MaxMailBatch)
	if err != nil {
		writeProblem(w, err)
		return
	}
	out := wire.MailBatch{Items: make([]wire.MailBatchItem, len(parts))}
	fail := func(i int, err error) {
		p := ProblemOf(err)
		out.Items[i] = wire.MailBatchItem{Status: p.Status, Problem: p}
	}
	mails, at := decodeParts(parts, decodeMail, fail)
	sent, errs := s.node.Mail.Send(r.Context(), mails)
	for j, i := range at {
		if errs[j] != nil {
			fail(i, errs[j])
			continue
		}
		out.Items[i] = wire.MailBatchItem{Status: http.StatusAccepted, Mail: &sent[j]}
		out.Accepted++
	}
	out.Failed = len(parts) - out.Accepted
	writeJSON(w, http.StatusOK, out)
}
