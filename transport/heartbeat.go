package transport

import (
	"encoding/binary"
	"sync"
	"time"
)

// A heartbeatAction is the heartbeat's next action.
type heartbeatAction int

const (
	noAction heartbeatAction = iota // wait
	sendPing                        // send a PING
	giveUp                          // close the dead connection
)

// A heartbeat decides when to probe a connection and when to close it. Any received data
// counts, not only a PONG: a path that carries acknowledged data is alive (S41). While
// this node waits for answers, only answers count: the other side's own PINGs arrive also
// if nothing of this node's does.
type heartbeat struct {
	lastPing time.Duration // when the last PING was sent; 0: none
	first    time.Duration // when the first one was sent after which nothing was received
	misses   int           // consecutive PINGs after which nothing was received
}

// heartbeatEvery returns the time between two heartbeats on c. A connection to a relay
// with a reservation is monitored closely, unless its round trips are long.
func (t Timing) heartbeatEvery(c *conn) time.Duration {
	switch {
	case c.reservedAt.Load() > 0 && 4*time.Duration(c.rtt.Load()) <= t.Busy:
		return t.Busy / 2
	case c.reservedAt.Load() > 0 || c.inflight.Load() > 0:
		return t.Busy
	}
	return t.Idle
}

// nextLook returns the time to the next look at c. All connections on which no acknowledgment is
// pending are looked at in the same moments: being woken is most of what that costs.
func (t Timing) nextLook(c *conn, now time.Duration) time.Duration {
	every := min(t.heartbeatEvery(c), t.Busy)
	if _, owes := c.pendingAcks.since(now); owes {
		return min(every, holeCheckEvery)
	}
	return c.clock.Until(every)
}

// lifeSign returns when c last showed that it is alive.
func (c *conn) lifeSign() time.Duration {
	if c.inflight.Load() > 0 || c.unacked() > 0 {
		return c.answered()
	}
	return c.heard()
}

// Rates at which what is sent before a PING is assumed to leave.
const (
	unknownRate = 64 << 10 // bytes per second, while none was measured
	leastRate   = 8 << 10
)

// slack returns how much longer than usual an answer on c may take: long round trips, and
// bytes sent before it.
func (c *conn) slack() time.Duration {
	rate := c.meter.path().Rate
	if rate == 0 {
		rate = unknownRate
	}
	queued := time.Duration(float64(c.unacked()) / max(rate, leastRate) * float64(time.Second))
	return queued + 2*time.Duration(c.rtt.Load())
}

// next returns the action at now, if c was last known to be alive at alive. A connection is
// given up after maxMisses PINGs, and later if slack exceeds the time between two.
func (p *heartbeat) next(now, alive, every, slack time.Duration) heartbeatAction {
	if alive >= p.lastPing {
		p.misses = 0
	}
	if now-max(p.lastPing, alive) < every {
		return noAction
	}
	if p.lastPing > alive {
		p.misses++
		if p.misses >= maxMisses && now-p.first >= maxMisses*every+max(0, slack-every) {
			return giveUp
		}
	}
	if p.misses == 0 {
		p.first = now
	}
	p.lastPing = now
	return sendPing
}

// maxPings bounds the unanswered PINGs.
const maxPings = 64

// pings match each PONG to its PING.
type pings struct {
	mu   sync.Mutex
	last uint64
	sent map[uint64]ping
}

type ping struct {
	at   time.Duration
	done chan time.Duration // receives the round trip; may be nil
}

// start returns the payload of a new PING sent at now.
func (p *pings) start(now time.Duration, done chan time.Duration) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	if p.sent == nil {
		p.sent = make(map[uint64]ping)
	}
	p.sent[p.last] = ping{now, done}
	delete(p.sent, p.last-maxPings)
	payload := make([]byte, pingSize)
	binary.BigEndian.PutUint64(payload, p.last)
	return payload
}

// finish handles the payload of a PONG and returns the round trip.
func (p *pings) finish(payload []byte, now time.Duration) (rtt time.Duration, ok bool) {
	if len(payload) != pingSize {
		return 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := binary.BigEndian.Uint64(payload)
	s, ok := p.sent[n]
	if !ok {
		return 0, false
	}
	for k, s := range p.sent { // those before it have arrived too, and their answers were dropped
		if k <= n && s.done != nil {
			s.done <- now - s.at // has a buffer of one
		}
		if k <= n {
			delete(p.sent, k)
		}
	}
	return now - s.at, true
}
