package mailbox

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A Letter is a mail of a program in its encoding, and the box that it is for.
type Letter struct {
	To     []byte
	Letter []byte // see [proto.ParseLetter]
}

// An Outcome is what became of a mail: Err is why it was refused.
type Outcome struct {
	ID    proto.MailID
	Seq   uint64 // in its box; 0: the box is on another node, or was when earlier mail was sent, or Known by its number
	Known bool   // the dedupe key or the number was used before; this is the first mail with it
	Err   error
}

// A Queued is mail whose outcome is not known yet.
type Queued struct {
	m    *mailer
	out  []Outcome
	runs []run  // nil when Wait has returned: what it has returned may wait for long
	kept *[]run // from runsPool, where runs goes back to
}

// maxRuns is how many runs keep their slices, each with space for the mails of a send.
const maxRuns = 8

var (
	queuedPool = sync.Pool{New: func() any { return new(Queued) }}
	runsPool   = sync.Pool{New: func() any { return new([]run) }}
)

func newQueued(m *mailer, n int) *Queued {
	q := queuedPool.Get().(*Queued)
	q.m, q.out, q.kept = m, slices.Grow(q.out, n)[:n], runsPool.Get().(*[]run)
	q.runs = *q.kept
	return q
}

// Free lets q, and what Wait has returned, be used for other mail. A caller that does not call it leaves
// them to the garbage collector.
func (q *Queued) Free() {
	clear(q.out)
	q.m, q.out = nil, q.out[:0]
	queuedPool.Put(q)
}

// freeRuns lets the runs be used for other mail.
func (q *Queued) freeRuns() {
	for i := range q.runs {
		r := &q.runs[i]
		clear(r.to)
		*r = run{at: r.at[:0], items: r.items, to: r.to[:0], sent: r.sent}
	}
	if *q.kept = q.runs[:0]; cap(q.runs) > maxRuns {
		*q.kept = nil
	}
	runsPool.Put(q.kept)
	q.runs, q.kept = nil, nil
}

// A run is mail that was queued together.
type run struct {
	at      []int       // in out
	items   []mail.Item // until they are handed over
	to      []place
	sent    []mail.Sent // space for the results
	size    int
	relaxed bool
	away    bool     // for boxes on other nodes
	letters [][]byte // if they are away
	sending *mail.Sending
	err     error
}

// queueMails is [Boxes.QueueMails].
func (m *mailer) queueMails(mails []wire.Mail) *Queued {
	q := newQueued(m, len(mails))
	for i := range mails {
		letter, to, err := m.composer.encode(&mails[i], proto.LetterObject{})
		q.add(i, letter, to, m.composer.mayRelax(mails[i].Relaxed), err)
	}
	return q.flush()
}

// tracedPool has buffers for letters that get a trace context: until they are handed over, which
// copies them.
var tracedPool = sync.Pool{New: func() any { return new([]byte) }}

// queueLetters is [Boxes.QueueLetters].
func (m *mailer) queueLetters(letters []Letter) *Queued {
	q := newQueued(m, len(letters))
	traced := tracedPool.Get().(*[]byte)
	buf := (*traced)[:0]
	var to place
	var toErr error
	for i, x := range letters {
		if i == 0 || string(x.To) != string(letters[i-1].To) {
			to, toErr = m.places.findTarget(string(x.To))
		}
		err, letter := toErr, x.Letter
		var l proto.Letter
		if err == nil {
			l, letter, err = m.composer.checkLetter(letter, to)
		}
		if err == nil && len(l.ReplyTo)+len(l.BounceTo) > 0 {
			letter, err = m.composer.withFullAddresses(letter, l)
		}
		if err == nil && len(l.Traceparent) == 0 {
			from := len(buf)
			buf = proto.TraceLetter(append(buf, letter...), from)
			letter = buf[from:len(buf):len(buf)]
		}
		q.add(i, letter, to, m.composer.mayRelax(l.Flags&proto.LetterRelaxed != 0), err)
	}
	q.flush()
	*traced = buf
	tracedPool.Put(traced)
	return q
}

// add adds mail i, or why it is refused.
func (q *Queued) add(i int, letter []byte, to place, relaxed bool, err error) {
	if err != nil {
		q.out[i].Err = err
		return
	}
	away, n := to.home != q.m.self, len(q.runs)
	if n == 0 || q.runs[n-1].relaxed != relaxed || q.runs[n-1].away != away || len(q.runs[n-1].at) == mail.MaxSend || q.runs[n-1].size+len(letter) > mail.MaxSendBytes {
		if n++; n > cap(q.runs) {
			q.runs = append(q.runs, run{})
		} else {
			q.runs = q.runs[:n] // with the slices of an earlier use
		}
		q.runs[n-1].relaxed, q.runs[n-1].away = relaxed, away
	}
	r := &q.runs[n-1]
	if cap(r.at) == 0 {
		left := min(len(q.out)-i, mail.MaxSend)
		r.at, r.items, r.to = make([]int, 0, left), make([]mail.Item, 0, left), make([]place, 0, left)
	}
	r.at, r.items, r.to, r.size = append(r.at, i), append(r.items, mail.Item{Box: to.name, Letter: letter}), append(r.to, to), r.size+len(letter)
}

