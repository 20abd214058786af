package mailbox

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// composer makes the letters of mails. It keeps nothing.
type composer struct {
	clock   clock.Clock
	durable bool // mail that its sender calls relaxed is answered after its fsync, too
	places  *places
	bodies  *letterBodies
}

// compose makes the letter of a mail, and finds the box that it names. A large body is stored
// first, and pinned: see [letterBodies.unpin]. What is wrong with the mail is told before the body is read.
func (c *composer) compose(ctx context.Context, m *wire.Mail) (raw []byte, to place, object proto.LetterObject, err error) {
	if m.Stream == nil {
		raw, to, err = c.encode(m, object)
		return raw, to, object, err
	}
	if len(m.Body) > 0 {
		return nil, to, object, invalid("body and a stream are both given")
	}
	if _, to, err = c.encode(m, object); err != nil {
		return nil, to, object, err
	}
	head, err := io.ReadAll(io.LimitReader(m.Stream, proto.MaxInlineBody+1))
	switch {
	case err != nil:
		return nil, to, object, fmt.Errorf("read the body: %w", err)
	case len(head) <= proto.MaxInlineBody:
		m.Body = head
	case wire.IsReplyBox(to.name):
		err = fmt.Errorf("%w: %s", wire.ErrTooLarge, largeReply)
	default:
		object, err = c.bodies.seal(ctx, io.MultiReader(bytes.NewReader(head), m.Stream))
	}
	if err == nil {
		raw, to, err = c.encode(m, object)
	}
	if err != nil {
		c.bodies.unpin(object, err)
	}
	return raw, to, object, err
}

