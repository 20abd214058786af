package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/balefire/balefire/proto"
)

// The MTU of a path may shrink, when a tunnel starts or another provider takes over, and
// the notification of it may be lost. QUIC then keeps sending packets of the old size,
// which all vanish: a black hole (RFC 8899, section 4.3). While an acknowledgment is
// late, it is detected with PINGs that fill packets. If none is answered, and QUIC learns
// of hardly any received packet, the connection is closed in favor of a new one, which
// starts with small packets.

const (
	fullPing       = 3000 // bytes; fills at least two packets on any path
	fullPings      = 3
	holeCheckEvery = 500 * time.Millisecond // between two checks, and between two full PINGs
	minLate        = time.Second            // minimum after which an acknowledgment is late
	minHoleWait    = 1500 * time.Millisecond
	maxHoleWait    = time.Minute     // for a narrow path
	minHoleRetry   = 5 * time.Second // between two searches

	// holeBytes divided by the rate of a path is how long its full PINGs may take at least.
	// On a narrow path that loses many packets, QUIC may hear nothing for ten seconds.
	holeBytes = 160_000
)

// errBlackHole closes a connection on which no full-size packet passes.
var errBlackHole = errors.New("transport: the path drops full-size packets")

// pendingAcks records since when acknowledgments, of frames, bodies and mail, are pending
// on a connection.
type pendingAcks struct {
	wake chan struct{} // signaled when an acknowledgment becomes pending while unwatched

	mu        sync.Mutex
	watched   bool          // the heartbeat watches them
	linkSince time.Duration // monotonic time of the last acknowledgment, or since one is pending; 0: none is
	sendSince time.Duration // likewise, for bodies and mail
	sends     int           // bodies being sent, and mail streams with something in flight
	busySince time.Duration // since when, without interruption, some are pending; 0: none is
}

// setLink sets whether acknowledgments of frames are pending.
func (o *pendingAcks) setLink(now time.Duration, waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.linkSince = 0; waits {
		o.linkSince = max(now, 1)
		o.wakeHeartbeat()
	}
	o.setBusy(now)
}

// setBusy updates busySince. The caller holds mu.
func (o *pendingAcks) setBusy(now time.Duration) {
	switch {
	case o.linkSince == 0 && o.sendSince == 0:
		o.busySince = 0
	case o.busySince == 0:
		o.busySince = max(now, 1)
	}
}

// busy returns for how long, without interruption, acknowledgments have been pending, and
// the time since the last one; 0: none is pending.
func (o *pendingAcks) busy(now time.Duration) (busy, late time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busySince == 0 {
		return 0, 0
	}
	return now - o.busySince, now - max(o.linkSince, o.sendSince)
}

// addSend records that a body, or mail in flight, starts (1), progresses (0) or ends (-1).
func (o *pendingAcks) addSend(now time.Duration, more int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sends += more
	if o.sendSince = 0; o.sends > 0 {
		o.sendSince = max(now, 1)
		o.wakeHeartbeat()
	}
	o.setBusy(now)
}

// wakeHeartbeat wakes the heartbeat. The caller holds mu.
func (o *pendingAcks) wakeHeartbeat() {
	if !o.watched {
		o.watched = true
		notify(o.wake)
	}
}

// since returns how long acknowledgments have been pending. ok is false if none are; the
// next pending one then wakes the heartbeat.
func (o *pendingAcks) since(now time.Duration) (d time.Duration, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.linkSince > 0 {
		d, ok = now-o.linkSince, true
	}
	if o.sendSince > 0 {
		d, ok = max(d, now-o.sendSince), true
	}
	o.watched = ok
	return d, ok
}

// A blackHole detects whether full-size packets pass.
type blackHole struct {
	mu         sync.Mutex
	unanswered int           // unanswered full PINGs
	since      time.Duration // when the last one was sent
	notBefore  time.Duration // no search before

	progress int // steps since then in which QUIC learned of received packets
}

