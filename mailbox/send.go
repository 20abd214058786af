package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Send sends mails. When it returns, each is on disk here or refused: it has its own result
// or error. Mails for one box are sent in order.
func (b *Boxes) Send(ctx context.Context, mails []wire.Mail) ([]wire.SentMail, []error) {
	s := &sending{sent: make([]wire.SentMail, len(mails)), errs: make([]error, len(mails))}
	for i := range mails {
		if mails[i].Stream != nil { // it may take long
			b.flush(ctx, s)
		}
		letter, to, object, err := b.compose(ctx, &mails[i])
		if err != nil {
			s.errs[i] = err
			continue
		}
		away := to.home != b.cfg.Self
		relaxed := b.mayRelax(mails[i].Relaxed)
		if s.isFull(len(letter), relaxed, away) {
			b.flush(ctx, s)
		}
		s.add(i, letter, object, to, relaxed, away)
	}
	b.flush(ctx, s)
	return s.sent, s.errs
}

// mayRelax reports whether a mail is answered before its fsync, given what its sender wants.
func (b *Boxes) mayRelax(asked bool) bool { return asked && !b.cfg.Durable }

// A sending is one call of Send.
type sending struct {
	sent []wire.SentMail
	errs []error

	// What is handed to the broker together.
	at      []int // in sent
	letters [][]byte
	objects []proto.LetterObject // their bodies, pinned
	to      []place
	size    int
	relaxed bool
	away    bool // to boxes on other nodes
}

func (s *sending) isFull(size int, relaxed, away bool) bool {
	return len(s.at) > 0 && (len(s.at) == mail.MaxSend || s.size+size > mail.MaxSendBytes || s.relaxed != relaxed || s.away != away)
}

func (s *sending) add(i int, letter []byte, object proto.LetterObject, to place, relaxed, away bool) {
	s.at, s.letters, s.objects, s.to = append(s.at, i), append(s.letters, letter), append(s.objects, object), append(s.to, to)
	s.size, s.relaxed, s.away = s.size+len(letter), relaxed, away
}

// flush hands the broker what was added.
func (b *Boxes) flush(ctx context.Context, s *sending) {
	if len(s.at) == 0 {
		return
	}
	sent, err := b.deliver(ctx, s.to, s.letters, s.relaxed, false)
	for j, i := range s.at {
		if s.errs[i] = err; err == nil {
			s.sent[i], s.errs[i] = b.sentMail(s.to[j], sent[j], s.relaxed)
		}
		why := s.errs[i]
		if why == nil && s.sent[i].Known {
			why = errKnown
		}
		b.bodies.unpin(s.objects[j], why)
	}
	s.at, s.letters, s.objects, s.to, s.size = nil, nil, nil, nil, 0
}

// deliver puts letters into their boxes, or into the spools for boxes on other nodes: all of
// one kind. Those that tell of ends are taken below the reserve of the disk too.
func (b *Boxes) deliver(ctx context.Context, to []place, letters [][]byte, relaxed, ends bool) ([]mail.Sent, error) {
	if err := b.cfg.Fail(PointSend); err != nil {
		return nil, err
	}
	sent, err := b.put(ctx, to, letters, relaxed, ends)
	_ = b.cfg.Fail(PointSent) // they are on disk: nothing can fail any more
	return sent, err
}

func (b *Boxes) put(ctx context.Context, to []place, letters [][]byte, relaxed, ends bool) ([]mail.Sent, error) {
	if to[0].home != b.cfg.Self {
		return b.forward(ctx, to, letters, relaxed, ends)
	}
	k := b.ledger.broker()
	if k == nil { // no box here
		sent := make([]mail.Sent, len(letters))
		for i := range sent {
			sent[i].Code = proto.CodeNoHandler
		}
		return sent, nil
	}
	items := make([]mail.Item, len(letters))
	for i := range items {
		items[i] = mail.Item{Box: to[i].name, Letter: letters[i], Ends: ends}
	}
	sent, err := k.Send(ctx, items, relaxed)
	return sent, failure(place{}, "", unknown(err))
}

// forward puts letters into the spools for boxes on other nodes.
func (b *Boxes) forward(ctx context.Context, to []place, letters [][]byte, relaxed, ends bool) ([]mail.Sent, error) {
	k, err := b.ledger.open()
	if err != nil {
		return nil, err
	}
	mails := make([]mail.Outgoing, len(letters))
	for i := range mails {
		mails[i] = mail.Outgoing{Box: to[i].name, Home: to[i].home, Generation: to[i].generation, Letter: letters[i], Ends: ends}
	}
	sent, err := k.Forward(ctx, mails, relaxed)
	if err != nil {
		return nil, failure(place{}, "", unknown(err))
	}
	for i, p := range to {
		if i == 0 || p.home != to[i-1].home {
			b.parts.Want(p.home)
		}
	}
	return sent, nil
}

// sentMail returns what became of a mail, in the form of the API.
func (b *Boxes) sentMail(to place, r mail.Sent, relaxed bool) (wire.SentMail, error) {
	switch {
	case r.Code == proto.CodeNoHandler:
		return wire.SentMail{}, noBox(to, "")
	case r.Code != proto.CodeOK:
		return wire.SentMail{}, refusal(r.Code, to.text+": "+r.Detail)
	}
	m := wire.SentMail{ID: r.ID.String(), Box: to.text, State: "WAITING", Durability: wire.DurabilityFsynced, Known: r.Duplicate}
	if to.home != b.cfg.Self {
		m.State = "PENDING"
	}
	if relaxed {
		m.Durability = wire.DurabilityRelaxed
	}
	return m, nil
}

// encode makes the letter of a mail, with its body or the object that is its body, and finds the
// box that it names.
func (b *Boxes) encode(m *wire.Mail, object proto.LetterObject) ([]byte, place, error) {
	to, err := b.places.findTarget(m.To)
	if err != nil {
		return nil, to, err
	}
	l, err := b.letter(m, to)
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
	return raw, to, nil
}

// letter checks a mail and makes its letter.
func (b *Boxes) letter(m *wire.Mail, to place) (*proto.Letter, error) {
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
	replyTo, err := b.places.fullAddress("reply_to", m.ReplyTo)
	if err != nil {
		return nil, err
	}
	bounceTo, err := b.places.fullAddress("bounce_to", m.BounceTo)
	if err != nil {
		return nil, err
	}
	now := b.cfg.Clock.Now()
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
