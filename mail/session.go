package mail

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// ErrGone is returned by a session whose box or subscription was removed.
var ErrGone = errors.New("mail: the box is gone")

// A Reading says what a session reads.
type Reading struct {
	Box          string
	Subscription string // of a topic; "" of a mailbox
	Reader       string // name of the session, for people
	Priority     int    // of a failover subscription: the highest one reads; with [box.Priority] it is first
	Credit       int    // deliveries that may be unsettled at once, at least 1
}

// A Session is one reader of a subscription. Its deliveries are given back when it is
// closed.
type Session struct {
	b     *Broker
	name  string // of the box
	box   box.BoxID
	sub   box.SubID
	state *box.Session

	mu    sync.Mutex
	queue []box.Delivery
	head  int // of the deliveries in queue that Next has not returned
	err   error
	ready chan struct{} // something was added to queue, or err was set

	given []box.Delivery // of the goroutine that calls Next
}

// A Delivery is a mail that was leased to a session.
type Delivery struct {
	Handle      box.Handle
	From        proto.PeerID // the node that it came from; zero: this one
	Letter      []byte       // see [proto.ParseLetter]
	Attempt     int          // 1 for the first
	Redelivered bool         // somebody was given it before, or may have been: it was here before this start
	Lease       time.Duration
}

