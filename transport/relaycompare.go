package transport

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// What a node measures on its connections to relays says nothing of what a relay does to
// the circuits that it carries: it may be overloaded, or lie. So while work waits on a
// circuit, it is compared with circuits through the other relays of the peer: a train of
// PINGs is sent on each, including the one in use, and the work moves if another one is
// better. The result replaces the estimate from the two halves of a path.

// Timing and bounds of comparisons.
const (
	compareAfter   = time.Second      // work has waited for so long
	compareFirst   = 15 * time.Second // until the next comparison, doubled each time
	compareLongest = 5 * time.Minute
	compareAgain   = 5 * time.Second    // to confirm a small gain
	comparesFor    = 2 * compareLongest // after a comparison by the other side the relay is left to it
	lateAfter      = 2 * time.Second    // an acknowledgment is late
	measureTTL     = 30 * time.Minute

	expectGain = 0.25 // expected score difference at which circuits are compared while any work is done
	clearGain  = 0.3  // score difference that needs no second comparison, and at which a circuit that hardly carries anything is closed
	brokenRTT  = time.Second
	brokenRate = 64 << 10 // bytes per second
	moveEvery  = time.Minute
	leaveEvery = 10 * time.Second // one that hardly carries anything

	trainPings = 16 // of fullPing bytes each: 48 KiB
	trainTime  = 3 * time.Second
	loadBytes  = 64 << 10 // unacknowledged bytes from which on a path is considered loaded
)

// A circuitRecord is what was measured on the circuits to a peer through one relay.
type circuitRecord struct {
	path   route.Path
	loaded float64       // bytes per second acknowledged while the circuit was loaded; 0: unknown
	at     time.Duration // monotonic
}

// A theirChoice decides whether the relay is left to the other side: while that sends work
// and has compared circuits lately. Its choice rests on measurements, that of a side that
// only receives on the loss of heartbeats. It is used by one goroutine.
type theirChoice struct {
	bytes uint64 // of work received by the last look
}

// holds reports whether the relay is left to the other side at now, which has sent so many
// bytes of work.
func (o *theirChoice) holds(now time.Duration, bytes uint64, compared time.Duration) bool {
	receives := bytes != o.bytes
	o.bytes = bytes
	return receives && compared > 0 && now-compared < comparesFor
}

// A relayWatch decides when the circuits to a peer are compared. It is used by one
// goroutine.
type relayWatch struct {
	next  time.Duration // no comparison before
	pause time.Duration // between the last one and next
	late  bool          // at the last comparison, an acknowledgment was late
	moved time.Duration // when a comparison last changed the path; 0: never
	again bool          // in the last comparison, some relay was better by little

	on     *conn // the load below is of this one
	acked  uint64
	loaded time.Duration // since when it is loaded; 0: it is not
	rate   float64       // bytes per second acknowledged since then
}

// due reports whether work has waited for so long that the circuits should be compared at
// now. busy is how long work has been waiting, late since when there was no acknowledgment.
func (w *relayWatch) due(now, busy, late time.Duration) bool {
	isLate := late >= lateAfter
	if busy < compareAfter || now < w.next && (w.late || !isLate) {
		return false
	}
	w.late = isLate
	return true
}

// sample measures the rate of c while it is loaded.
func (w *relayWatch) sample(c *conn, now time.Duration) {
	acked := c.work.acked.Load()
	switch {
	case c != w.on || c.unacked() < loadBytes:
		w.on, w.loaded, w.rate, w.acked = c, 0, 0, acked
	case w.loaded == 0:
		w.loaded, w.acked = now, acked
	case now-w.loaded >= time.Second:
		w.rate = float64(acked-w.acked) / (now - w.loaded).Seconds()
		if now-w.loaded >= measureEvery { // only the last seconds count
			w.loaded, w.acked = now, acked
		}
	}
}

// decide returns whether to move at now to the best of the other relays, whose score is
// better by gain. broken: the circuit in use hardly carries anything.
func (w *relayWatch) decide(now time.Duration, gain float64, broken bool) (move bool) {
	again, wait := w.again, moveEvery
	w.again = false
	if broken {
		wait = leaveEvery
	}
	switch {
	case gain <= switchMargin:
		w.pause = min(max(compareFirst, 2*w.pause), compareLongest)
	case w.moved > 0 && now-w.moved < wait:
		w.pause = w.moved + wait - now
	case gain < clearGain && !again:
		w.again, w.pause = true, compareAgain
	default:
		w.moved, w.pause = now, 0
		move = true
	}
	w.next = now + max(w.pause, compareAgain)
	return move
}

