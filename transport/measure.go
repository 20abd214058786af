package transport

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// Timing and weights of measurements.
const (
	measureEvery  = 5 * time.Second
	relayedIdle   = 30 * time.Minute // of a direct path in use before the relayed one is closed
	switchedIdle  = 2 * time.Minute  // of a path through another relay, likewise
	trialIdle     = 30 * time.Second // of a new one
	othersAsked   = 3                // relays without a reservation that get a PING with each sample, in turn: all members may be relays
	silentAfter   = 3 * time.Second  // after which a relay is considered silent
	dialPenalty   = 0.5              // score penalty of a relay that must be dialed first
	silentPenalty = 2.0              // score penalty of a silent relay
	dropPenalty   = 2.0              // score penalty of a relay that drops circuits
)

// A connMeter measures one connection using its normal traffic.
type connMeter struct {
	mu           sync.Mutex
	route        route.Meter
	sent         uint64 // packets counted so far
	lost         uint64
	sentPings    uint64 // heartbeats, where packets cannot be counted
	lostPings    uint64
	heartbeatRTT time.Duration // round trip of the last heartbeat since the last sample; 0: none
}

// addAcked records bytes that were acknowledged in a time during which acknowledgments
// were pending. While little was sent, that says nothing of the path's rate.
func (c *conn) addAcked(bytes int, busy time.Duration, loaded bool) {
	c.work.acked.Add(uint64(max(bytes, 0)))
	if loaded {
		c.meter.addBytes(bytes, busy)
	}
}

// addBytes records bytes acknowledged in a time during which acknowledgments were
// pending.
func (g *connMeter) addBytes(bytes int, busy time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.route.Bytes(uint64(max(bytes, 0)), max(busy, 0))
}

// addPing records a heartbeat, and whether the previous one was unanswered.
func (g *connMeter) addPing(missed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sentPings++
	if missed {
		g.lostPings++
	}
}

// addRTT records the round trip of a heartbeat.
func (g *connMeter) addRTT(rtt time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heartbeatRTT = rtt
}

// path returns the measurements.
func (g *connMeter) path() route.Path {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.route.Path()
}

// measure takes one sample of c: from QUIC's statistics and heartbeats, or otherwise from
// heartbeats only. It reports whether a heartbeat was answered since the last one.
func (c *conn) measure() (answered bool) {
	var q *quic.Conn
	known := c.direct() && c.raw.As(&q)
	c.meter.mu.Lock()
	defer c.meter.mu.Unlock()
	answered = c.meter.heartbeatRTT > 0
	if !known {
		if c.direct() {
			c.meter.heartbeatRTT = time.Duration(c.rtt.Load())
		}
		c.meter.route.RTT(c.meter.heartbeatRTT)
		c.meter.heartbeatRTT = 0
		c.meter.route.Packets(c.meter.sentPings, c.meter.lostPings)
		c.meter.sentPings, c.meter.lostPings = 0, 0
		return answered
	}
	// When a path's latency rises sharply, QUIC considers every packet lost before its
	// acknowledgment arrives, and its own round-trip estimate does not change: that of a
	// heartbeat takes precedence.
	s := q.ConnectionStats()
	c.meter.route.RTT(cmp.Or(c.meter.heartbeatRTT, s.SmoothedRTT))
	c.meter.heartbeatRTT = 0
	c.meter.route.Packets(s.PacketsSent-c.meter.sent, s.PacketsLost-c.meter.lost)
	c.meter.sent, c.meter.lost = s.PacketsSent, s.PacketsLost
	return answered
}

// measureAll samples every connection until ctx is done, and closes relayed ones that are
// no longer needed.
func (t *Transport) measureAll(ctx context.Context) {
	tick := t.cfg.Clock.Ticker(measureEvery)
	defer tick.Stop()
	var turns turn
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		relays := t.relays.list()
		var others []*conn
		for _, c := range t.peers.verifiedConns() {
			answered := c.measure()
			switch {
			case !c.direct() || !slices.Contains(relays, c.peer):
			case c.reservedAt.Load() == 0:
				others = append(others, c)
			case !answered:
				c.askRTT()
			}
			if t.isSpare(c) {
				t.log.Info("closing the relayed path: a better one is in use", "peer", c.peer, "path", pathOf(c))
				c.raw.Close()
			}
		}
		slices.SortFunc(others, func(a, b *conn) int { return a.peer.Compare(b.peer) })
		for _, c := range turns.next(others, othersAsked) {
			c.askRTT()
		}
	}
}

// A turn is the number of connections that have had theirs.
type turn int

// next returns those of all whose turn is next, at most so many.
func (n *turn) next(all []*conn, most int) (next []*conn) {
	for range min(most, len(all)) {
		next = append(next, all[int(*n)%len(all)])
		*n++
	}
	return next
}

// askRTT sends a PING, so that the next sample of c has a round trip.
func (c *conn) askRTT() {
	c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), nil)})
}

// isSpare reports whether c is relayed, has no stream but its ctl stream, and another
// path has been in use for long: a direct one, or one through another relay. A gossip
// stream is never closed, because gossipsub may lose the peer with it.
func (t *Transport) isSpare(c *conn) bool {
	if c.direct() {
		return false
	}
	t.peers.mu.Lock()
	best := t.peers.byID[c.peer].best()
	t.peers.mu.Unlock()
	idle := relayedIdle
	if best != nil && !best.direct() {
		idle = switchedIdle
	}
	if best == nil || best == c || c.clock.Mono()-best.since < idle || c.clock.Mono()-c.since < trialIdle {
		return false
	}
	for _, s := range c.raw.GetStreams() {
		if p := s.Protocol(); p != streamCtl && p != "" {
			return false
		}
	}
	return true
}
