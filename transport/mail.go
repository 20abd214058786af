package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// ErrNoMail is returned for a peer that takes no messages about mail.
var ErrNoMail = errors.New("transport: the peer takes no mail")

// A MailStream carries messages about mail to the peer of a link, in order. An answer comes
// on the mail stream of the other side.
//
// What is not acknowledged is bounded by a window, as on a task stream, and the peer
// acknowledges a message only after its [Config].Mail has returned. So a peer that is slow
// to take mail blocks Send, and nothing else on the connection.
//
// The stream closes with its link, also when that moves to a better path, and may be reset
// by the peer alone. Then messages may be lost: whoever waits for an answer watches Done
// and sends again on the next stream.
type MailStream struct {
	sender
	turn chan struct{} // held by Send
}

// linkMail is the state of a link's mail streams.
type linkMail struct {
	turn     chan struct{} // held by Mail, and guards the fields up to failures
	last     *MailStream   // nil: none so far
	opening  time.Duration // monotonic time of the last attempt to open one; 0: none
	failures int           // consecutive

	opened chan *MailStream // received by the link's run
	ended  func(error)      // called with why a stream closed
}

func newLinkMail() linkMail {
	return linkMail{turn: make(chan struct{}, 1), opened: make(chan *MailStream)}
}

// TakesMail reports whether p is connected and takes messages about mail.
func (t *Transport) TakesMail(p proto.PeerID) bool {
	c := t.peers.best(p)
	return c != nil && slices.Contains(c.hello.GetFeatures(), proto.FeatureMail)
}

// Mail returns the mail stream of the link, which it opens if there is none. After one has
// failed it first waits, longer each time. The error is ErrNoMail for a peer that takes no
// mail, ErrLinkDown after the link has closed, that of ctx, or one that may pass.
func (l *Link) Mail(ctx context.Context) (*MailStream, error) {
	if !slices.Contains(l.conn.hello.GetFeatures(), proto.FeatureMail) {
		return nil, fmt.Errorf("%w: %s", ErrNoMail, l.Peer().Short())
	}
	select {
	case l.mail.turn <- struct{}{}:
		defer func() { <-l.mail.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, l.down()
	}
	if m := l.mail.last; m != nil && !m.closed() {
		return m, nil
	}
	if err := l.pauseMail(ctx); err != nil {
		return nil, err
	}
	s, err := openStream(ctx, l.conn, streamMail, proto.MaxFrame, l.cfg.Timing)
	if err != nil {
		return nil, err
	}
	m := &MailStream{sender: newSender(l.conn, s), turn: make(chan struct{}, 1)}
	select {
	case l.mail.opened <- m:
		l.mail.last = m
		return m, nil
	case <-l.done:
		s.Reset()
		return nil, l.down()
	}
}

// pauseMail waits before another mail stream is opened.
func (l *Link) pauseMail(ctx context.Context) error {
	m := &l.mail
	now := l.cfg.Clock.Mono()
	if now-m.opening > l.cfg.Timing.Ack {
		m.failures = 0
	}
	if m.opening > 0 {
		m.failures++
		timer := time.NewTimer(linkPause(m.failures, rand.Float64()))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-l.done:
			return l.down()
		}
	}
	m.opening = max(l.cfg.Clock.Mono(), 1)
	return nil
}

// runMail runs the mail streams of the link until ctx is done.
func (l *Link) runMail(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case m := <-l.mail.opened:
			wg.Go(func() { l.mail.ended(m.run(ctx)) })
		case <-ctx.Done():
			return
		}
	}
}

// Peer returns the peer of the stream.
func (m *MailStream) Peer() proto.PeerID { return m.conn.peer }

// Send queues a message and returns before it is acknowledged. It blocks while the window
// is full. The error is ErrLinkDown after the stream has closed, that of ctx, after which
// the message was not sent, or that of a message that cannot be sent at all.
func (m *MailStream) Send(ctx context.Context, msg *proto.Message) error {
	if placeOf(msg.GetType()).stream != streamMail {
		return fmt.Errorf("%w: a message of type %s is not about mail", ErrProtocol, msg.GetType())
	}
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return ctx.Err()
	case <-m.done:
		return m.down()
	}
	if err := m.waitOpen(ctx); err != nil {
		return err
	}
	if err := m.queue(msg); err != nil {
		return fmt.Errorf("%s to %s: %w", msg.GetType(), m.Peer().Short(), err)
	}
	return nil
}

// Progress returns how many messages Send has queued, and how many of them the peer has
// received.
func (m *MailStream) Progress() (sent, received uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.win.next - 1, m.win.first() - 1
}

func (m *MailStream) queue(msg *proto.Message) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.down()
	}
	size, err := m.appendFrame(msg)
	if err != nil {
		return err
	}
	now := m.conn.clock.Mono()
	if m.win.len() == 0 {
		m.conn.pendingAcks.addSend(now, 1)
	}
	m.win.add(size, now)
	m.conn.work.mail.Add(int64(size))
	return nil
}

// run writes and reads until the stream closes or ctx is done, and returns why.
func (m *MailStream) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer m.stream.unblock(ctx)()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := m.writeAll(ctx.Done(), m.write, func() {})
		m.end(cmp.Or(err, context.Cause(ctx)))
		cancel()
	})
	m.end(m.readAcks())
	cancel()
	wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.win.len() > 0 {
		m.conn.pendingAcks.addSend(m.conn.clock.Mono(), -1)
	}
	m.conn.work.mail.Add(-int64(m.win.bytes))
	return m.err
}

// write writes b without a deadline: the peer may be slow to take mail, and the heartbeat
// closes a connection that is dead.
func (m *MailStream) write(b []byte) error { return m.stream.writePaced(b, 0) }

func (m *MailStream) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked(err)
}

// readAcks reads Acks and opens the window.
func (m *MailStream) readAcks() error {
	for {
		b, err := m.stream.expect(proto.TypeAck)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		var a proto.Ack
		if err := proto.DecodeKnown(b, &a); err != nil {
			return err
		}
		if err := m.release(&a); err != nil {
			return err
		}
	}
}

func (m *MailStream) release(a *proto.Ack) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := checkAck(a, m.win.first(), m.win.next-1); err != nil {
		return err
	}
	if len(a.GetRefusals()) > 0 {
		return fmt.Errorf("%w: refusals on a mail stream", ErrBadAck)
	}
	now, before := m.conn.clock.Mono(), m.win.bytes
	m.win.ack(a.GetUpTo(), now)
	m.conn.work.mail.Add(int64(m.win.bytes - before))
	if m.win.len() > 0 {
		m.conn.pendingAcks.addSend(now, 0)
	} else {
		m.conn.pendingAcks.addSend(now, -1)
	}
	notify(m.room)
	return nil
}