// A trial is a circuit in a comparison.
type trial struct {
	relay proto.PeerID
	conn  *conn
	found circuitRecord
	score float64
}

// compareRelays compares c, which is in use, with circuits through the other relays of n,
// and moves to the best one.
func (rc *relayChooser) compareRelays(ctx context.Context, n *peerState, c *conn, w *relayWatch) {
	current, ok := relayOf(c.raw.RemoteMultiaddr())
	if !ok {
		return
	}
	trials := []*trial{{relay: current, conn: c}}
	for _, r := range rc.relays.others(n.peer, current) {
		trials = append(trials, &trial{relay: r})
	}
	if len(trials) == 1 {
		w.decide(rc.cfg.Clock.Mono(), 0, false)
		return
	}
	for _, tr := range trials[1:] { // one after another: libp2p would join the dials to a peer
		if tr.conn = rc.peers.openCircuit(n, tr.relay); tr.conn == nil {
			tr.conn = rc.dialTrial(ctx, n.peer, tr.relay)
		}
	}
	var wg sync.WaitGroup
	for _, tr := range trials {
		if tr.conn == nil {
			continue
		}
		wg.Go(func() { rc.measureTrial(ctx, n, tr, tr == trials[0], w.rate) })
	}
	wg.Wait()
	var best *trial
	for _, tr := range trials[1:] {
		if tr.conn != nil && (best == nil || tr.score > best.score) {
			best = tr
		}
	}
	if best == nil {
		w.decide(rc.cfg.Clock.Mono(), 0, false)
		return
	}
	gain := best.score - trials[0].score
	broken := gain >= clearGain && hardlyCarries(trials[0].found.path)
	move := w.decide(rc.cfg.Clock.Mono(), gain, broken)
	rc.log.Debug("circuits compared", "peer", n.peer, "relay", current, "best", best.relay, "gain", gain, "moves", move)
	if !move {
		return
	}
	rc.log.Info("moving to a better relay", "peer", n.peer, "old", current, "new", best.relay, "gain", gain)
	rc.prefer(n, best.conn)
	if broken {
		rc.peers.closeCircuits(n, current)
	}
}

// hardlyCarries reports whether p is so bad that what it carries is better sent again.
func hardlyCarries(p route.Path) bool { return p.RTT >= brokenRTT || p.Rate < brokenRate }

// dialTrial makes a circuit to p through relay for a comparison; nil: it fails.
func (rc *relayChooser) dialTrial(ctx context.Context, p, relay proto.PeerID) *conn {
	ctx, cancel := context.WithTimeout(ctx, shortDial)
	defer cancel()
	if err := rc.dialer.dialVia(ctx, p, relay, true); err != nil {
		rc.log.Debug("no circuit to compare", "peer", p, "relay", relay, "why", err)
		return nil
	}
	var c *conn
	rc.peers.mu.Lock()
	for _, o := range rc.peers.conns {
		if by, ok := relayOf(o.raw.RemoteMultiaddr()); ok && by == relay && o.peer == p && o.guarded.trial {
			c = o
		}
	}
	rc.peers.mu.Unlock()
	if c == nil || !rc.greeter.awaitVerified(ctx, c) {
		return nil
	}
	return c
}

