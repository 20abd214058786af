package proto

import "fmt"

// An OfferedMail is the mail of an Offer of type BUNDLE, which is sent to its box, or of type
// DELIVER, which is leased to a program of the receiver. The envelope of the offer has no header
// and no signature: the stream is that of the node that sends the mail. The body of the envelope
// is a Bundle with box and letter, and as its number the sequence of a mail of type DELIVER.
type OfferedMail struct {
	Box    string
	Seq    uint64 // in its box; 0: it is sent to it
	Letter []byte
}

// Offer returns the offer of the body of a mail, without the manifest.
func (m OfferedMail) Offer() (*Offer, error) {
	b, err := Encode(nil, &Bundle{Number: m.Seq, Box: m.Box, Letters: m.Letter})
	if err != nil {
		return nil, err
	}
	o := &Offer{Type: TypeBundle, Envelope: &Envelope{Body: b}}
	if m.Seq > 0 {
		o.Type = TypeDeliver
	}
	return o, nil
}

// OfMail reports whether the body of a mail is offered.
func (o *Offer) OfMail() bool { return o.GetType() == TypeBundle || o.GetType() == TypeDeliver }

// Mail returns the mail whose body is offered, and its letter, which has an object. The error
// wraps ErrBadMail, ErrBadLetter or ErrNewLetter, or is one of DecodeKnown.
func (o *Offer) Mail() (m OfferedMail, l Letter, err error) {
	var b Bundle
	if err := DecodeKnown(o.GetEnvelope().GetBody(), &b); err != nil {
		return m, l, err
	}
	m = OfferedMail{b.GetBox(), b.GetNumber(), b.GetLetters()}
	if n := len(b.GetBox()); n == 0 || n > MaxTarget || len(o.GetEnvelope().GetHeader()) > 0 || len(b.GetRuns()) > 0 || (m.Seq > 0) != (o.GetType() == TypeDeliver) {
		return m, l, fmt.Errorf("%w: the offer of a body for %.64q", ErrBadMail, b.GetBox())
	}
	if l, err = ParseLetter(b.GetLetters()); err == nil && l.Object.IsZero() {
		err = fmt.Errorf("%w: its body is inline, and offered", ErrBadLetter)
	}
	return m, l, err
}

// BodyHeader returns the header of a task with a body like that of l, of that many sealed bytes.
func (l *Letter) BodyHeader(sealed int64) Header {
	h := Header{What: WhatTask, ID: TaskID(l.ID), Created: l.Created, NotAfter: l.NotAfter}
	h.SetObject(l.Object.Name, sealed)
	return h
}
