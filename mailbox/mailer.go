package mailbox

import (
	"context"
	"errors"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// mailer puts letters into the boxes of this node, and into the spools for those of other nodes.
// It keeps nothing: who waits has what it sent.
type mailer struct {
	self     proto.PeerID
	want     func(proto.PeerID)
	fail     func(point string) error
	ledger   *ledgerOpener
	places   *places
	composer *composer
	bodies   *letterBodies
}

// send is [Boxes.Send].
func (m *mailer) send(ctx context.Context, mails []wire.Mail) ([]wire.SentMail, []error) {
	s := &sending{sent: make([]wire.SentMail, len(mails)), errs: make([]error, len(mails))}
	for i := range mails {
		if mails[i].Stream != nil { // it may take long
			m.flush(ctx, s)
		}
		letter, to, object, err := m.composer.compose(ctx, &mails[i])
		if err != nil {
			s.errs[i] = err
			continue
		}
		away := to.home != m.self
		relaxed := m.composer.mayRelax(mails[i].Relaxed)
		if s.isFull(len(letter), relaxed, away) {
			m.flush(ctx, s)
		}
		s.add(i, letter, object, to, relaxed, away)
	}
	m.flush(ctx, s)
	return s.sent, s.errs
}

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
func (m *mailer) flush(ctx context.Context, s *sending) {
	if len(s.at) == 0 {
		return
	}
	sent, err := m.deliver(ctx, s.to, s.letters, s.relaxed, nil)
	for j, i := range s.at {
		if s.errs[i] = err; err == nil {
			s.sent[i], s.errs[i] = m.sentMail(s.to[j], sent[j], s.relaxed)
		}
		why := s.errs[i]
		if why == nil && s.sent[i].Known {
			why = errKnown
		}
		m.bodies.unpin(s.objects[j], why)
	}
	s.at, s.letters, s.objects, s.to, s.size = nil, nil, nil, nil, 0
}

// deliver puts letters into their boxes, or into the spools for boxes on other nodes: all of
// one kind. Those that tell of ends are taken below the reserve of the disk too, and wait in a spool
// while their box is on its way to another home.
func (m *mailer) deliver(ctx context.Context, to []place, letters [][]byte, relaxed bool, ends *mail.Bounce) ([]mail.Sent, error) {
	if err := m.fail(PointSend); err != nil {
		return nil, err
	}
	sent, err := m.put(ctx, to, letters, relaxed, ends)
	_ = m.fail(PointSent) // they are on disk: nothing can fail any more
	return sent, err
}

func (m *mailer) put(ctx context.Context, to []place, letters [][]byte, relaxed bool, ends *mail.Bounce) ([]mail.Sent, error) {
	k := m.ledger.broker()
	if to[0].home != m.self || ends != nil && k != nil && k.HandoverOf(to[0].name).IsUnserved() {
		return m.spool(ctx, to, letters, relaxed, ends)
	}
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

// spool puts letters into the spools for boxes on other nodes.
func (m *mailer) spool(ctx context.Context, to []place, letters [][]byte, relaxed bool, ends *mail.Bounce) ([]mail.Sent, error) {
	k, err := m.ledger.open()
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
		if p.home != m.self && (i == 0 || p.home != to[i-1].home) {
			m.want(p.home)
		}
	}
	return sent, nil
}

// sentMail returns what became of a mail, in the form of the API.
func (m *mailer) sentMail(to place, r mail.Sent, relaxed bool) (wire.SentMail, error) {
	switch {
	case r.Code == proto.CodeNoHandler:
		return wire.SentMail{}, noBox(to, "")
	case r.Code != proto.CodeOK:
		return wire.SentMail{}, refusal(r.Code, to.text+": "+r.Detail)
	}
	v := wire.SentMail{ID: r.ID.String(), Box: to.text, State: "WAITING", Durability: wire.DurabilityFsynced, Known: r.Duplicate}
	if r.Spooled {
		v.State = "PENDING"
	}
	if relaxed {
		v.Durability = wire.DurabilityRelaxed
	}
	return v, nil
}

// sendOne sends one letter.
func (m *mailer) sendOne(ctx context.Context, raw []byte, to place, relaxed bool) (wire.SentMail, error) {
	results, err := m.deliver(ctx, []place{to}, [][]byte{raw}, relaxed, nil)
	if err != nil {
		return wire.SentMail{}, err
	}
	return m.sentMail(to, results[0], relaxed)
}

// errKnown is why a mail that was here before does not need its body again.
var errKnown = errors.New("mailbox: the mail is known")
