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
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Send sends mails. When it returns, each is on disk here or refused: it has its own result
// or error. Mails for one box are sent in order.
func (b *Boxes) Send(ctx context.Context, mails []wire.Mail) ([]wire.SentMail, []error) {
	s := &sending{sent: make([]wire.SentMail, len(mails)), errs: make([]error, len(mails))}
	for i := range mails {
		item, to, err := b.item(&mails[i])
		if err != nil {
			s.errs[i] = err
			continue
		}
		if s.isFull(len(item.Letter), mails[i].Relaxed) {
			b.flush(ctx, s)
		}
		s.add(i, item, to, mails[i].Relaxed)
	}
	b.flush(ctx, s)
	return s.sent, s.errs
}

// A sending is one call of Send.
type sending struct {
	sent []wire.SentMail
	errs []error

	// What is handed to the broker together.
	at      []int // in sent
	items   []mail.Item
	to      []place
	size    int
	relaxed bool
}

func (s *sending) isFull(size int, relaxed bool) bool {
	return len(s.at) > 0 && (len(s.at) == mail.MaxSend || s.size+size > mail.MaxSendBytes || s.relaxed != relaxed)
}

func (s *sending) add(i int, item mail.Item, to place, relaxed bool) {
	s.at, s.items, s.to = append(s.at, i), append(s.items, item), append(s.to, to)
	s.size, s.relaxed = s.size+len(item.Letter), relaxed
}

// flush hands the broker what was added.
func (b *Boxes) flush(ctx context.Context, s *sending) {
	if len(s.at) == 0 {
		return
	}
	sent, err := b.send(ctx, s.items, s.relaxed)
	for j, i := range s.at {
		if err != nil {
			s.errs[i] = err
			continue
		}
		s.sent[i], s.errs[i] = b.sentMail(s.to[j], s.items[j], sent[j], s.relaxed)
	}
	s.at, s.items, s.to, s.size = nil, nil, nil, 0
}

func (b *Boxes) send(ctx context.Context, items []mail.Item, relaxed bool) ([]mail.Sent, error) {
	k := b.broker.Load()
	if k == nil { // no box here
		sent := make([]mail.Sent, len(items))
		for i := range sent {
			sent[i].Code = proto.CodeNoHandler
		}
		return sent, nil
	}
	sent, err := k.Send(ctx, items, relaxed)
	return sent, failure(place{}, "", unknown(err))
}

// unknown marks the error of a call of which nobody knows whether it took effect.
func unknown(err error) error {
	if errors.Is(err, mail.ErrUnknown) {
		return fmt.Errorf("%w: %w", store.ErrUnknown, err)
	}
	return err
}

func (b *Boxes) sentMail(to place, item mail.Item, r mail.Sent, relaxed bool) (wire.SentMail, error) {
	switch {
	case r.Code == proto.CodeNoHandler:
		return wire.SentMail{}, noBox(to, "")
	case r.Code != proto.CodeOK:
		return wire.SentMail{}, refusal(r.Code, to.text+": "+r.Detail)
	}
	m := wire.SentMail{ID: r.ID.String(), Box: to.text, State: "WAITING", Durability: wire.DurabilityFsynced, Known: r.Duplicate}
	if relaxed {
		m.Durability = wire.DurabilityRelaxed
	}
	return m, nil
}

// item makes the letter of a mail, for the box that it names.
func (b *Boxes) item(m *wire.Mail) (mail.Item, place, error) {
	to, err := b.findTarget(m.To)
	if err != nil {
		return mail.Item{}, to, err
	}
	l, err := b.letter(m, to)
	if err != nil {
		return mail.Item{}, to, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	raw, err := proto.AppendLetter(nil, l)
	if err != nil {
		return mail.Item{}, to, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return mail.Item{Box: to.name, Letter: raw}, to, nil
}

// fullAddress returns an address as every node understands it: with the id of the node.
func (b *Boxes) fullAddress(field, name string) ([]byte, error) {
	if name == "" {
		return nil, nil
	}
	p, err := b.findTarget(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return []byte(p.name), nil
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
	replyTo, err := b.fullAddress("reply_to", m.ReplyTo)
	if err != nil {
		return nil, err
	}
	bounceTo, err := b.fullAddress("bounce_to", m.BounceTo)
	if err != nil {
		return nil, err
	}
	now := b.cfg.Clock.Now()
	l := &proto.Letter{
		Class: class, ID: proto.NewMailID(now), Created: now.UnixMilli(), Hops: uint8(m.Hops), Labels: labels, Body: m.Body,
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
	if m.Relaxed {
		l.Flags |= proto.LetterRelaxed
	}
	if l.NotBefore > 0 && l.NotBefore >= l.NotAfter {
		return nil, fmt.Errorf("it could not be delivered before %s, when its ttl has ended", time.UnixMilli(l.NotBefore).UTC().Format(time.RFC3339))
	}
	return l, nil
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
		return fmt.Errorf("body of %d bytes: a mail has at most %d; send a task with the body, or a mail that says where it is", len(m.Body), proto.MaxInlineBody)
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