// step returns the action at now: send a full PING, or give up the connection. rtt is the
// longest recent round trip; rate is in bytes per second, 0 if it is unknown; moved: packets
// were received since the last step.
func (b *blackHole) step(now, late, rtt, heartbeat time.Duration, rate float64, moved bool) heartbeatAction {
	b.mu.Lock()
	defer b.mu.Unlock()
	if moved {
		b.progress++
	}
	switch {
	case late < max(minLate, 4*rtt):
		b.unanswered = 0
		return noAction
	case now < b.notBefore:
		return noAction
	case b.unanswered < fullPings:
		b.unanswered++
		b.begin(now)
		return sendPing
	}
	waits := max(minHoleWait, 6*rtt)
	if rate > 0 {
		waits = max(waits, min(maxHoleWait, time.Duration(holeBytes/rate*float64(time.Second))))
	}
	switch {
	case now-b.since < waits:
		return noAction
	case b.progress > int(waits/heartbeat): // a slow path: more than heartbeats gets through
		b.begin(now)
		return noAction
	}
	return giveUp
}

func (b *blackHole) begin(now time.Duration) { b.since, b.progress = now, 0 }

// passed records the answer to a full PING, which took took. The next search waits, so
// that a slow path does not carry only these.
func (b *blackHole) passed(now, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unanswered, b.notBefore = 0, now+max(minHoleRetry, 10*took)
}

// quicStats is what QUIC knows about a connection. For TCP and circuits it is unknown.
type quicStats struct {
	known    bool
	rtt      time.Duration // the larger of the last and the mean round trip: it grows with the queues on the path
	progress bool          // the other side has received packets since the last sample

	sent, received uint64 // packets so far
}

// An rttSample holds QUIC's round-trip statistics. At least one of them changes with each
// acknowledged packet.
type rttSample [3]time.Duration

// quicStats samples c; last keeps state between calls.
func (c *conn) quicStats(last *rttSample) (g quicStats) {
	var q *quic.Conn
	if !c.direct() || !c.raw.As(&q) {
		return g
	}
	s := q.ConnectionStats()
	now := rttSample{s.LatestRTT, s.SmoothedRTT, s.MeanDeviation}
	g = quicStats{known: true, rtt: max(s.SmoothedRTT, s.LatestRTT), progress: now != *last, sent: s.PacketsSent, received: s.PacketsReceived}
	*last = now
	return g
}

// checkBlackHole performs a step on c.
func (t *Transport) checkBlackHole(ctx context.Context, c *conn, g quicStats, now time.Duration) error {
	late, owes := c.pendingAcks.since(now)
	if !owes || !g.known {
		return nil
	}
	switch c.hole.step(now, late, max(time.Duration(c.rtt.Load()), g.rtt), t.cfg.Timing.Busy, c.meter.path().Rate, g.progress) {
	case giveUp:
		t.peers.closeDirect(c)
		return errBlackHole
	case sendPing:
		t.group.start(func(context.Context) { t.sendFullPing(ctx, c) })
	}
	return nil
}

// sendFullPing sends a full PING and waits for its answer, on its own stream: a lost
// packet blocks everything after it on the same stream.
func (t *Transport) sendFullPing(ctx context.Context, c *conn) {
	began := c.clock.Mono()
	s, err := openStream(ctx, c, streamEcho, proto.MaxControl, t.cfg.Timing)
	if err != nil {
		return
	}
	defer s.Reset()
	defer s.unblock(ctx)()
	s.idleTimeout = t.cfg.Timing.Ack
	if err = s.send(&proto.Message{Type: proto.TypePing, Payload: make([]byte, fullPing)}); err == nil {
		_, err = s.expect(proto.TypePong)
	}
	if err == nil {
		now := c.clock.Mono()
		c.hole.passed(now, now-began)
	}
}

// serveEcho answers full PINGs, at most as many as a train has.
func (t *Transport) serveEcho(_ context.Context, s *stream) error {
	s.idleTimeout = t.cfg.Timing.Hello
	for i := range trainPings {
		m := new(proto.Message)
		if err := s.next(m); err != nil {
			if i > 0 && !isOffense(err) {
				return nil // a single PING
			}
			return err
		}
		if m.GetType() != proto.TypePing || len(m.GetPayload()) > fullPing {
			return fmt.Errorf("%w: message type %d with %d bytes on an echo stream", ErrProtocol, m.GetType(), len(m.GetPayload()))
		}
		if err := s.send(&proto.Message{Type: proto.TypePong}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	t.peers.noteCompared(s.conn.peer)
	return s.finish()
}
