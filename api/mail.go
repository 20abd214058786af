package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

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
const largeMailFix = "send it with POST /v1/mail as a stream: any other Content-Type, with to and the other fields in the query"

// A newMailRequest is a request in the form of the API.
type newMailRequest struct {
	wire.MailRequest
	Text string `json:"text,omitempty" doc:"the body as plain text"`
}

var requestFields = fieldsOf[newMailRequest]()

func (m *newMailRequest) form() form {
	return form{"request", requestFields, m, &m.Body, &m.ContentType, &m.Text}
}

// routeMail adds the routes that send mail and look at one.
func (s *Server) routeMail() {
	s.mux.HandleFunc("POST /v1/mail", s.sendMail)
	s.mux.HandleFunc("POST /v1/mail/batch", s.sendMails)
	s.mux.HandleFunc("GET /v1/mail/batch", postOnly)
	one := op("POST", "/v1/mail", "sendMail", "mail", "Send a mail to a mailbox or a topic")
	one.Description = "The response means that the mail is on disk, unless it was sent as relaxed. A JSON document has all fields of the mail and no query. " +
		"With any other content type the content is the mail's body, of any size, and the fields are in the query."
	one.Parameters = []*huma.Param{
		{Name: "Idempotency-Key", In: "header", Description: "the dedupe key: same key, same mail", Schema: &huma.Schema{Type: "string"}},
		{Name: "Traceparent", In: "header", Description: "W3C trace context of the mail; ignored if it is not valid", Schema: &huma.Schema{Type: "string"}},
	}
	one.Parameters = append(one.Parameters, streamParams(new(wire.Mail).QueryFields())...)
	one.RequestBody = &huma.RequestBody{Required: true, Content: content(schema[newMail](s), jsonType)}
	one.RequestBody.Content["application/octet-stream"] = &huma.MediaType{Schema: &huma.Schema{Type: "string", Format: "binary"}}
	one.RequestBody.Content[jsonType].Example = json.RawMessage(`{"to": "agent:ceo@laptop", "class": "high", "key": "order-7", "dedupe": "invoice-1", "text": "hello"}`)
	one.Responses = answers[wire.SentMail](s, "202", "The mail is on disk; Location is its URL while it waits")
	s.api.OpenAPI().AddOperation(&one)

	many := op("POST", "/v1/mail/batch", "sendMails", "mail", "Send many mails")
	many.Description = fmt.Sprintf("At most %d mails and %d MiB. An invalid mail does not affect the others: each has its own status. Mails for one box are sent in order.", wire.MaxMailBatch, wire.MaxBatchBytes>>20)
	many.RequestBody = &huma.RequestBody{Required: true, Content: content(&huma.Schema{Type: "array", Items: schema[newMail](s)}, jsonType)}
	many.RequestBody.Content[ndjsonType] = &huma.MediaType{Schema: schema[newMail](s)}
	many.Responses = answers[wire.MailBatch](s, "200", "The result for each mail")
	s.api.OpenAPI().AddOperation(&many)

	s.routeRequests()
	s.routeMailBodies()

	out := op("GET", "/v1/mail/outgoing", "listOutgoing", "mail", "List what waits here for boxes on other nodes")
	route(s, out, func(ctx context.Context, _ *struct{}) (wire.Page[wire.MailSpool], error) {
		all, err := s.mail.Outgoing(ctx)
		return list(all), err
	})
	look := op("GET", "/v1/mail/{id}", "getMail", "mail", "Show a mail that waits on this node, also for another one, or is a dead letter there")
	look.Description = "This changes nothing. It reads the mail of this node until it has found this one."
	route(s, look, func(ctx context.Context, in *ByID) (wire.BoxedMail, error) {
		return s.mail.Mail(ctx, in.ID)
	})
	s.routeReceipts()
}

// routeReceipts adds the route of the receipts of mail.
func (s *Server) routeReceipts() {
	type waited struct {
		ByID
		Wait string `query:"wait" default:"0s" doc:"for the receipt, while the mail is on its way, at most 10m"`
	}
	look := op("GET", "/v1/mail/{id}/receipts", "getMailReceipts", "mail", "Show the receipt of a mail that asked for one")
	look.Description = "Of a mail for another node it is what that has signed when it had the mail, and is kept here for a month; of a mail in a box here this node signs it now. There is none of a mail that asked for none, is on its way, or was not signed. Each has its proof and the letter: whoever has them can verify them alone."
	route(s, look, func(ctx context.Context, in *waited) (wire.Page[wire.MailReceipt], error) {
		var wait wire.Wait
		if err := wait.UnmarshalText([]byte(in.Wait)); err != nil {
			return wire.Page[wire.MailReceipt]{}, problem(wire.CodeInvalid, "wait: %v", err)
		}
		waiting, cancel := stopContext(ctx, 2*maxWait) // the wait has its own limit
		defer cancel()
		all, err := s.mail.Receipts(waiting, in.ID, time.Duration(wait))
		if err != nil && errors.Is(context.Cause(waiting), wire.ErrDraining) {
			err = problem(wire.CodeDraining, "wait for a receipt: the node is stopping")
		}
		return list(all), err
	})
}

