package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// errSilent closes a connection on which nothing is received anymore.
var errSilent = errors.New("transport: the peer does not respond")

// maxPing bounds the payload of a PING, which is echoed.
const maxPing = 1 << 10

// serveCtl serves the ctl stream until the connection closes, and returns the reason.
func (t *Transport) serveCtl(ctx context.Context, c *conn, s *stream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		cancel(t.heartbeatLoop(ctx, c, s))
		s.Reset()
	})
	err := t.readCtl(ctx, c, s)
	cancel(err)
	s.Reset()
	wg.Wait()
	return context.Cause(ctx)
}

// heartbeatLoop sends queued ctl messages and probes a silent peer.
func (t *Transport) heartbeatLoop(ctx context.Context, c *conn, s *stream) error {
	tick := time.NewTimer(c.clock.Until(t.cfg.Timing.Busy))
	defer tick.Stop()
	p := heartbeat{lastPing: c.heard()}
	var last rttSample
	var storms storm
	defer t.calm(c, noStorm)
	for {
		var m *proto.Message
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m = <-c.ctl:
		case <-c.pendingAcks.wake:
			tick.Reset(holeCheckEvery)
		case <-tick.C:
			now := c.clock.Mono()
			tick.Reset(t.cfg.Timing.nextLook(c, now))
			g := c.quicStats(&last)
			if g.progress { // acknowledgments are received data
				c.touch()
				c.answer()
			}
			if err := t.checkBlackHole(ctx, c, g, now); err != nil {
				return err
			}
			phase := storms.step(now, g)
			if phase == suspected {
				tick.Reset(stormCheck)
			}
			t.calm(c, phase)
			switch p.next(now, c.lifeSign(), t.cfg.Timing.heartbeatEvery(c), c.slack()) {
			case giveUp:
				t.peers.closeHalfOpen(c)
				return errSilent
			case sendPing:
				c.meter.addPing(p.misses > 0 && !c.loaded())
				m = &proto.Message{Type: proto.TypePing, Payload: c.pings.start(now, nil)}
			}
		}
		if m == nil {
			continue
		}
		if err := s.send(m); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
}

// readCtl handles the messages of the ctl stream.
func (t *Transport) readCtl(ctx context.Context, c *conn, s *stream) error {
	for {
		m := new(proto.Message)
		if err := s.next(m); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if err := t.throttle(ctx, c.peer); err != nil {
			return err
		}
		if err := t.control(c, m); err != nil {
			return err
		}
	}
}

// throttle delays reading from a peer that sends more than its rate.
func (t *Transport) throttle(ctx context.Context, p proto.PeerID) error {
	for !t.rates.allow(p, admit.Control) {
		pause := time.NewTimer(100 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return context.Cause(ctx)
		}
	}
	return nil
}

// control handles one message. Unknown types of newer nodes are ignored: only a PING is
// answered on this stream.
func (t *Transport) control(c *conn, m *proto.Message) error {
	switch m.GetType() {
	case proto.TypePing:
		if len(m.GetPayload()) > maxPing {
			return fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(m.GetPayload()))
		}
		pong := &proto.Message{Type: proto.TypePong, Payload: m.GetPayload()}
		if !t.cfg.Clock.Doubted() {
			pong.Timestamp = t.cfg.Clock.Now().UnixNano()
		}
		c.queueCtl(pong)
	case proto.TypePong:
		if rtt, ok := c.pings.finish(m.GetPayload(), c.clock.Mono()); ok {
			c.answer()
			c.rtt.Store(int64(rtt))
			c.rumors.measured(rtt)
			if c.direct() || !c.loaded() {
				c.meter.addRTT(rtt)
			}
			c.work.atLastPong.Store(c.work.received.Load())
			t.greeter.pongClock(c, m.GetTimestamp(), rtt)
		}
	case proto.TypeStarted:
		r := new(proto.Receipts)
		if err := proto.DecodeKnown(m.GetPayload(), r); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		t.recv.Started(c.peer, r)
	case proto.TypeReady:
		r := new(proto.Ready)
		if err := proto.DecodeKnown(m.GetPayload(), r); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if t.cfg.Ready != nil {
			t.cfg.Ready(c.peer, r)
		}
	case proto.TypeLookup, proto.TypeLookupReply:
		if t.cfg.Lookup != nil {
			t.cfg.Lookup(c.peer, m)
		}
	case proto.TypeProbe, proto.TypeProbed:
		if m.GetType() == proto.TypeProbed {
			c.answer()
		}
		if t.cfg.Control != nil {
			t.cfg.Control(c.peer, m)
		}
	case proto.TypeHello:
		h := new(proto.Hello)
		if err := proto.DecodeKnown(m.GetPayload(), h); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		return t.greeter.admitHello(c, h)
	default:
		if !unknown(m.GetType()) {
			return fmt.Errorf("%w: message type %d on a ctl stream", ErrProtocol, m.GetType())
		}
	}
	return nil
}
