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
// counts, not only a PONG: a path that carries acknowledged data is alive (S41).
type heartbeat struct {
	lastPing time.Duration // when the last PING was sent; 0: none
	misses   int           // consecutive PINGs after which nothing was received
}

// heartbeatEvery returns the time between two heartbeats on c. A connection to a relay
// with a reservation is monitored closely, unless its round trips are long.
func (t Timing) heartbeatEvery(c *conn) time.Duration {
	switch {
	case c.holdsReservation.Load():
		return max(t.Busy/2, min(2*time.Duration(c.rtt.Load()), t.Busy))
	case c.inflight.Load() > 0:
		return t.Busy
	}
	return t.Idle
}

// next returns the action at now, if data was last received at heard.
func (p *heartbeat) next(now, heard, every time.Duration) heartbeatAction {
	if heard >= p.lastPing {
		p.misses = 0
	}
	if now-max(p.lastPing, heard) < every {
		return noAction
	}
	if p.lastPing > heard {
		if p.misses++; p.misses >= maxMisses {
			return giveUp
		}
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
	delete(p.sent, n)
	if s.done != nil {
		s.done <- now - s.at // has a buffer of one
	}
	return now - s.at, true
}
