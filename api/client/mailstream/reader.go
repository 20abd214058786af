package mailstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Read says how a box is read. The zero value of each field means its default.
type Read struct {
	Subscription string // of a topic
	Reader       string // who reads, for people and for exclusive subscriptions
	Priority     int    // of a failover subscription: the reader with the highest one has all
	Credit       int    // mails that are delivered before one is settled; default 256, at most 65536
}

// errBroken is returned for a delivery whose connection broke: the mail comes again.
var errBroken = errors.New("mailstream: the connection broke: the mail is delivered again")

// ReadMail returns the mail of a box as it is delivered. Each delivery must be settled, by
// [Delivery.Ack] or another method, before its lease ends. It goes on, over connections that
// break, until the loop ends, ctx is done, or the node refuses: then it ends with an error.
// That of ctx is one. What is not settled when it ends is delivered again.
func (c *Client) ReadMail(ctx context.Context, box string, r Read) iter.Seq2[*Delivery, error] {
	return func(yield func(*Delivery, error) bool) {
		wait, first := firstRetry, true
		for {
			conn, err := c.dial(ctx)
			if err == nil {
				first, wait = false, firstRetry
				s := &session{conn: conn, arrived: make(chan struct{}, 1), wake: make(chan struct{}, 1), answers: map[uint32]chan wire.FramedResult{}}
				if err = s.run(ctx, box, r, yield); err == nil {
					return // the loop has ended
				}
			}
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			refused, ok := errors.AsType[*wire.Problem](err)
			if first || ctx.Err() != nil || ok && refused.Code != wire.CodeDraining || websocket.CloseStatus(err) == websocket.StatusPolicyViolation {
				yield(nil, err)
				return
			}
			if err := backoff(ctx, &wait); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// A session reads one box over one connection. One goroutine receives, and one writes what
// the caller settles.
type session struct {
	conn    *websocket.Conn
	arrived chan struct{} // has one if there are deliveries, or an end
	wake    chan struct{} // has one if there is something to write

	mu         sync.Mutex
	deliveries []*Delivery
	settled    []wire.FramedSettlement
	out        []byte // other frames
	answers    map[uint32]chan wire.FramedResult
	ref        uint32
	err        error // why it ended
}

const (
	sessionNumber = 1
	lastWrite     = 5 * time.Second // for what was settled last
)

// run delivers until the loop of the caller ends, or returns why it could not go on.
func (s *session) run(ctx context.Context, box string, r Read, yield func(*Delivery, error) bool) error {
	read := wire.ReadMail{Box: box, Subscription: r.Subscription, Reader: r.Reader, Priority: int32(r.Priority), Credit: uint64(r.Credit)}
	if r.Credit == 0 {
		read.Credit = 256
	}
	s.out = wire.AppendMailFrame(nil, wire.OpRead, sessionNumber, read.Append)
	signal(s.wake)
	writing, end := context.WithCancel(context.Background())
	var work sync.WaitGroup
	written := make(chan struct{})
	work.Go(s.receive)
	work.Go(func() { defer close(written); s.write(writing) })
	defer func() {
		end()
		select {
		case <-written: // and with it what was settled
		case <-time.After(lastWrite):
		}
		_ = s.conn.Close(websocket.StatusNormalClosure, "")
		work.Wait()
	}()
	for {
		d, err := s.next(ctx)
		if err != nil {
			return err
		}
		if !yield(d, nil) {
			return nil
		}
	}
}

func (s *session) next(ctx context.Context) (*Delivery, error) {
	for {
		s.mu.Lock()
		if len(s.deliveries) > 0 && ctx.Err() == nil {
			d := s.deliveries[0]
			s.deliveries = s.deliveries[1:]
			s.mu.Unlock()
			return d, nil
		}
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-s.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// receive takes what the node sends until the connection ends.
func (s *session) receive() {
	var buf []byte
	for {
		var err error
		buf, err = readMessage(s.conn, buf[:0])
		msg := bytes.Clone(buf) // its letters are those of the deliveries
		for err == nil && len(msg) > 0 {
			var f wire.MailFrame
			if f, msg, err = wire.CutMailFrame(msg); err == nil {
				err = s.take(f)
			}
		}
		signal(s.arrived)
		if err == nil {
			continue
		}
		s.mu.Lock()
		s.err = err
		s.deliveries = nil // they come again
		for _, answer := range s.answers {
			close(answer)
		}
		s.answers = nil
		s.mu.Unlock()
		signal(s.arrived)
		return
	}
}

// take takes one frame.
func (s *session) take(f wire.MailFrame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Op {
	case wire.OpDelivered:
		given, err := f.Deliveries(nil)
		if err != nil {
			return err
		}
		for i := range given {
			d, err := s.delivery(&given[i])
			if err != nil {
				return err
			}
			s.deliveries = append(s.deliveries, d)
		}
	case wire.OpEnd:
		code, detail, home, err := f.End()
		if err == nil && code != "" {
			err = &wire.Problem{Code: code, Title: string(code), Detail: detail, Home: home}
		}
		return err
	case wire.OpSent:
		results, err := f.Results(nil)
		if answer := s.answers[f.Ref]; err == nil && answer != nil && len(results) == 1 {
			answer <- results[0] // it has room for one
			delete(s.answers, f.Ref)
		}
		return err
	}
	return nil
}

// write writes what the caller settles, many at once, until ctx is done and nothing is left.
func (s *session) write(ctx context.Context) {
	for ended := false; !ended; {
		select {
		case <-s.wake:
		case <-ctx.Done():
			ended = true
		}
		s.mu.Lock()
		msg, settled := s.out, s.settled
		s.out, s.settled = nil, nil
		s.mu.Unlock()
		for len(settled) > 0 {
			n := min(len(settled), wire.MaxMailBatch)
			msg = wire.AppendMailFrame(msg, wire.OpSettle, 0, func(b []byte) []byte { return wire.AppendSettle(b, sessionNumber, settled[:n]) })
			settled = settled[n:]
		}
		for len(msg) > 0 {
			n := messageSize(msg)
			if s.conn.Write(context.Background(), websocket.MessageBinary, msg[:n]) != nil {
				return // receive has the error, too
			}
			msg = msg[n:]
		}
	}
}

// messageSize returns how many bytes the first frames have that the node takes in one message.
func messageSize(frames []byte) (n int) {
	for n < len(frames) {
		_, rest, _ := wire.CutMailFrame(frames[n:]) // the session has made them
		end := len(frames) - len(rest)
		if n > 0 && end > wire.MaxMailMessage {
			break
		}
		n = end
	}
	return n
}

// settle queues what was done with a delivery.
func (s *session) settle(w wire.FramedSettlement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return errBroken
	}
	s.settled = append(s.settled, w)
	signal(s.wake)
	return nil
}

// A Delivery is a mail that was leased to its reader. A method that settles it returns at
// once: if the node never hears of it, the mail is delivered again. A body above 256 KiB is not
// in it, it has a Digest: open it with DeliveredBody of package client.
type Delivery struct {
	wire.DeliveredMail        // From is empty; FromID, too, if the mail is from this node
	Letter             []byte // as its node sent it: see [proto.ParseLetter]

	s     *session
	lease wire.FramedLease
}

func (s *session) delivery(x *wire.FramedDelivery) (*Delivery, error) {
	l, err := proto.ParseLetter(x.Letter)
	if err != nil {
		return nil, err
	}
	m := wire.ReceivedMail{
		ID: l.ID.String(), Seq: x.Lease.Seq, Sender: string(l.Sender), Subject: string(l.Subject), Class: l.Class.Name(), Key: string(l.Key), Type: string(l.Type), ContentType: string(l.ContentType),
		Created: proto.Time(l.Created), NotAfter: proto.Time(l.NotAfter), ReplyTo: string(l.ReplyTo), Correlation: string(l.Correlation),
		Trace: string(l.Traceparent), Hops: int(l.Hops), Size: int64(len(l.Body)), Body: l.Body,
	}
	if !l.Object.IsZero() {
		m.Size, m.Digest = int64(l.Object.Size), l.Object.Digest()
	}
	m.RedriveOf, m.FirstID, m.BounceOf = text(l.RedriveOf), text(l.FirstID), text(l.BounceOf)
	if from := proto.PeerID(x.From); !from.IsZero() {
		m.FromID = from.String()
	}
	if len(l.Labels) > 0 {
		m.Labels = maps.Collect(func(yield func(string, string) bool) {
			for name, value := range l.Labels.All() {
				if !yield(string(name), string(value)) {
					return
				}
			}
		})
	}
	return &Delivery{
		DeliveredMail: wire.DeliveredMail{
			Lease: fmt.Sprintf("%d.%d.%d", x.Lease.Seq, x.Lease.Boot, x.Lease.N), Attempt: int(x.Attempt), Redelivered: x.Redelivered,
			Until: time.Now().Add(time.Duration(x.Ms) * time.Millisecond).UTC(), Mail: m,
		},
		Letter: x.Letter, s: s, lease: x.Lease,
	}, nil
}

func text(id proto.MailID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// Ack says that the mail is done.
func (d *Delivery) Ack() error {
	return d.s.settle(wire.FramedSettlement{Op: wire.FrameAck, Lease: d.lease})
}

// Nack says that the mail could not be handled: an attempt is spent, and it is delivered again
// after delay, or if that is 0 after a time that grows with the attempts.
func (d *Delivery) Nack(delay time.Duration, reason string) error {
	return d.later(wire.FrameNack, delay, reason)
}

// Reject says that the mail can never be handled: it becomes a dead letter.
func (d *Delivery) Reject(reason string) error { return d.later(wire.FrameFinal, 0, reason) }

// Defer gives the mail back for a while: no attempt is spent.
func (d *Delivery) Defer(delay time.Duration, reason string) error {
	return d.later(wire.FrameDefer, delay, reason)
}

// Extend lets the lease end after a time from now.
func (d *Delivery) Extend(by time.Duration) error {
	if by < time.Millisecond {
		return fmt.Errorf("%w: extend by %s", wire.ErrInvalid, by)
	}
	return d.later(wire.FrameExtend, by, "")
}

func (d *Delivery) later(op byte, delay time.Duration, reason string) error {
	if delay < 0 || delay > 30*24*time.Hour {
		return fmt.Errorf("%w: a time of %s: must be from 0 to 30 days", wire.ErrInvalid, delay)
	}
	return d.s.settle(wire.FramedSettlement{Op: op, Lease: d.lease, Ms: uint32(delay.Milliseconds()), Reason: []byte(reason[:min(len(reason), proto.MaxReason)])})
}

// Reply sends a mail to the box that the mail names for replies. It returns when that is on
// the disk of the node; the mail itself is still to be acknowledged. What m does not set is as
// [wire.Mail.AsReplyTo] says: class, ordering key and trace are those of the mail, and without a
// dedupe key the reply is sent once, however often the mail is delivered.
func (d *Delivery) Reply(ctx context.Context, m wire.Mail) (Sent, error) {
	if err := m.AsReplyTo(&d.Mail); err != nil {
		return Sent{}, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	framed, err := encode(&m, proto.Produced{})
	if err != nil {
		return Sent{}, err
	}
	answer, err := d.s.send(framed)
	if err != nil {
		return Sent{}, err
	}
	select {
	case r, ok := <-answer:
		if !ok {
			return Sent{}, errBroken
		}
		return sentOf(r)
	case <-ctx.Done():
		return Sent{}, ctx.Err()
	}
}

// send queues a mail. The result is sent to the channel, which is closed if there is none.
func (s *session) send(m wire.FramedMail) (<-chan wire.FramedResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, errBroken
	}
	s.ref++
	answer := make(chan wire.FramedResult, 1)
	s.answers[s.ref] = answer
	s.out = wire.AppendMailFrame(s.out, wire.OpSend, s.ref, func(b []byte) []byte { return wire.AppendSend(b, []wire.FramedMail{m}) })
	signal(s.wake)
	return answer, nil
}
