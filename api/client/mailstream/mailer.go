package mailstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// gather is how long a mail waits for others to be sent with it.
const gather = time.Millisecond

// A Mailer sends mail in batches: what comes within a millisecond is one. It numbers the mails
// that have no dedupe key, so that one that is sent again is there once. Its methods are safe
// for concurrent use; they work while [Mailer.Run] runs.
type Mailer struct {
	c        *Client
	producer proto.ProducerID
	wake     chan struct{} // has one if mail waits

	mu      sync.Mutex
	number  uint64 // of the last mail
	waiting []*posted
	sent    []batch // that have no answer yet, in order
	ref     uint32  // of the last one
	ended   error
}

type posted struct {
	mail     wire.FramedMail
	numbered bool // by its mailer
	sent     Sent
	err      error
	done     chan struct{} // closed when sent and err are set
}

type batch struct {
	ref    uint32
	behind uint64 // the last number before those of its mails
	mails  []*posted
}

// Mailer returns a mailer. It sends nothing: see [Mailer.Run].
func (c *Client) Mailer() *Mailer {
	m := &Mailer{c: c, wake: make(chan struct{}, 1)}
	_, _ = rand.Read(m.producer[:]) // it never fails
	return m
}

// Send sends a mail: when it returns, the mail is on the disk of the node. If ctx ends before,
// it may be there: to send it again, give it a dedupe key the first time.
func (m *Mailer) Send(ctx context.Context, mail wire.Mail) (Sent, error) {
	p := &posted{numbered: mail.Dedupe == "" && mail.Producer == "", done: make(chan struct{})}
	number := proto.Produced{}
	if p.numbered {
		number = proto.Produced{Producer: m.producer, Number: 1} // take sets it
	}
	var err error
	if p.mail, err = encode(&mail, number); err != nil {
		return Sent{}, err
	}
	m.mu.Lock()
	err = m.ended
	if err == nil {
		m.waiting = append(m.waiting, p)
	}
	m.mu.Unlock()
	if err != nil {
		return Sent{}, err
	}
	m.signal()
	select {
	case <-p.done:
		return p.sent, p.err
	case <-ctx.Done():
		return Sent{}, fmt.Errorf("send to %s: %w", mail.To, ctx.Err())
	}
}

func (m *Mailer) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx is done. It connects again when a connection breaks, or there is none
// yet. It must be called once.
func (m *Mailer) Run(ctx context.Context) error {
	wait := firstRetry
	for ctx.Err() == nil {
		if conn, err := m.c.dial(ctx); err == nil {
			wait = firstRetry
			m.serve(ctx, conn)
		}
		if backoff(ctx, &wait) != nil {
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = errors.New("mailstream: the mailer has ended")
	for _, b := range append(m.sent, batch{mails: m.waiting}) {
		for _, p := range b.mails {
			p.err = fmt.Errorf("%w: it is unknown whether the mail was sent", m.ended)
			close(p.done)
		}
	}
	m.sent, m.waiting = nil, nil
	return nil
}

// serve sends over a connection until that ends.
func (m *Mailer) serve(ctx context.Context, conn *websocket.Conn) {
	ctx, end := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		defer end()
		in := new(inbound)
		for m.receive(conn, in) == nil {
		}
	})
	work.Go(func() {
		<-ctx.Done()
		_ = conn.Close(websocket.StatusNormalClosure, "") // the goroutine that reads ends with it
	})
	m.mu.Lock()
	again := m.sent
	m.mu.Unlock()
	var err error
	out := new(outbound)
	for _, b := range again {
		if err == nil {
			err = out.write(conn, b)
		}
	}
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-m.wake:
			select {
			case <-ctx.Done():
			case <-time.After(gather):
			}
			for b := m.take(); len(b.mails) > 0 && err == nil; b = m.take() {
				err = out.write(conn, b)
			}
		}
	}
	end()
	work.Wait()
	m.signal() // for what waits
}

// take makes a batch of what waits, which has no mail if nothing does, or if so many have no
// answer that the node would not know the number of the oldest one any more.
func (m *Mailer) take() batch {
	m.mu.Lock()
	defer m.mu.Unlock()
	behind := m.number
	if len(m.sent) > 0 {
		behind = m.sent[0].behind
	}
	n, size := 0, 0
	before := m.number
	for n < min(len(m.waiting), wire.MaxMailBatch) && m.number-behind < proto.ProducerWindow {
		p := m.waiting[n]
		if size += len(p.mail.To) + len(p.mail.Letter); n > 0 && size > 1<<20 {
			break
		}
		if p.numbered {
			m.number++
			proto.SetNumber(p.mail.Letter, m.number)
		}
		n++
	}
	if n == 0 {
		return batch{}
	}
	m.ref++
	b := batch{m.ref, before, append([]*posted(nil), m.waiting[:n]...)}
	m.waiting = append(m.waiting[:0], m.waiting[n:]...)
	m.sent = append(m.sent, b)
	return b
}

// An outbound is what is needed to write a batch. It is used again for the next one.
type outbound struct {
	mails []wire.FramedMail
	msg   []byte
}

func (o *outbound) write(conn *websocket.Conn, b batch) error {
	o.mails = o.mails[:0]
	for _, p := range b.mails {
		o.mails = append(o.mails, p.mail)
	}
	o.msg = wire.AppendMailFrame(o.msg[:0], wire.OpSend, b.ref, func(dst []byte) []byte { return wire.AppendSend(dst, o.mails) })
	clear(o.mails)
	return conn.Write(context.Background(), websocket.MessageBinary, o.msg)
}

// An inbound is what is needed to read a message. It is used again for the next one.
type inbound struct {
	msg     []byte
	results []wire.FramedResult
}

// receive takes the answers of one message.
func (m *Mailer) receive(conn *websocket.Conn, in *inbound) (err error) {
	in.msg, err = readMessage(conn, in.msg[:0])
	for msg := in.msg; err == nil && len(msg) > 0; {
		var f wire.MailFrame
		if f, msg, err = wire.CutMailFrame(msg); err != nil {
			break
		}
		if in.results, err = f.Results(in.results[:0]); err == nil {
			err = m.answer(f.Ref, in.results)
		}
	}
	return err
}

// errAgain ends a connection: its batches are sent again on the next one.
var errAgain = errors.New("mailstream: the node stops")

// answer notes the results of the oldest batch: the node answers in order. What a node that
// stops does not know, or did not take, is asked again: each mail has a number or a dedupe key.
func (m *Mailer) answer(ref uint32, results []wire.FramedResult) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sent) == 0 || m.sent[0].ref != ref || len(m.sent[0].mails) != len(results) {
		return fmt.Errorf("%w: the answer to request %d", wire.ErrBadFrame, ref)
	}
	for _, r := range results {
		if r.Code == wire.CodeUnknown || r.Code == wire.CodeDraining {
			return errAgain
		}
	}
	for i, p := range m.sent[0].mails {
		p.sent, p.err = sentOf(results[i])
		close(p.done)
	}
	m.sent = append([]batch(nil), m.sent[1:]...)
	m.signal() // for what waits until fewer have no answer
	return nil
}
