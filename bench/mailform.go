package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// The forms of the stream of mail.
const (
	inFrames    = "frames"
	inDocuments = "documents"
)

// A mailForm writes and reads the messages of the stream of mail. It is used by one goroutine.
type mailForm interface {
	// dial returns the subprotocol, the type of its messages, and whether one message may
	// have several requests.
	dial() (protocol string, typ websocket.MessageType, joined bool)
	appendSend(dst []byte, l *mailLoad, bodies [][]byte) ([]byte, error)
	appendRead(dst []byte, box, sub string) ([]byte, error)
	// appendAcks acknowledges what was delivered last.
	appendAcks(dst []byte) ([]byte, error)
	read(msg []byte, a *arrived) error
}

// An arrived is what one message of the node has.
type arrived struct {
	sent    []int    // requests: how many mails of each are on disk
	refused int      // mails
	problem string   // of one of them
	settled int      // acknowledgements that are on disk
	stale   int      // acknowledgements that did not count
	bodies  [][]byte // delivered; valid until the next message is read
}

func newMailForm(name string) mailForm {
	if name == inDocuments {
		return new(documents)
	}
	return new(frames)
}

// errEnded is returned when the node ends a session.
var errEnded = errors.New("the node has ended the session")

// mailSession is the number of the one session of a connection.
const mailSession = 1

// mailCredit is the number of mails that are delivered before one is settled.
const mailCredit = 4096

// frames is the binary form. A reader's request to settle has their number as its number.
type frames struct {
	letters []byte
	mails   []wire.FramedMail
	results []wire.FramedResult
	given   []wire.FramedDelivery
	acks    []wire.FramedSettlement
}

func (*frames) dial() (string, websocket.MessageType, bool) {
	return wire.MailFrames, websocket.MessageBinary, true
}

func (f *frames) appendSend(dst []byte, l *mailLoad, bodies [][]byte) ([]byte, error) {
	now := time.Now()
	x := proto.Letter{Class: proto.Normal, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli()}
	if l.Relaxed {
		x.Flags = proto.LetterRelaxed
	}
	f.letters, f.mails = f.letters[:0], f.mails[:0]
	ends := make([]int, 0, wire.MaxMailBatch)
	for _, b := range bodies {
		var err error
		x.ID, x.Body = proto.NewMailID(now), b
		if f.letters, err = proto.AppendLetter(f.letters, &x); err != nil {
			return dst, err
		}
		ends = append(ends, len(f.letters))
	}
	start, to := 0, []byte(l.To)
	for _, end := range ends {
		f.mails = append(f.mails, wire.FramedMail{To: to, Letter: f.letters[start:end]})
		start = end
	}
	return wire.AppendMailFrame(dst, wire.OpSend, 0, func(b []byte) []byte { return wire.AppendSend(b, f.mails) }), nil
}

func (*frames) appendRead(dst []byte, box, sub string) ([]byte, error) {
	r := wire.ReadMail{Box: box, Subscription: sub, Credit: mailCredit}
	return wire.AppendMailFrame(dst, wire.OpRead, mailSession, r.Append), nil
}

func (f *frames) appendAcks(dst []byte) ([]byte, error) {
	for left := f.acks; len(left) > 0; {
		n := min(len(left), wire.MaxMailBatch)
		dst = wire.AppendMailFrame(dst, wire.OpSettle, uint32(n), func(b []byte) []byte { return wire.AppendSettle(b, mailSession, left[:n]) })
		left = left[n:]
	}
	return dst, nil
}

