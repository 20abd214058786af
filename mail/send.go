package mail

import (
	"context"
	"errors"
	"fmt"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// Limits of one call of Send.
const (
	MaxSend      = 512     // mails
	MaxSendBytes = 1 << 20 // of their letters together, unless it is a single one
)

// mailOverhead is the room for a MAIL record besides its letter.
const mailOverhead = 128

// An Item is a mail that is to be put into a box here. The last four fields are zero for
// mail from this node.
type Item struct {
	Box    string
	Letter []byte // as [proto.AppendLetter] encodes it

	Origin proto.PeerID
	Chain  proto.Class
	Number proto.Seq
	Prev   proto.Seq
}

// Sent says what became of an item. With CodeOK the mail is in its box, and on disk unless
// it was sent as relaxed.
type Sent struct {
	Code      proto.Code
	Detail    string // of a refusal
	ForGood   bool   // a refusal that no retry changes
	Duplicate bool   // with CodeOK: it was here before
	ID        proto.MailID
	Seq       uint64
}

// Send puts mails into boxes of this node, in order, and returns when each is on disk or
// refused. A relaxed send returns when they are written: they survive the end of the
// process, and a power cut about 100 ms later. With ErrUnknown some may be there: who sends
// the same letters again needs a dedupe key in each.
func (b *Broker) Send(ctx context.Context, items []Item, relaxed bool) ([]Sent, error) {
	size := 0
	for i := range items {
		size += len(items[i].Letter)
	}
	if len(items) > MaxSend || size > MaxSendBytes && len(items) > 1 {
		return nil, fmt.Errorf("mail: %d mails of %d bytes at once; at most %d and %d", len(items), size, MaxSend, MaxSendBytes)
	}
	s := &sending{items: items, sent: make([]Sent, len(items)), left: len(items), relaxed: relaxed, done: make(chan struct{})}
	s.mails, s.recs, s.buf = make([]box.Mail, len(items)), make([][]byte, len(items)), make([]byte, 0, size+len(items)*mailOverhead)
	boxes, at := *b.boxes.Load(), b.cfg.Clock.Now().UnixMilli()
	for i, it := range items {
		to, ok := boxes[it.Box]
		if !ok {
			s.sent[i] = Sent{Code: proto.CodeNoHandler, Detail: fmt.Sprintf("no box %q", it.Box)}
			continue
		}
		s.mails[i] = box.Mail{Box: to, At: at, Chain: it.Chain, Number: it.Number, Prev: it.Prev, Letter: it.Letter}
		if it.Origin.IsZero() {
			s.encode(i)
		}
	}
	if len(items) == 0 {
		return nil, nil
	}
	if err := b.do(func(box.Now) { b.send(s) }); err != nil {
		return nil, err
	}
	select {
	case <-s.done:
		return s.sent, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-b.ended:
		return nil, ErrUnknown
	}
}

// A sending is one call of Send.
type sending struct {
	items   []Item
	mails   []box.Mail // without a box: not sent
	recs    [][]byte   // views of buf
	buf     []byte
	relaxed bool

	sent []Sent
	err  error
	left int           // items without an answer
	done chan struct{} // closed with the last answer
}

func (s *sending) encode(i int) {
	from := len(s.buf)
	s.buf = box.AppendMail(s.buf, &s.mails[i])
	s.recs[i] = s.buf[from:len(s.buf):len(s.buf)]
}

// send queues the records of a call. Only here is it known which index an origin has.
func (b *Broker) send(s *sending) {
	for i := range s.items {
		if s.mails[i].Box == 0 {
			s.answered()
			continue
		}
		if p := s.items[i].Origin; !p.IsZero() {
			s.mails[i].Origin = b.originOf(p)
			s.encode(i)
		}
		b.queue(s.recs[i], true, s.relaxed, func(r box.Result, err error) { s.answer(i, r, err) })
	}
}

// originOf returns the index of a peer. A new one is recorded before the mail that needs it.
func (b *Broker) originOf(p proto.PeerID) uint32 {
	if i := b.state.Origin(p); i != 0 {
		return i
	}
	i := max(b.state.NewOrigin(), b.lastOrigin+1)
	if was, queued := b.origins[p]; queued {
		return was
	}
	b.origins[p], b.lastOrigin = i, i
	b.queue(box.AppendPeer(nil, i, p), false, false, func(box.Result, error) {
		delete(b.origins, p)
		b.publish()
	})
	return i
}

func (s *sending) answer(i int, r box.Result, err error) {
	switch {
	case err == nil:
		s.sent[i] = Sent{r.Code, r.Detail, r.ForGood, r.Duplicate, r.ID, r.Seq}
	case errors.Is(err, store.ErrFull):
		s.sent[i] = Sent{Code: proto.CodeFull, Detail: err.Error()}
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, box.ErrBadRecord):
		s.sent[i] = Sent{Code: proto.CodeBadForm, Detail: err.Error(), ForGood: true}
	default:
		s.err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.answered()
}

func (s *sending) answered() {
	if s.left--; s.left == 0 {
		close(s.done)
	}
}