// measureTrial measures one circuit of a comparison. rate is that of the work on the
// circuit in use.
func (rc *relayChooser) measureTrial(ctx context.Context, n *peerState, tr *trial, inUse bool, rate float64) {
	est, off := rc.relays.viaPath(tr.relay, n.peer)
	rc.peers.mu.Lock()
	before := n.circuits[tr.relay]
	rc.peers.mu.Unlock()
	if rc.cfg.Clock.Mono()-before.at >= measureTTL {
		before = circuitRecord{}
	}
	m := circuitRecord{loaded: before.loaded}
	switch {
	case inUse:
		acked, began, loaded := tr.conn.work.acked.Load(), rc.cfg.Clock.Mono(), tr.conn.unacked() >= loadBytes
		m.path = rc.sendTrain(ctx, tr.conn)
		if loaded || tr.conn.unacked() >= loadBytes { // the train waited behind this node's own work
			m.path.RTT = min(m.path.RTT, est.RTT)
			took := max(rc.cfg.Clock.Mono()-began, time.Millisecond)
			rate = max(rate, float64(tr.conn.work.acked.Load()-acked)/took.Seconds())
		}
		m.loaded = rate
		m.path.Rate = max(m.path.Rate, rate)
	default:
		m.path = rc.sendTrain(ctx, tr.conn)
		if m.loaded > 0 { // what it carried says more than a train
			m.path.Rate = min(m.path.Rate, m.loaded)
		}
	}
	rc.peers.recordCircuit(n, tr.relay, m)
	tr.found, tr.score = m, rc.cfg.Weights.Score(m.path).Total-off
}

// circuitBy is openCircuit for a caller that holds mu.
func (n *peerState) circuitBy(r proto.PeerID) (c *conn) {
	for _, o := range n.conns {
		if by, ok := relayOf(o.raw.RemoteMultiaddr()); ok && by == r {
			c = o
		}
	}
	return c
}

// prefer makes new streams to n use the relayed connection c.
func (rc *relayChooser) prefer(n *peerState, c *conn) {
	rc.peers.mu.Lock()
	defer rc.peers.mu.Unlock()
	c.guarded.preferred = rc.cfg.Clock.Mono()
	rc.update(n)
}

// follow uses the relayed connection on which the other side has just opened a task stream:
// it knows why. If both sides have just chosen one, that of the lower id counts. A direct
// connection, which the other side does not use, may be lost.
func (rc *relayChooser) follow(c *conn) {
	if c.direct() {
		return
	}
	rc.peers.mu.Lock()
	defer rc.peers.mu.Unlock()
	n := rc.peers.byID[c.peer]
	if n == nil || !slices.Contains(n.conns, c) {
		return
	}
	now, best := rc.cfg.Clock.Mono(), n.best()
	if best != c && !best.direct() && comparePeers(rc.self, c.peer) < 0 && now-best.guarded.preferred < followAfter {
		return
	}
	if best.direct() {
		rc.group.start(func(ctx context.Context) { best.checkAlive(ctx, rc.cfg.Timing.Busy) })
	}
	c.guarded.preferred = now
	rc.update(n)
}

// followAfter is how long the choice of the side with the lower id counts.
const followAfter = 10 * time.Second

// sendTrain measures the round trip and the rate of c with a train of PINGs. A circuit that
// does not carry it in time has at best the measured path.
func (rc *relayChooser) sendTrain(ctx context.Context, c *conn) route.Path {
	ctx, cancel := context.WithTimeout(ctx, trainTime)
	defer cancel()
	began := c.clock.Mono()
	first, answered, err := rc.runTrain(ctx, c)
	took := c.clock.Mono() - began
	switch {
	case answered == 0:
		return route.Path{RTT: max(took, trainTime), Rate: 1}
	case err != nil:
		return route.Path{RTT: first, Rate: float64(answered*fullPing) / max(took, time.Millisecond).Seconds()}
	}
	return route.Path{RTT: first, Rate: float64((trainPings-1)*fullPing) / max(took-first, time.Millisecond).Seconds()}
}

// runTrain sends a train and returns the round trip of its first PING and how many were
// answered.
func (rc *relayChooser) runTrain(ctx context.Context, c *conn) (first time.Duration, answered int, err error) {
	began := c.clock.Mono()
	s, err := openStream(ctx, c, streamEcho, proto.MaxControl, rc.cfg.Timing)
	if err != nil {
		return 0, 0, err
	}
	defer s.Reset()
	defer s.unblock(ctx)()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for range trainPings {
			if s.send(&proto.Message{Type: proto.TypePing, Payload: make([]byte, fullPing)}) != nil {
				return
			}
		}
	})
	defer s.Reset() // before the writer is awaited
	for ; answered < trainPings; answered++ {
		if _, err := s.expect(proto.TypePong); err != nil {
			return first, answered, errors.Join(err, ctx.Err())
		}
		if answered == 0 {
			first = c.clock.Mono() - began
		}
	}
	return first, answered, nil
}