// routeRequests adds the routes that wait for replies.
func (s *Server) routeRequests() {
	s.mux.HandleFunc("POST /v1/mail/request", s.requestMail)
	s.mux.HandleFunc("GET /v1/mail/request", postOnly)
	s.mux.HandleFunc("GET /v1/mail/reply-box", postOnly)
	ask := op("POST", "/v1/mail/request", "requestMail", "mail", "Send a mail and wait for the reply")
	ask.Description = "The node makes a box for the reply, which the mail names in reply_to. The response comes with the reply, or without one at the end of the wait: ask again with GET /v1/mail/{id}/reply. It is BOUNCED if the mail was not delivered."
	ask.RequestBody = &huma.RequestBody{Required: true, Content: content(schema[newMailRequest](s), jsonType)}
	ask.RequestBody.Content[jsonType].Example = json.RawMessage(`{"to": "agent:ceo@laptop", "text": "how many?", "dedupe": "question-1", "wait": "30s"}`)
	ask.Responses = answers[wire.MailReply](s, "200", "The mail is on disk; with its reply, if that has come")
	s.api.OpenAPI().AddOperation(&ask)

	type waited struct {
		ByID
		Wait string `query:"wait" default:"30s" doc:"for the reply, at most 10m"`
	}
	again := op("GET", "/v1/mail/{id}/reply", "getReply", "mail", "Wait for the reply to a request")
	again.Description = "This changes nothing: the reply is given again for five minutes. It is NOT_FOUND when it is gone, and BOUNCED if the mail was not delivered."
	route(s, again, func(ctx context.Context, in *waited) (wire.MailReply, error) {
		var wait wire.Wait
		if err := wait.UnmarshalText([]byte(in.Wait)); err != nil {
			return wire.MailReply{}, problem(wire.CodeInvalid, "wait: %v", err)
		}
		waiting, cancel := stopContext(ctx, 2*maxWait) // the wait has its own limit
		defer cancel()
		r, err := s.mail.Reply(waiting, in.ID, time.Duration(wait))
		if err != nil && errors.Is(context.Cause(waiting), wire.ErrDraining) {
			err = problem(wire.CodeDraining, "wait for a reply: the node is stopping")
		}
		return r, err
	})
	box := op("POST", "/v1/mail/reply-box", "newReplyBox", "mail", "Make a box for the replies to the requests of a program")
	box.Description = "Name it in reply_to and read it like any mailbox; a reply has the correlation of its request. It is removed when nobody has read it for an hour."
	route(s, box, func(ctx context.Context, in *struct{ Body *wire.NewReplyBox }) (wire.ReplyBox, error) {
		return s.mail.NewReplyBox(ctx, orZero(in.Body))
	})
}

// requestMail sends a mail and waits for the reply.
func (s *Server) requestMail(w http.ResponseWriter, r *http.Request) {
	var m newMailRequest
	if err := readMail(w, r, m.form(), &m.Mail); err != nil {
		writeProblem(w, err)
		return
	}
	waiting, cancel := stopContext(r.Context(), 2*maxWait)
	defer cancel()
	reply, err := s.mail.Request(waiting, m.MailRequest)
	if err != nil && !(reply.ID != "" && waiting.Err() != nil) { // a node that stops has sent it
		writeProblem(w, err)
		return
	}
	writeJSON(w, http.StatusOK, reply)
}

// decodeMail decodes one mail strictly.
func decodeMail(b []byte) (wire.Mail, error) {
	var m newMail
	if err := m.form().decode(b); err != nil {
		return wire.Mail{}, err
	}
	return m.Mail, nil
}

// sendMail sends one mail: a JSON document, or with any other content type its raw body of any
// size, with all other fields in the query.
func (s *Server) sendMail(w http.ResponseWriter, r *http.Request) {
	var m newMail
	var err error
	if mediaType(r) == jsonType {
		err = readMail(w, r, m.form(), &m.Mail)
	} else if m.Mail, err = rawMail(r); err == nil {
		err = mailHeaders(r, &m.Mail)
	}
	if err != nil {
		writeProblem(w, err)
		return
	}
	sent, errs := s.mail.Send(r.Context(), []wire.Mail{m.Mail})
	if errs[0] != nil {
		writeProblem(w, errs[0])
		return
	}
	w.Header().Set("Location", "/v1/mail/"+sent[0].ID)
	writeJSON(w, http.StatusAccepted, sent[0])
}

// readMail reads the form of a request to send m.
func readMail(w http.ResponseWriter, r *http.Request, f form, m *wire.Mail) error {
	if mediaType(r) != jsonType {
		return problem(wire.CodeType, "content type %.80q", r.Header.Get("Content-Type"))
	}
	b, err := readForm(w, r, f.what, maxMailDocument)
	if err != nil {
		p := ProblemOf(err)
		if p.Code == wire.CodeTooLarge {
			p.Fix = largeMailFix
		}
		return p
	}
	if err := f.decode(b); err != nil {
		return err
	}
	return mailHeaders(r, m)
}

// mailHeaders reads what of a mail can be given as headers.
func mailHeaders(r *http.Request, m *wire.Mail) error {
	trace := m.Trace
	if err := headers(r.Header, "dedupe", &m.Dedupe, &m.Trace); err != nil {
		return err
	}
	if trace == "" && !proto.ValidTraceparent([]byte(m.Trace)) {
		m.Trace = ""
	}
	return nil
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
	sent, errs := s.mail.Send(r.Context(), mails)
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