func (f *frames) read(msg []byte, a *arrived) (err error) {
	f.acks = f.acks[:0]
	for len(msg) > 0 {
		var x wire.MailFrame
		if x, msg, err = wire.CutMailFrame(msg); err != nil {
			return err
		}
		switch x.Op {
		case wire.OpSent:
			f.results, err = x.Results(f.results[:0])
			n := 0
			for i := range f.results {
				if f.results[i].Code == "" {
					n++
					continue
				}
				a.refused, a.problem = a.refused+1, string(f.results[i].Code)+" "+f.results[i].Detail
			}
			a.sent = append(a.sent, n)
		case wire.OpDelivered:
			err = f.deliver(x, a)
		case wire.OpSettled:
			stale, code, detail, bad := x.Settled()
			if err = bad; code != "" {
				err = fmt.Errorf("settle: %s %s", code, detail)
			}
			a.settled, a.stale = a.settled+int(x.Ref), a.stale+len(stale)
		case wire.OpEnd:
			code, detail, _, _ := x.End()
			err = fmt.Errorf("%w: %s %s", errEnded, code, detail)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *frames) deliver(x wire.MailFrame, a *arrived) (err error) {
	if f.given, err = x.Deliveries(f.given[:0]); err != nil {
		return err
	}
	for i := range f.given {
		l, err := proto.ParseLetter(f.given[i].Letter)
		if err != nil {
			return err
		}
		a.bodies = append(a.bodies, l.Body)
		f.acks = append(f.acks, wire.FramedSettlement{Op: wire.FrameAck, Lease: f.given[i].Lease})
	}
	return nil
}

// documents is the form in JSON.
type documents struct{ leases []string }

// A mailRequest is any request in JSON; its fields are those of docs/protocol.md.
type mailRequest struct {
	Op      string      `json:"op"`
	Ref     int         `json:"ref,omitempty"`
	Session int         `json:"session,omitempty"`
	Mails   []wire.Mail `json:"mails,omitempty"`
	Box     string      `json:"box,omitempty"`
	Sub     string      `json:"sub,omitempty"`
	Credit  int         `json:"credit,omitempty"`
	Ack     []string    `json:"ack,omitempty"`
}

// A mailAnswer is any answer in JSON.
type mailAnswer struct {
	Op      string               `json:"op"`
	Ref     int                  `json:"ref"`
	Mails   []wire.DeliveredMail `json:"mails"`
	Results []mailResult         `json:"results"`
	Stale   []wire.SettledItem   `json:"stale"`
	Code    string               `json:"code"`
	Detail  string               `json:"detail"`
}

type mailResult struct {
	Problem *wire.Problem `json:"problem"`
}

func (*documents) dial() (string, websocket.MessageType, bool) {
	return wire.MailDocuments, websocket.MessageText, false
}

func appendJSON(dst []byte, d mailRequest) ([]byte, error) {
	b, err := json.Marshal(d)
	return append(dst, b...), err
}

func (*documents) appendSend(dst []byte, l *mailLoad, bodies [][]byte) ([]byte, error) {
	d := mailRequest{Op: "send", Ref: 1}
	for _, b := range bodies {
		d.Mails = append(d.Mails, wire.Mail{To: l.To, Body: b, Relaxed: l.Relaxed})
	}
	return appendJSON(dst, d)
}

func (*documents) appendRead(dst []byte, box, sub string) ([]byte, error) {
	return appendJSON(dst, mailRequest{Op: "read", Session: mailSession, Box: box, Sub: sub, Credit: mailCredit})
}

func (f *documents) appendAcks(dst []byte) ([]byte, error) {
	if len(f.leases) == 0 {
		return dst, nil
	}
	return appendJSON(dst, mailRequest{Op: "settle", Ref: len(f.leases), Session: mailSession, Ack: f.leases})
}

func (f *documents) read(msg []byte, a *arrived) error {
	f.leases = f.leases[:0]
	var d mailAnswer
	if err := json.Unmarshal(msg, &d); err != nil {
		return err
	}
	switch d.Op {
	case "sent":
		n := 0
		for _, r := range d.Results {
			if r.Problem == nil {
				n++
				continue
			}
			a.refused, a.problem = a.refused+1, r.Problem.Error()
		}
		a.sent = append(a.sent, n)
	case "mail":
		for i := range d.Mails {
			a.bodies, f.leases = append(a.bodies, d.Mails[i].Mail.Body), append(f.leases, d.Mails[i].Lease)
		}
	case "settled":
		if d.Code != "" {
			return fmt.Errorf("settle: %s %s", d.Code, d.Detail)
		}
		a.settled, a.stale = a.settled+d.Ref, a.stale+len(d.Stale)
	case "end":
		return fmt.Errorf("%w: %s %s", errEnded, d.Code, d.Detail)
	}
	return nil
}