// Read begins a session. Errors: [box.ErrNotFound], a [*box.HeldError],
// [box.ErrTooManySessions].
func (b *Broker) Read(ctx context.Context, r Reading) (*Session, error) {
	s := &Session{b: b, name: r.Box, ready: make(chan struct{}, 1)}
	var err error
	if e := b.call(ctx, func(box.Now) {
		if s.box, s.sub, err = b.find(r.Box, r.Subscription); err != nil {
			return
		}
		if s.state, err = b.state.Attach(s.box, s.sub, r.Reader, r.Priority, 0); err == nil {
			b.sessions[s.state] = s
			b.state.AddCredit(s.state, max(r.Credit, 1), &b.out)
		}
	}); e != nil {
		s.Close(context.WithoutCancel(ctx), false)
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// path names a subscription as people do.
func path(box, sub string) string {
	if sub == "" {
		return box
	}
	return box + "/" + sub
}

// deliver leases mail to a session.
func (b *Broker) deliver(now box.Now, x *box.Session) {
	s := b.sessions[x]
	if s == nil {
		return
	}
	s.mu.Lock()
	n := len(s.queue)
	s.queue = b.state.Deliver(now, x, maxDeliver, s.queue, &b.out)
	n = len(s.queue) - n
	for _, d := range s.queue[len(s.queue)-n:] {
		b.note(s.box, s.sub, Event{Kind: EventDelivered, Seq: d.Handle.Seq, Attempt: int(d.Attempt), Text: x.Reader, place: d.Place, length: d.Length})
	}
	s.mu.Unlock()
	if n > 0 {
		signal(s.ready)
	}
	if n == maxDeliver {
		b.state.AddCredit(x, 0, &b.out) // go on after the others
	}
}

// maxDeliver is how many mails a session is leased before the others are served.
const maxDeliver = 256

// end ends a session from the side of the broker.
func (b *Broker) end(x *box.Session, err error) {
	s := b.sessions[x]
	if s == nil {
		return
	}
	delete(b.sessions, x)
	s.mu.Lock()
	s.queue, s.head, s.err = nil, 0, err
	s.mu.Unlock()
	signal(s.ready)
}

// maxNext bounds the bytes of the records of one call of Next, unless it is a single one.
const maxNext = 1 << 20

// Next waits for mail and returns at most n deliveries, fewer if they are large, or none if what was
// delivered has ended or cannot be read. The letters of one
// call stay valid. One goroutine calls it. The error is that of ctx, ErrStopped or ErrGone.
func (s *Session) Next(ctx context.Context, n int) ([]Delivery, error) {
	given, _, err := s.NextInto(ctx, n, nil, nil)
	return given, err
}

// NextInto is Next, but appends the deliveries to dst, and their letters to buf: they are valid until
// the caller writes to it.
func (s *Session) NextInto(ctx context.Context, n int, dst []Delivery, buf []byte) ([]Delivery, []byte, error) {
	for {
		s.mu.Lock()
		s.take(n)
		left, err := len(s.queue)-s.head, s.err
		s.mu.Unlock()
		if len(s.given) > 0 {
			if left > 0 {
				signal(s.ready)
			}
			return s.fetch(ctx, dst, buf)
		}
		if err != nil {
			return dst, buf, err
		}
		select {
		case <-ctx.Done():
			return dst, buf, ctx.Err()
		case <-s.ready:
		}
	}
}

// take moves the first deliveries of the queue to given.
func (s *Session) take(n int) {
	s.given = s.given[:0]
	size := 0
	for _, d := range s.queue[s.head:] {
		size += d.Length
		if len(s.given) == n || size > maxNext && len(s.given) > 0 {
			break
		}
		s.given = append(s.given, d)
	}
	s.head += len(s.given)
	if 2*s.head >= len(s.queue) {
		s.queue = s.queue[:copy(s.queue, s.queue[s.head:])]
		s.head = 0
	}
}

// fetch reads the letters of the deliveries in given.
func (s *Session) fetch(ctx context.Context, dst []Delivery, buf []byte) ([]Delivery, []byte, error) {
	mono, now := s.b.cfg.Clock.Boot().Milliseconds(), s.b.cfg.Clock.Now().UnixMilli()
	for i, d := range s.given {
		from := len(buf)
		out, err := s.b.readMail(ctx, box.Kept{Box: s.box, Seq: d.Handle.Seq, Place: d.Place, Length: d.Length}, buf)
		if errors.Is(err, store.ErrNotFound) {
			continue // it has ended meanwhile
		}
		var m box.Mail
		if err == nil {
			m, err = box.MailOf(out[from:len(out):len(out)])
		}
		if IsDamage(err) {
			return dst, buf, s.unread(context.WithoutCancel(ctx), d, s.given[i+1:], err)
		}
		if err != nil {
			return dst, buf, fmt.Errorf("mail: read mail %d: %w", d.Handle.Seq, err)
		}
		buf = out
		if d.Attempt == 1 && !d.Redelivered && len(m.Letter) > 1 {
			s.b.cfg.Observer.Waited(s.name, proto.Class(m.Letter[1]), time.Duration(max(now-m.At, 0))*time.Millisecond)
		}
		dst = append(dst, Delivery{d.Handle, s.b.peer(m.Origin), m.Letter, int(d.Attempt), d.Redelivered || d.Older, time.Duration(max(d.Until-mono, 0)) * time.Millisecond})
	}
	return dst, buf, nil
}

// unread makes a delivery whose record cannot be read a dead letter: all readers would stop at it. What the
// session was given behind it is given back for nothing: it may have to wait for what ends, and comes again.
func (s *Session) unread(ctx context.Context, d box.Delivery, behind []box.Delivery, why error) error {
	return s.b.call(ctx, func(now box.Now) {
		if s.b.sessions[s.state] != s {
			return
		}
		s.b.cfg.Logger.Error("a mail cannot be read: it is a dead letter", "box", s.name, "seq", d.Handle.Seq, "why", why)
		s.mu.Lock()
		behind = slices.Concat(behind, s.queue[s.head:])
		s.queue, s.head = nil, 0
		s.mu.Unlock()
		var all []box.Settlement
		for _, x := range behind {
			all = append(all, box.Settlement{Box: s.box, Sub: s.sub, Handle: x.Handle, Op: box.Return})
		}
		all = append(all, box.Settlement{Box: s.box, Sub: s.sub, Handle: d.Handle, Op: box.Final, Reason: RecordDamaged})
		s.b.state.Settle(now, all, &s.b.out)
		s.b.out.Settled = s.b.out.Settled[:0]
	})
}

// AddCredit lets the session have n more unsettled deliveries.
func (s *Session) AddCredit(ctx context.Context, n int) error {
	return s.b.call(ctx, func(box.Now) { s.b.state.AddCredit(s.state, n, &s.b.out) })
}

// Resume gives back, for nothing, the deliveries that are newer than a number, and those that
// Next has not returned: they did not reach the reader. Nobody may be in a call of Next.
func (s *Session) Resume(ctx context.Context, received uint64) error {
	return s.b.call(ctx, func(box.Now) {
		if s.b.sessions[s.state] != s {
			return
		}
		s.mu.Lock()
		if s.head < len(s.queue) {
			received = min(received, s.queue[s.head].Handle.N-1)
		}
		s.queue, s.head = nil, 0
		s.mu.Unlock()
		s.b.state.TakeBack(s.state, received, &s.b.out)
	})
}

// Close ends the session. If it broke, each delivery that it has is given back at the price
// of an abandon, otherwise for nothing.
func (s *Session) Close(ctx context.Context, broke bool) error {
	return s.b.call(ctx, func(now box.Now) {
		if s.state != nil && s.b.sessions[s.state] == s {
			s.b.end(s.state, ErrStopped)
			s.b.state.Detach(now, s.state, broke, &s.b.out)
		}
	})
}

// Lease begins a session, waits for mail as long as it may, takes at most r.Credit mails and
// leaves: see [Session.Leave]. Without mail it returns nothing and no error.
func (b *Broker) Lease(ctx context.Context, r Reading, wait time.Duration) ([]Delivery, error) {
	s, err := b.Read(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := b.call(ctx, func(box.Now) {}); err != nil { // what waits was delivered before
		return nil, errors.Join(err, s.Leave(context.WithoutCancel(ctx)))
	}
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	var given []Delivery
	for err = nil; err == nil && len(given) == 0; {
		given, err = s.Next(waiting, r.Credit)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return given, errors.Join(err, s.Leave(context.WithoutCancel(ctx)))
}

// Leave ends the session, but not what Next has returned: that stays leased. A subscription
// counts the session as a reader until all of it is settled or lapsed, and until then a new
// session of the same reader continues it.
func (s *Session) Leave(ctx context.Context) error {
	return s.b.call(ctx, func(now box.Now) {
		if s.b.sessions[s.state] != s {
			return
		}
		s.mu.Lock()
		unread := s.queue[s.head:]
		s.mu.Unlock()
		s.b.end(s.state, ErrStopped)
		back := make([]box.Settlement, len(unread))
		for i, d := range unread {
			back[i] = box.Settlement{Box: s.box, Sub: s.sub, Handle: d.Handle, Op: box.Return}
		}
		s.b.state.Settle(now, back, &s.b.out)
		s.b.out.Settled = s.b.out.Settled[:0]
		s.b.state.Leave(s.state, &s.b.out)
	})
}

// A Settlement is what a reader does with a delivery.
type Settlement struct {
	Handle box.Handle
	Op     box.Op
	Delay  time.Duration // of Nack, Defer, Extend and Abandon
	Reason string
	Stderr string // of Nack, Final and Abandon: kept with a dead letter
}

// A Settled is the answer to a settlement.
type Settled struct {
	Code   proto.Code    // CodeOK, CodeStale, CodeBusy (out of order in its lane), CodeBadForm (no such delivery)
	Inline bool          // of Extend: the body of the mail is in its letter
	Lease  time.Duration // of Extend: what is left
}

// Settle settles deliveries of a subscription and returns when the answers are durable. It
// needs no session: a handle is enough.
func (b *Broker) Settle(ctx context.Context, name, sub string, what []Settlement) ([]Settled, error) {
	s, err := b.QueueSettle(name, sub, what)
	if err != nil {
		return nil, err
	}
	return s.Wait(ctx)
}

// A Settling is one call of Settle.
type Settling struct {
	b       *Broker
	settled []Settled
	err     error
	done    chan struct{} // closed when settled and err are set
}

// QueueSettle is Settle without its wait: what is queued first counts first. What is a copy
// when it returns.
func (b *Broker) QueueSettle(name, sub string, what []Settlement) (*Settling, error) {
	s := &Settling{b: b, done: make(chan struct{})}
	in := settlementPool.Get().(*[]box.Settlement)
	for _, w := range what {
		*in = append(*in, box.Settlement{Handle: w.Handle, Op: w.Op, Delay: w.Delay, Reason: w.Reason, Stderr: w.Stderr})
	}
	return s, b.do(func(now box.Now) {
		b.settle(now, s, name, sub, *in)
		if *in = emptied(*in); *in != nil {
			settlementPool.Put(in)
		}
	})
}

var settlementPool = sync.Pool{New: func() any { return new([]box.Settlement) }}

func (b *Broker) settle(now box.Now, s *Settling, name, sub string, in []box.Settlement) {
	id, subID, err := b.find(name, sub)
	if err != nil {
		s.err = err
		close(s.done)
		return
	}
	b.propose(nil)
	for i := range in {
		in[i].Box, in[i].Sub = id, subID
	}
	b.state.Settle(now, in, &b.out)
	s.settled = make([]Settled, len(b.out.Settled))
	for i, r := range b.out.Settled {
		if in[i].Op == box.Ack && r.Code == proto.CodeOK {
			b.handled(now, name, id, subID, in[i].Handle.Seq)
		}
		s.settled[i] = Settled{
			Code: r.Code, Lease: time.Duration(max(r.Until-now.Mono, 0)) * time.Millisecond,
			Inline: in[i].Op == box.Extend && !b.state.HasObject(id, in[i].Handle.Seq),
		}
	}
	b.out.Settled = b.out.Settled[:0]
	if len(b.out.Records) == 0 {
		close(s.done)
		return
	}
	b.propose(func(_ box.Result, failed error) {
		if failed != nil {
			s.err = fmt.Errorf("%w: %w", ErrUnknown, failed)
		}
		close(s.done)
	})
}

// IsDone reports whether Wait returns at once.
func (s *Settling) IsDone() bool {
	select {
	case <-s.done:
		return true
	case <-s.b.ended:
		return true
	default:
		return false
	}
}

// handled tells how long a reader had a mail that it acknowledged.
func (b *Broker) handled(now box.Now, name string, id box.BoxID, sub box.SubID, seq uint64) {
	if at := b.state.DeliveredAt(id, sub, seq); at > 0 {
		b.cfg.Observer.Handled(name, time.Duration(max(now.Mono-at, 0))*time.Millisecond)
	}
}

// Wait returns the answers, as Settle does.
func (s *Settling) Wait(ctx context.Context) ([]Settled, error) {
	select {
	case <-s.done:
		return s.settled, s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-s.b.ended:
		return nil, ErrUnknown
	}
}