// encode makes the letter of a mail, with its body or the object that is its body, and finds the
// box that it names.
func (c *composer) encode(m *wire.Mail, object proto.LetterObject) ([]byte, place, error) {
	to, err := c.places.findTarget(m.To)
	if err != nil {
		return nil, to, err
	}
	l, err := c.letter(m, to)
	switch {
	case errors.Is(err, wire.ErrTooLarge):
		return nil, to, err
	case err != nil:
		return nil, to, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	l.Object = object
	raw, err := proto.AppendLetter(nil, l)
	if err != nil {
		return nil, to, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return proto.TraceLetter(raw, 0), to, nil
}

// letter checks a mail and makes its letter.
func (c *composer) letter(m *wire.Mail, to place) (*proto.Letter, error) {
	class, err := proto.ParseClass(m.Class)
	if err != nil {
		return nil, err
	}
	if err := checkMail(m, to); err != nil {
		return nil, err
	}
	labels, err := labelsFrom(m.Labels)
	if err != nil {
		return nil, err
	}
	replyTo, err := c.places.fullAddress("reply_to", m.ReplyTo)
	if err != nil {
		return nil, err
	}
	bounceTo, err := c.places.fullAddress("bounce_to", m.BounceTo)
	if err != nil {
		return nil, err
	}
	now := c.clock.Now()
	id, number, err := produced(m, now)
	if err != nil {
		return nil, err
	}
	l := &proto.Letter{
		Class: class, ID: id, Produced: number, Created: now.UnixMilli(), Hops: uint8(m.Hops), Labels: labels, Body: m.Body,
		NotAfter: now.Add(cmp.Or(time.Duration(m.TTL), proto.DefaultTTL)).UnixMilli(),
		Subject:  []byte(m.Subject), Key: []byte(m.Key), Dedupe: []byte(m.Dedupe), ReplyTo: replyTo, Correlation: []byte(m.Correlation),
		Type: []byte(m.Type), ContentType: []byte(m.ContentType), Sender: []byte(m.Sender), BounceTo: bounceTo, Traceparent: []byte(m.Trace),
	}
	switch {
	case m.Delay > 0:
		l.NotBefore = now.Add(time.Duration(m.Delay)).UnixMilli()
	case m.At.After(now):
		l.NotBefore = m.At.UnixMilli()
	}
	if l.Flags, err = proto.ParseLetterFlags(m.Relaxed, m.Receipt, m.Notify); err == nil {
		err = checkAsked(l, to)
	}
	if err != nil {
		return nil, err
	}
	if l.NotBefore > 0 && l.NotBefore >= l.NotAfter {
		return nil, fmt.Errorf("it could not be delivered before %s, when its ttl has ended", time.UnixMilli(l.NotBefore).UTC().Format(time.RFC3339))
	}
	return l, nil
}

// checkLetter checks a letter that a program has made, and returns the one to send.
func (c *composer) checkLetter(raw []byte, to place) (l proto.Letter, _ []byte, err error) {
	if l, err = proto.ParseLetter(raw); err != nil {
		return l, nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	doubted, now := c.clock.Doubted(), c.clock.Now() // in this order: the doubt may end
	if off := now.Sub(time.UnixMilli(l.Created)); doubted && off.Abs() > maxAhead {
		if raw, err = redate(&l, off); err != nil {
			return l, nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
		}
	}
	return l, raw, checkMade(l, to, now)
}

// redate moves the times of a letter by off, and encodes it: its program dates by the wall
// clock, and the node by the time that it believes.
func redate(l *proto.Letter, off time.Duration) ([]byte, error) {
	ms := off.Milliseconds()
	l.Created, l.NotAfter = l.Created+ms, l.NotAfter+ms
	if l.NotBefore != 0 {
		l.NotBefore += ms
	}
	return proto.AppendLetter(nil, l)
}

func checkMade(l proto.Letter, to place, now time.Time) error {
	switch {
	case !l.RedriveOf.IsZero() || !l.FirstID.IsZero() || !l.BounceOf.IsZero():
		return invalid("redrive_of, first_id and bounce_of are set by nodes")
	case l.Object.Size > 0:
		return invalid("the body is an object: send it as a stream")
	case len(l.Later) > 0:
		return invalid("it has entries that this node does not know")
	case l.Hops > box.MaxHops:
		return invalid("hops %d: must be from 0 to %d", l.Hops, box.MaxHops)
	case time.UnixMilli(l.Created).After(now.Add(maxAhead)):
		return invalid("it was made at %s, which is to come", time.UnixMilli(l.Created).UTC().Format(time.RFC3339))
	case l.NotAfter <= now.UnixMilli():
		return invalid("its time to live has ended, at %s", time.UnixMilli(l.NotAfter).UTC().Format(time.RFC3339))
	case to.kind == wire.BoxMailbox && len(l.Subject) > 0:
		return invalid("subject %.64q: %s is a mailbox, only a mail to a topic has a subject", l.Subject, to.text)
	}
	if err := checkAsked(&l, to); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return nil
}

// maxAhead is how much later than the clock of the node a program may say that it made a
// letter.
const maxAhead = time.Minute

// withFullAddresses returns a letter whose addresses have the ids of their nodes.
func (c *composer) withFullAddresses(raw []byte, l proto.Letter) (_ []byte, err error) {
	replyTo, bounceTo := l.ReplyTo, l.BounceTo
	if l.ReplyTo, err = c.places.fullAddress("reply_to", string(replyTo)); err != nil {
		return nil, err
	}
	if l.BounceTo, err = c.places.fullAddress("bounce_to", string(bounceTo)); err != nil {
		return nil, err
	}
	if string(l.ReplyTo) == string(replyTo) && string(l.BounceTo) == string(bounceTo) {
		return raw, nil
	}
	raw, err = proto.AppendLetter(nil, &l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return raw, nil
}

// mayRelax reports whether a mail is answered before its fsync, given what its sender wants.
func (c *composer) mayRelax(asked bool) bool { return asked && !c.durable }

// produced returns the id of a mail, and the number that its producer gave it.
func produced(m *wire.Mail, now time.Time) (id proto.MailID, n proto.Produced, err error) {
	if m.Producer == "" && m.Number == 0 && m.ID == "" {
		return proto.NewMailID(now), n, nil
	}
	if n, err = proto.ParseProduced(m.Producer, m.Number); err == nil {
		id, err = proto.ParseMailID(m.ID)
	}
	if err != nil {
		err = fmt.Errorf("%w; producer, number and id are given together", err)
	}
	return id, n, err
}

// checkAsked checks what the sender of a mail asks for.
func checkAsked(l *proto.Letter, to place) error {
	tells := l.Flags&proto.LetterTellEnd != 0
	switch {
	case l.Flags&proto.LetterReceipt != 0 && l.Flags&proto.LetterRelaxed != 0:
		return errors.New("receipt: who wants one cannot have an answer before the mail is synced: do not send it as relaxed")
	case tells && to.kind == wire.BoxTopic:
		return errors.New("notify: a mail to a topic has an end in each subscription, and none of its own: ask in a mail to a mailbox")
	case tells && len(l.BounceTo)+len(l.ReplyTo)+len(l.Sender) == 0:
		return errors.New("notify: nobody could be told: name the sender, reply_to or bounce_to")
	}
	return nil
}

// checkMail checks what the encoding of a letter does not, or says less about.
func checkMail(m *wire.Mail, to place) error {
	switch {
	case m.TTL < 0 || m.TTL > 0 && time.Duration(m.TTL) < time.Millisecond || time.Duration(m.TTL) > proto.MaxTTL:
		return fmt.Errorf("ttl %s: must be from 1ms to 30 days", m.TTL)
	case m.Delay < 0:
		return fmt.Errorf("delay %s: must not be negative", m.Delay)
	case m.Delay > 0 && !m.At.IsZero():
		return errors.New("delay and at are both given: a mail has one time")
	case len(m.Body) > proto.MaxInlineBody:
		return fmt.Errorf("%w: body of %d bytes: a mail has at most %d inline; send a larger one as a stream", wire.ErrTooLarge, len(m.Body), proto.MaxInlineBody)
	case m.Hops < 0 || m.Hops > 16:
		return fmt.Errorf("hops %d: must be from 0 to 16", m.Hops)
	case to.kind == wire.BoxMailbox && m.Subject != "":
		return fmt.Errorf("subject %.64q: %s is a mailbox, only a mail to a topic has a subject", m.Subject, to.text)
	case m.Trace != "" && !proto.ValidTraceparent([]byte(m.Trace)):
		return fmt.Errorf("traceparent %.64q: must be of version 00 of W3C trace context", m.Trace)
	case m.Subject != "" && !proto.ValidSubject([]byte(m.Subject)):
		return fmt.Errorf("subject %.64q: use words with dots between them, without * and >", m.Subject)
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"key", m.Key, proto.MaxKey}, {"dedupe", m.Dedupe, proto.MaxKey}, {"type", m.Type, proto.MaxLetterType}, {"content_type", m.ContentType, proto.MaxLetterType},
		{"correlation", m.Correlation, proto.MaxCorrelation}, {"sender", m.Sender, proto.MaxSender},
	} {
		switch {
		case len(f.value) > f.limit:
			return fmt.Errorf("%s of %d bytes: the limit is %d", f.name, len(f.value), f.limit)
		case !utf8.ValidString(f.value) || strings.ContainsFunc(f.value, unicode.IsControl):
			return fmt.Errorf("%s %.64q: must be text without control characters", f.name, f.value)
		}
	}
	return nil
}

// labelsFrom returns labels as a letter has them.
func labelsFrom(labels map[string]string) (proto.Labels, error) {
	if len(labels) > proto.MaxLabels {
		return nil, fmt.Errorf("%d labels: the limit is %d", len(labels), proto.MaxLabels)
	}
	for name, value := range labels {
		if _, err := proto.MakeLabels(map[string]string{name: value}); err != nil {
			return nil, fmt.Errorf("label %.64q: use a name of 1-%d bytes without spaces and =, and a value of at most %d bytes without control characters", name, proto.MaxLabelName, proto.MaxLabelValue)
		}
	}
	return proto.MakeLabels(labels)
}
