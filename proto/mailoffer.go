package proto

import "fmt"

// An Offer of type BUNDLE is of the body of a mail. Its envelope has no header and no signature:
// the stream is that of the node that sends the mail. The body of the envelope is a Bundle with the
// box and the letter, and nothing else.

// NewMailOffer returns the offer of the body of a mail for a box, without the manifest.
func NewMailOffer(box string, letter []byte) (*Offer, error) {
	b, err := Encode(nil, &Bundle{Box: box, Letters: letter})
	if err != nil {
		return nil, err
	}
	return &Offer{Type: TypeBundle, Envelope: &Envelope{Body: b}}, nil
}

// Mail returns the mail whose body is offered. The letter has an object. The error wraps
// ErrBadMail, ErrBadLetter or ErrNewLetter, or is one of DecodeKnown.
func (o *Offer) Mail() (box string, l Letter, err error) {
	var b Bundle
	if err := DecodeKnown(o.GetEnvelope().GetBody(), &b); err != nil {
		return "", l, err
	}
	if n := len(b.GetBox()); n == 0 || n > MaxTarget || len(o.GetEnvelope().GetHeader()) > 0 || len(b.GetRuns()) > 0 {
		return "", l, fmt.Errorf("%w: the offer of a body for %.64q", ErrBadMail, b.GetBox())
	}
	if l, err = ParseLetter(b.GetLetters()); err == nil && l.Object.IsZero() {
		err = fmt.Errorf("%w: its body is inline, and offered", ErrBadLetter)
	}
	return b.GetBox(), l, err
}

// BodyHeader returns the header of a task with a body like that of l, of that many sealed bytes.
func (l *Letter) BodyHeader(sealed int64) Header {
	h := Header{What: WhatTask, ID: TaskID(l.ID), Created: l.Created, NotAfter: l.NotAfter}
	h.SetObject(l.Object.Name, sealed)
	return h
}
