package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// jsonForm is the subprotocol of JSON documents.
type jsonForm struct{}

// streamOps are the words for ops.
var streamOps = map[string]byte{
	"send": wire.OpSend, "read": wire.OpRead, "settle": wire.OpSettle, "credit": wire.OpCredit, "stop": wire.OpStop, "ping": wire.OpPing, "request": wire.OpRequest,
}

// A streamDocument is any request in JSON.
type streamDocument struct {
	Op      string `json:"op"`
	Ref     uint32 `json:"ref"`
	Session uint32 `json:"session"`

	Mails struct{}        `json:"mails"` // send; they are cut out before
	Mail  json.RawMessage `json:"mail"`  // request

	Box      string `json:"box"` // read
	Sub      string `json:"sub"`
	Mode     string `json:"mode"` // a setting of the subscription: ignored
	Reader   string `json:"reader"`
	Priority int32  `json:"priority"`
	Credit   uint64 `json:"credit"`

	wire.SettleMail // settle

	Add uint64 `json:"add"` // credit
}

var streamFields = fieldsOf[streamDocument]()

func (jsonForm) requests(msg []byte, do func(*streamRequest) error) error {
	w := scanner{b: msg, noted: "mails", apart: true}
	if err := w.document(func(name string) bool { return streamFields[name] }); err != nil {
		return fmt.Errorf("bad document: %w", err)
	}
	rest, mails := cut(msg, w.from, w.to, "{}")
	var doc streamDocument
	dec := json.NewDecoder(bytes.NewReader(rest))
	dec.DisallowUnknownFields() // in settlements
	if err := dec.Decode(&doc); err != nil {
		return fmt.Errorf("bad document: %s", plainJSONError(err))
	}
	q := &streamRequest{op: streamOps[doc.Op], ref: doc.Ref, session: doc.Session, credit: doc.Add}
	switch {
	case q.op == 0:
		return fmt.Errorf("unknown op %.20q", doc.Op)
	case mails != nil && q.op != wire.OpSend:
		return fmt.Errorf("mails in a %s: they belong to a send", doc.Op)
	}
	switch q.op {
	case wire.OpSend:
		parts, err := elements(mails, wire.MaxMailBatch)
		switch {
		case errors.Is(err, errTooMany) || mails == nil || err == nil && len(parts) == 0:
			return fmt.Errorf("a send must have from 1 to %d mails", wire.MaxMailBatch)
		case err != nil:
			return fmt.Errorf("bad document: mails: %w", err)
		}
		q.mails, q.size, q.refused = make([]wire.Mail, len(parts)), len(mails), make([]error, len(parts))
		for i, m := range parts {
			q.mails[i], q.refused[i] = decodeMail(m)
		}
	case wire.OpRequest:
		if len(doc.Mail) == 0 {
			return errors.New("a request without mail")
		}
		q.ask = askDocument(doc.Mail)
	case wire.OpRead:
		q.read = wire.ReadMail{Box: doc.Box, Subscription: doc.Sub, Reader: doc.Reader, Priority: doc.Priority, Credit: doc.Credit}
	case wire.OpSettle:
		var err error
		if q.settle, q.leases, err = mailbox.Settlements(doc.SettleMail); err != nil {
			return err
		}
	}
	return do(q)
}

// A streamedMail is the result of a mail that was sent.
type streamedMail struct {
	ID      string        `json:"id,omitempty"`
	Seq     uint64        `json:"seq,omitempty"`
	Known   bool          `json:"known,omitempty"`
	Problem *wire.Problem `json:"problem,omitempty"`
}

// A streamedAnswer is any answer in JSON.
type streamedAnswer struct {
	Op       string               `json:"op"`
	Ref      uint32               `json:"ref,omitempty"`
	Session  uint32               `json:"session,omitempty"`
	Results  []streamedMail       `json:"results,omitempty"`  // sent
	Request  *wire.MailReply      `json:"request,omitempty"`  // replied
	Mails    []wire.DeliveredMail `json:"mails,omitempty"`    // mail
	Stale    []wire.SettledItem   `json:"stale,omitempty"`    // settled: what did not count
	Extended []wire.SettledItem   `json:"extended,omitempty"` // settled
	Code     wire.Code            `json:"code,omitempty"`     // end, settled if nothing counted, and replied if it was refused or bounced
	Detail   string               `json:"detail,omitempty"`
	Home     string               `json:"home,omitempty"` // end with MOVED, HELD or DRAINING: the node of the box
}

func (jsonForm) appendAnswer(dst []byte, a *streamAnswer) []byte {
	out := streamedAnswer{Ref: a.ref}
	switch a.op {
	case wire.OpPong:
		out.Op = "pong"
	case wire.OpSent:
		out.Op = "sent"
		out.Results = make([]streamedMail, len(a.outcomes))
		for i, o := range a.outcomes {
			if o.Err != nil {
				out.Results[i].Problem = ProblemOf(o.Err)
				continue
			}
			out.Results[i] = streamedMail{ID: o.ID.String(), Seq: o.Seq, Known: o.Known}
		}
	case wire.OpDelivered:
		out.Op, out.Ref, out.Session = "mail", 0, a.ref
		mails, err := a.reader.Delivered(a.given)
		if out.Mails = mails; err != nil {
			out.Code, out.Detail = reasonOf(err)
		}
	case wire.OpSettled:
		out.Op = "settled"
		out.settled(a)
	case wire.OpReplied:
		out.Op = "replied"
		if out.Code, out.Detail = reasonOf(a.err); a.reply.request.ID != "" {
			out.Request = &a.reply.request
		}
	case wire.OpEnd:
		out.Op, out.Ref, out.Session = "end", 0, a.ref
		out.Code, out.Detail, out.Home = endOf(a.err)
	}
	w := bytes.NewBuffer(dst)
	if encode(w, out) != nil {
		return dst // there is nothing in it that JSON has no form for
	}
	return w.Bytes()
}

func (out *streamedAnswer) settled(a *streamAnswer) {
	out.Code, out.Detail = reasonOf(a.err)
	for i, r := range a.settled {
		item := wire.SettledItem{Lease: a.leases[i], Code: mailbox.SettledCode(r.Code)}
		switch {
		case r.Code != proto.CodeOK:
			out.Stale = append(out.Stale, item)
		case a.asked[i] == box.Extend:
			item.Until = new(time.Now().Add(r.Lease).UTC())
			out.Extended = append(out.Extended, item)
		}
	}
}
