package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/balefire/balefire/proto"
)

// A path may come to carry less than it did, when a tunnel begins or another provider
// takes over, and what would tell of it is lost. QUIC goes on to send packets of the old
// size, and all of them vanish: a black hole (RFC 8899, section 4.3). It is looked for
// while an acknowledgement is late, with PINGs that fill packets. If none is answered,
// and QUIC hears of hardly any packet that it was received, the connection is given up
// for a new one, which begins with small packets.

const (
	fullPing       = 3000 // bytes; it fills two packets, whatever the path carries
	fullPings      = 3
	holeCheckEvery = 500 * time.Millisecond // between two looks, and two full PINGs
	minLate        = time.Second            // an acknowledgement is late then at the earliest
	minHoleWait    = 1500 * time.Millisecond
	minHoleRetry   = 5 * time.Second // before it is looked for again where there was none
)

// errBlackHole ends a connection on which nothing of full size passes.
var errBlackHole = errors.New("transport: the path swallows packets of full size")

// pendingAcks is since when a connection is owed acknowledgements, of frames and of bodies.
type pendingAcks struct {
	wake chan struct{} // told when something is owed after nothing was looked for

	mu        sync.Mutex
	watched   bool          // that the heartbeat knows of it
	linkSince time.Duration // monotonic time of the last acknowledgement, or since there is anything to acknowledge; 0: nothing
	bodySince time.Duration // likewise
	bodyCount int           // bodies that are being sent
}

// setLink notes that frames wait for an acknowledgement, or none do.
func (o *pendingAcks) setLink(now time.Duration, waits bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.linkSince = 0; waits {
		o.linkSince = max(now, 1)
		o.wakeHeartbeat()
	}
}

// addBody notes that a body begins (1), goes on (0) or ends (-1).
func (o *pendingAcks) addBody(now time.Duration, more int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.bodyCount += more
	if o.bodySince = 0; o.bodyCount > 0 {
		o.bodySince = max(now, 1)
		o.wakeHeartbeat()
	}
}

// wakeHeartbeat wakes the heartbeat. The caller holds mu.
func (o *pendingAcks) wakeHeartbeat() {
	if !o.watched {
		o.watched = true
		notify(o.wake)
	}
}

// since returns how long what is owed is owed; ok is false if nothing is: then the next
// thing that is owed is told.
func (o *pendingAcks) since(now time.Duration) (d time.Duration, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.linkSince > 0 {
		d, ok = now-o.linkSince, true
	}
	if o.bodySince > 0 {
		d, ok = max(d, now-o.bodySince), true
	}
	o.watched = ok
	return d, ok
}

// A blackHole finds out whether full packets pass.
type blackHole struct {
	mu         sync.Mutex
	unanswered int           // full PINGs without an answer
	since      time.Duration // since when the last one is waited for
	notBefore  time.Duration // not to be looked for before

	progress int // since then: steps since whose last one QUIC heard that packets were received
}

// step decides at now what is done: send a full PING, or give the connection up. rtt is
// the longest round trip of late; moved says that packets were received since the last step.
func (b *blackHole) step(now, late, rtt, heartbeat time.Duration, moved bool) heartbeatAction {
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
	switch {
	case now-b.since < waits:
		return noAction
	case b.progress > int(waits/heartbeat): // a slow path: more than heartbeats passes
		b.begin(now)
		return noAction
	}
	return giveUp
}

func (b *blackHole) begin(now time.Duration) { b.since, b.progress = now, 0 }

// passed notes the answer to a full PING, which took so long: for a while nothing is
// looked for, so that a slow path does not carry this alone.
func (b *blackHole) passed(now, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unanswered, b.notBefore = 0, now+max(minHoleRetry, 10*took)
}

// A quicStats is what QUIC knows of a connection. Of TCP and of circuits nothing is known.
type quicStats struct {
	known    bool
	rtt      time.Duration // the last round trip, or the mean one if that is longer: it grows with the queues on the path
	progress bool          // the other side has received packets since the last glance
}

// rttSample are QUIC's figures of round trips: one of them changes with each packet of which
// it hears that it was received.
type rttSample [3]time.Duration

// quicStats looks at c; last is what it keeps for the next time.
func (c *conn) quicStats(last *rttSample) (g quicStats) {
	var q *quic.Conn
	if !c.direct() || !c.raw.As(&q) {
		return g
	}
	s := q.ConnectionStats()
	now := rttSample{s.LatestRTT, s.SmoothedRTT, s.MeanDeviation}
	g = quicStats{known: true, rtt: max(s.SmoothedRTT, s.LatestRTT), progress: now != *last}
	*last = now
	return g
}

// checkBlackHole takes a step on c.
func (t *Transport) checkBlackHole(ctx context.Context, c *conn, g quicStats, now time.Duration) error {
	late, owes := c.pendingAcks.since(now)
	if !owes || !g.known {
		return nil
	}
	switch c.hole.step(now, late, max(time.Duration(c.rtt.Load()), g.rtt), t.cfg.Timing.Busy, g.progress) {
	case giveUp:
		t.closeDirect(c)
		return errBlackHole
	case sendPing:
		t.group.start(func(context.Context) { t.sendFullPing(ctx, c) })
	}
	return nil
}

// closeDirect closes the direct connections to the peer of c: they go the same way.
func (t *Transport) closeDirect(c *conn) {
	t.mu.Lock()
	all := slices.Clone(t.peer(c.peer).conns)
	t.mu.Unlock()
	for _, o := range all {
		if o != c && o.direct() {
			o.raw.Close()
		}
	}
}

// sendFullPing sends a full PING and waits for its answer, on a stream of its own: what
// vanishes holds up all behind it on its stream.
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

// serveEcho answers a full PING.
func (t *Transport) serveEcho(_ context.Context, s *stream) error {
	s.idleTimeout = t.cfg.Timing.Hello
	m := new(proto.Message)
	if err := s.next(m); err != nil {
		return err
	}
	if m.GetType() != proto.TypePing || len(m.GetPayload()) > fullPing {
		return fmt.Errorf("%w: message type %d with %d bytes on an echo stream", ErrProtocol, m.GetType(), len(m.GetPayload()))
	}
	if err := s.send(&proto.Message{Type: proto.TypePong}); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return s.finish()
}
