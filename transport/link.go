package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// ErrLinkDown is returned by a link after its stream closed. Unacknowledged messages may
// or may not have arrived: send them again on the next link.
var ErrLinkDown = errors.New("transport: the link is down")

// ErrNoAck closes a link whose other side stopped acknowledging.
var ErrNoAck = errors.New("transport: no acknowledgment in time")

// errMoved closes a link in favor of one on a better connection.
var errMoved = errors.New("transport: the link moved to a better path")

// ErrBadAck closes a link whose other side acknowledges what was not sent.
var ErrBadAck = errors.New("transport: bad acknowledgment")

// A Link is the outgoing task stream to one peer, with a lease stream. DATA, RESULT and CANCEL frames are
// numbered from 1 in send order; MARK is not numbered. One goroutine may send while
// another reads the answers.
type Link struct {
	sender
	cfg     Config
	answers chan *proto.Ack
	sending sync.Mutex // held by Send
	leases  *sender    // of small messages about leases; nil: they go on the task stream
	mail    linkMail

	ackMark   time.Duration // time of the last look at the frames in flight; guarded by mu, as moveTimer
	moveTimer *time.Timer   // while closing: the link closes when all is acknowledged, or at the latest then
}

func newLink(c *conn, s *stream, cfg Config) *Link {
	return &Link{sender: newSender(c, s), cfg: cfg, answers: make(chan *proto.Ack, 16), mail: newLinkMail()}
}

// Peer returns the link's peer.
func (l *Link) Peer() proto.PeerID { return l.conn.peer }

// Send queues msgs in order and returns when the last one is queued, not when it is
// acknowledged. It blocks while the window is full. An error other than ErrLinkDown or
// that of ctx identifies a message that cannot be sent at all; those before it are
// queued.
func (l *Link) Send(ctx context.Context, msgs []*proto.Message) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	for i, m := range msgs {
		if err := l.waitOpen(ctx); err != nil {
			return err
		}
		if err := l.queue(m); err != nil {
			return fmt.Errorf("message %d of %d to %s: %w", i+1, len(msgs), l.Peer().Short(), err)
		}
	}
	return nil
}

func (l *Link) queue(m *proto.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.down()
	}
	size, err := l.appendFrame(m)
	if err != nil || !placeOf(m.GetType()).numbered {
		return err
	}
	now := l.cfg.Clock.Mono()
	if l.win.len() == 0 {
		l.setAckDeadline(size)
		l.ackMark = now
		l.conn.pendingAcks.setLink(now, true)
	}
	l.win.add(size, now)
	l.conn.work.frames.Store(int64(l.win.bytes))
	l.conn.inflight.Store(int32(l.win.len()))
	return nil
}

// Answers returns the next Ack, with this link's frame numbers. It returns ErrLinkDown
// when the link has closed and every Ack was returned.
func (l *Link) Answers(ctx context.Context) (*proto.Ack, error) {
	select {
	case a := <-l.answers:
		return a, nil
	default:
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-l.answers:
		return a, nil
	case <-l.done:
	}
	select {
	case a := <-l.answers:
		return a, nil
	default:
		return nil, l.down()
	}
}

// run writes and reads until the stream closes or ctx is done.
func (l *Link) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := l.stream.unblock(ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-l.done: // the caller of end may hold locks, so closing is done here
			cancel()
		case <-ctx.Done():
		}
	})
	wg.Go(func() {
		err := l.writeAll(ctx.Done(), l.stream.write, l.checkMoved)
		l.end(cmp.Or(err, context.Cause(ctx)))
		cancel()
	})
	if l.leases != nil {
		wg.Go(func() {
			err := l.runLeases(ctx)
			l.end(cmp.Or(context.Cause(ctx), err))
			cancel()
		})
	}
	wg.Go(func() { l.runMail(ctx) })
	l.end(l.readAcks(ctx))
	cancel()
	wg.Wait()
	l.conn.inflight.Store(0)
	l.conn.work.frames.Store(0)
	l.conn.pendingAcks.setLink(0, false)
}

// end records why the link closed; the first reason counts.
func (l *Link) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(err)
}