// flush hands the broker what was added.
func (q *Queued) flush() *Queued {
	k := q.m.ledger.broker()
	for i := range q.runs {
		r := &q.runs[i]
		switch {
		case r.away: // by Wait; the letters are the caller's
			for _, it := range r.items {
				r.letters = append(r.letters, bytes.Clone(it.Letter))
			}
		case k == nil: // no box here
			r.err = noBox(r.to[0], "")
		default:
			space := r.sent
			r.sent = nil // until Wait has the results: the broker writes to it
			r.sending, r.err = k.QueueSend(r.items, r.relaxed, space)
			r.err = failure(place{}, "", r.err)
		}
		clear(r.items)
		r.items = r.items[:0]
	}
	return q
}

// Wait returns the outcome of each mail. What is queued for other nodes is in order only if
// Wait is called in order.
func (q *Queued) Wait(ctx context.Context) []Outcome {
	for i := range q.runs {
		r := &q.runs[i]
		var sent []mail.Sent
		switch {
		case r.err != nil:
		case r.away:
			sent, r.err = q.m.deliver(ctx, r.to, r.letters, r.relaxed, nil)
			r.letters = nil // the answer may wait
		default:
			if sent, r.err = r.sending.Wait(ctx); r.err == nil {
				r.sent = sent
			}
			r.err = failure(place{}, "", unknown(r.err))
		}
		for j, at := range r.at {
			o := &q.out[at]
			switch {
			case r.err != nil:
				o.Err = r.err
			case sent[j].Code == proto.CodeNoHandler:
				o.Err = noBox(r.to[j], "")
			case sent[j].Code != proto.CodeOK:
				o.Err = refusal(sent[j].Code, r.to[j].text+": "+sent[j].Detail)
			default:
				o.ID, o.Seq, o.Known = sent[j].ID, sent[j].Seq, sent[j].Duplicate
				if sent[j].Spooled {
					o.Seq = 0 // that of the spool
				}
			}
		}
	}
	q.freeRuns()
	return q.out
}

// NextLetters waits for mail and appends at most n deliveries to dst. Their letters are appended to
// buf: they are valid until the caller writes to it. One goroutine calls it.
func (r *Reader) NextLetters(ctx context.Context, n int, dst []mail.Delivery, buf []byte) ([]mail.Delivery, []byte, error) {
	dst, buf, err := r.session.NextInto(ctx, n, dst, buf)
	if err != nil {
		err = r.failure(err)
	}
	return dst, buf, err
}

// Delivered returns deliveries in the form of the API.
func (r *Reader) Delivered(given []mail.Delivery) ([]wire.DeliveredMail, error) {
	return r.reads.views.delivered(r.place, given)
}

// A Settling is what a program did with deliveries, whose results are not known yet.
type Settling struct {
	here  *mail.Settling
	away  *remoteSettle
	place place
	old   []int // those of what an earlier home of the box gave
}

// QueueSettle is [Boxes.Settle] for what was delivered to r, without its wait: see
// [Reader.Settled]. What an earlier home of the box gave is stale.
func (r *Reader) QueueSettle(what []mail.Settlement) (s Settling, err error) {
	p, k := r.at()
	if f, ok := r.session.(*followed); ok {
		what, s.old = f.forHome(p.home, what)
	}
	if s.place = p; k == nil {
		s.away, err = r.reads.settleAway(p, r.sub, what)
		return s, err
	}
	s.here, err = k.QueueSettle(p.name, r.sub, what)
	return s, failure(p, r.sub, err)
}

// Settled waits for the results of what was settled.
func (r *Reader) Settled(ctx context.Context, s Settling) (settled []mail.Settled, err error) {
	if s.away != nil {
		settled, err = r.reads.settledAway(ctx, s.place, r.sub, s.away)
	} else if settled, err = s.here.Wait(ctx); err != nil {
		err = failure(r.place, r.sub, unknown(err))
	}
	if err != nil {
		return nil, err
	}
	for _, i := range s.old {
		settled[i].Code = proto.CodeStale
	}
	return settled, nil
}

// SettledCode returns the word for the result of settling a delivery.
func SettledCode(c proto.Code) string { return settledCodes[c] }
