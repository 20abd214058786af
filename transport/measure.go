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

// Times of the measuring.
const (
	measureEvery  = 5 * time.Second
	relayedIdle   = 30 * time.Minute // of a better path before the relayed one beside it is closed
	switchedIdle  = 2 * time.Minute  // of a path over another relay, likewise
	silentAfter   = 3 * time.Second  // after which a relay is no good choice
	dialPenalty   = 0.5              // off the score of a relay that must be dialled first
	silentPenalty = 2.0              // off the score of one that is silent
)

// A connMeter measures one connection by the traffic that is there anyway.
type connMeter struct {
	mu           sync.Mutex
	route        route.Meter
	sent         uint64 // packets that were counted
	lost         uint64
	sentPings    uint64 // heartbeats, where packets cannot be seen
	lostPings    uint64
	heartbeatRTT time.Duration // the round trip of the last heartbeat since the last sample; 0: none
}

// addBytes notes that so many bytes were acknowledged in so much time in which
// there was something to acknowledge.
func (g *connMeter) addBytes(bytes int, busy time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.route.Bytes(uint64(max(bytes, 0)), max(busy, 0))
}

// addPing notes a heartbeat, and whether the one before it had no answer.
func (g *connMeter) addPing(missed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sentPings++
	if missed {
		g.lostPings++
	}
}

// addRTT notes the round trip of a heartbeat.
func (g *connMeter) addRTT(rtt time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heartbeatRTT = rtt
}

// path returns what was measured.
func (g *connMeter) path() route.Path {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.route.Path()
}

// measure takes one sample of c: of QUIC what it knows and the heartbeats tell, of
// others what the heartbeats tell.
func (c *conn) measure() {
	var q *quic.Conn
	known := c.direct() && c.raw.As(&q)
	c.meter.mu.Lock()
	defer c.meter.mu.Unlock()
	if !known {
		c.meter.route.RTT(time.Duration(c.rtt.Load()))
		c.meter.route.Packets(c.meter.sentPings, c.meter.lostPings)
		c.meter.sentPings, c.meter.lostPings = 0, 0
		return
	}
	// When a path becomes much longer at once, QUIC takes every packet for lost
	// before its acknowledgement is here, and its own round trip stays what it was:
	// that of a heartbeat goes before it.
	s := q.ConnectionStats()
	c.meter.route.RTT(cmp.Or(c.meter.heartbeatRTT, s.SmoothedRTT))
	c.meter.heartbeatRTT = 0
	c.meter.route.Packets(s.PacketsSent-c.meter.sent, s.PacketsLost-c.meter.lost)
	c.meter.sent, c.meter.lost = s.PacketsSent, s.PacketsLost
}

// measureAll samples every connection until ctx ends, and closes relayed ones
// that nobody needs any more.
func (t *Transport) measureAll(ctx context.Context) {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		relays := t.relays()
		for _, c := range t.verifiedConns() {
			c.measure()
			if c.direct() && slices.Contains(relays, c.peer) { // the next sample has an echo
				c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), nil)})
			}
			if t.isSpare(c) {
				t.log.Info("the relayed path is closed: a better one serves", "peer", c.peer, "path", pathOf(c))
				c.raw.Close()
			}
		}
	}
}

func (t *Transport) verifiedConns() (all []*conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.peers {
		all = append(all, n.conns...)
	}
	return all
}

// isSpare reports whether c is relayed, has nothing but its ctl stream left, and
// another path has done the work for long: a direct one, or one over another
// relay. A stream of gossip is never cut: its library may lose the peer with it.
func (t *Transport) isSpare(c *conn) bool {
	if c.direct() {
		return false
	}
	t.mu.Lock()
	best := t.peers[c.peer].best()
	t.mu.Unlock()
	idle := relayedIdle
	if best != nil && !best.direct() {
		idle = switchedIdle
	}
	if best == nil || best == c || c.clock.Mono()-best.since < idle {
		return false
	}
	for _, s := range c.raw.GetStreams() {
		if p := s.Protocol(); p != streamCtl && p != "" {
			return false
		}
	}
	return true
}