func (l *Link) endLocked(err error) {
	if l.moveTimer != nil {
		l.moveTimer.Stop()
	}
	l.sender.endLocked(err)
}

// checkMoved closes a moving link that has nothing to wait for anymore.
func (l *Link) checkMoved() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endIfMoved()
}

// readAcks reads Acks, opens the window and passes them on.
func (l *Link) readAcks(ctx context.Context) error {
	for {
		l.mu.Lock()
		l.setAckDeadline(0)
		l.mu.Unlock()
		var m proto.Message
		if err := l.stream.rd.Next(&m); err != nil {
			return l.readError(err)
		}
		if m.GetType() != proto.TypeAck {
			return fmt.Errorf("%w: a message of type %d instead", ErrBadAck, m.GetType())
		}
		a := new(proto.Ack)
		if err := proto.DecodeKnown(m.GetPayload(), a); err != nil {
			return err
		}
		if err := l.release(a); err != nil {
			return err
		}
		select {
		case l.answers <- a:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		l.checkMoved()
	}
}

func (l *Link) release(a *proto.Ack) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := checkAck(a, l.win.first(), l.win.next-1); err != nil {
		return err
	}
	now, before := l.cfg.Clock.Mono(), l.win.bytes
	l.win.ack(a.GetUpTo(), now)
	l.conn.addAcked(before-l.win.bytes, now-l.ackMark, before >= loadBytes)
	l.ackMark = now
	l.conn.work.frames.Store(int64(l.win.bytes))
	l.conn.inflight.Store(int32(l.win.len()))
	l.conn.pendingAcks.setLink(now, l.win.len() > 0)
	notify(l.room)
	return nil
}

// moveTime limits how long a link waits for its last Acks before it moves. Frames without
// one by then are sent again on the next link.
const moveTime = 10 * time.Second

// move closes the link without loss: it accepts no more messages, and closes when all
// accepted ones are acknowledged.
func (l *Link) move() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing && l.err == nil {
		l.closing = true
		l.moveTimer = time.AfterFunc(moveTime, func() { l.end(errMoved) })
		l.endIfMoved()
	}
}

// endIfMoved closes a moving link that has nothing to wait for. The caller holds mu.
func (l *Link) endIfMoved() {
	if l.closing && l.win.len() == 0 && len(l.out) == 0 {
		l.endLocked(errMoved)
	}
}

// checkAck checks a against the unacknowledged frames first to last.
func checkAck(a *proto.Ack, first, last uint64) error {
	if a.GetFrom() != first || a.GetUpTo() < first || a.GetUpTo() > last || a.GetUpTo()-first >= proto.MaxGroup {
		return fmt.Errorf("%w: frames %d to %d, but %d to %d are unacknowledged", ErrBadAck, a.GetFrom(), a.GetUpTo(), first, last)
	}
	at := first
	for _, r := range a.GetRefusals() {
		if r.GetNumber() < at || r.GetNumber() > a.GetUpTo() || r.GetCode() == 0 {
			return fmt.Errorf("%w: refusal of frame %d with code %d", ErrBadAck, r.GetNumber(), r.GetCode())
		}
		at = r.GetNumber() + 1
	}
	return nil
}

// setAckDeadline sets the deadline for the next Ack, if one is due. The caller holds mu;
// extra bytes are about to be in flight. Posted messages may be ahead of them.
func (l *Link) setAckDeadline(extra int) {
	if l.win.len() == 0 && extra == 0 {
		l.stream.SetReadDeadline(time.Time{})
		return
	}
	// assumes at least 2 KiB/s: a narrow link carries other things too
	slack := time.Duration(min(l.win.bytes+extra+l.writing.bytes+l.posts.bytes, 1<<20)) * time.Second / (2 << 10)
	l.stream.SetReadDeadline(time.Now().Add(l.cfg.Timing.Ack + slack))
}

func (l *Link) readError(err error) error {
	if isTimeout(err) {
		return fmt.Errorf("%w: %w", ErrNoAck, err)
	}
	return fmt.Errorf("read: %w", err)
}

// isTimeout reports whether a deadline passed.
func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// notify wakes a receiver on c, once.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
