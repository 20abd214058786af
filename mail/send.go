package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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

// An Item is a mail of this node that is to be put into a box here.
type Item struct {
	Box    string
	Letter []byte  // as [proto.AppendLetter] encodes it
	Ends   *Bounce // what it tells of the end of a mail, or nil: a call of such mails alone is taken below the reserve of the disk
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
	Spooled   bool // it is in the spool for its box, and Seq is that of the spool
}

// Send puts mails into boxes of this node, in order, and returns when each is on disk or
// refused. Mail for a box that was elsewhere goes behind what still waits in the spool for that. A relaxed send returns when they are written: they survive the end of the
// process, and a power cut about 100 ms later. With ErrUnknown some may be there: who sends
// the same letters again needs a dedupe key in each.
func (b *Broker) Send(ctx context.Context, items []Item, relaxed bool) ([]Sent, error) {
	s, err := b.QueueSend(items, relaxed, nil)
	if s == nil {
		return nil, err
	}
	return s.Wait(ctx)
}

// QueueSend is Send without its wait: what is queued first is before the rest on disk. The
// letters are copied, and what is in dst is overwritten by the results, if they fit. Without
// items it returns nil.
func (b *Broker) QueueSend(items []Item, relaxed bool, dst []Sent) (*Sending, error) {
	s, err := newSending(b, items, relaxed, dst, func(it Item) []byte { return it.Letter })
	if s == nil {
		return nil, err
	}
	boxes, at := *b.boxes.Load(), b.cfg.Clock.Now().UnixMilli()
	for i, it := range items {
		to, ok := boxes[it.Box]
		if !ok || to.spool {
			s.sent[i] = absent(boxes, it.Box)
			continue
		}
		s.newWork = s.newWork || it.Ends == nil
		s.mails[i] = box.Mail{Box: to.id, At: at, Cause: it.Ends.causedBy(), Letter: it.Letter}
		s.encode(i)
	}
	if err := b.do(func(box.Now) { b.send(s) }); err != nil {
		return nil, err
	}
	return s, nil
}

// absent returns what becomes of a mail for a box that is not here, or not yet.
func absent(boxes map[string]knownBox, name string) Sent {
	if _, comes := boxes[box.CopyPrefix+name]; comes {
		return Sent{Code: proto.CodeBusy, Detail: "the box is on its way here"}
	}
	return Sent{Code: proto.CodeNoHandler, Detail: fmt.Sprintf("no box %q", name)}
}

// A Sending is one call of Send or Forward.
type Sending struct {
	b *Broker
	*records
	relaxed bool
	newWork bool // one of the mails does not tell of an end

	sent []Sent
	err  error
	left int           // items without an answer
	done chan struct{} // closed with the last answer
}

// records has the mails of a call, and their records.
type records struct {
	mails []box.Mail // without a box: not sent
	recs  [][]byte   // views of buf
	buf   []byte
}

var recordPool = sync.Pool{New: func() any { return new(records) }}

// newRecords returns space for n mails with size bytes of records.
func newRecords(n, size int) *records {
	r := recordPool.Get().(*records)
	r.mails, r.recs, r.buf = slices.Grow(r.mails, n)[:n], slices.Grow(r.recs, n)[:n], slices.Grow(r.buf, size)
	return r
}

// free lets r be used again. Nobody may have one of its records.
func (r *records) free() {
	clear(r.mails)
	clear(r.recs)
	r.mails, r.recs, r.buf = r.mails[:0], r.recs[:0], r.buf[:0]
	recordPool.Put(r)
}

// newSending checks the limits of a call; it returns nil for one without mail.
func newSending[T any](b *Broker, items []T, relaxed bool, dst []Sent, letter func(T) []byte) (*Sending, error) {
	size := 0
	for _, it := range items {
		size += len(letter(it))
	}
	n := len(items)
	switch {
	case n == 0:
		return nil, nil
	case n > MaxSend || size > MaxSendBytes && n > 1:
		return nil, fmt.Errorf("mail: %d mails of %d bytes at once; at most %d and %d", n, size, MaxSend, MaxSendBytes)
	}
	sent := slices.Grow(dst[:0], n)[:n]
	clear(sent)
	return &Sending{b: b, records: newRecords(n, size+n*mailOverhead), relaxed: relaxed, sent: sent, left: n, done: make(chan struct{})}, nil
}

// Wait returns the result of each item, as Send does.
func (s *Sending) Wait(ctx context.Context) ([]Sent, error) {
	select {
	case <-s.done:
		return s.sent, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-s.b.ended:
		return nil, ErrUnknown
	}
}

// encode makes the record of mail i, whose letter is from then on the one in there: the caller
// may write over its own.
func (s *Sending) encode(i int) {
	m, from := &s.mails[i], len(s.buf)
	s.buf = box.AppendMail(s.buf, m)
	s.recs[i] = s.buf[from:len(s.buf):len(s.buf)]
	m.Letter = s.recs[i][len(s.recs[i])-len(m.Letter):]
}

// send queues the records of a call.
func (b *Broker) send(s *Sending) {
	for i := range s.mails {
		m := &s.mails[i]
		if m.Box == 0 {
			s.answered()
			continue
		}
		if t := b.lineUp(m); t != nil {
			s.encode(i)
			b.queue(s.recs[i], s.newWork, s.relaxed, func(r box.Result, err error) {
				b.stored(t, m.Chain, m.Number, r, err)
				s.answer(i, r, err)
			})
			continue
		}
		b.queued.push(proposal{rec: s.recs[i], sending: s, at: i}, s.newWork, s.relaxed)
	}
}

func (s *Sending) answer(i int, r box.Result, err error) {
	r, err = outcome(r, err)
	if s.sent[i] = (Sent{r.Code, r.Detail, r.ForGood, r.Duplicate, r.ID, r.Seq, s.mails[i].Chain != 0}); err != nil {
		s.err = err
	} else {
		s.b.noteSent(s.mails[i].Letter, r)
	}
	s.answered()
}

// outcome returns what became of a record. The error is ErrUnknown.
func outcome(r box.Result, err error) (box.Result, error) {
	switch {
	case err == nil:
		return r, nil
	case errors.Is(err, store.ErrFull):
		return box.Result{Code: proto.CodeFull, Detail: err.Error()}, nil
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, box.ErrBadRecord):
		return box.Result{Code: proto.CodeBadForm, Detail: err.Error(), ForGood: true}, nil
	}
	return box.Result{}, fmt.Errorf("%w: %w", ErrUnknown, err)
}

func (s *Sending) answered() {
	if s.left--; s.left > 0 {
		return
	}
	if s.err == nil { // the log has answered each record, and the state keeps none
		s.free()
		s.records = nil
	}
	close(s.done)
}
