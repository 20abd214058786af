package transport

import (
	"encoding/binary"
	"sync"
	"time"
)

// A heartbeatAction is what the heartbeat does next.
type heartbeatAction int

const (
	noAction heartbeatAction = iota // nothing yet
	sendPing                        // send a PING
	giveUp                          // the connection is dead
)

// A heartbeat decides when to probe a connection and when to give it up. Anything
// heard counts, not only a PONG: a path that carries acknowledged data is alive
// (S41).
type heartbeat struct {
	lastPing time.Duration // when the last PING was sent; 0: none
	misses   int           // PINGs in a row after which nothing was heard
}

// heartbeatEvery is the time between two heartbeats on c. A connection that circuits hang
// on is watched closely, unless its round trips are long.
func (t Timing) heartbeatEvery(c *conn) time.Duration {
	switch {
	case c.holdsReservation.Load():
		return max(t.Busy/2, min(2*time.Duration(c.rtt.Load()), t.Busy))
	case c.inflight.Load() > 0:
		return t.Busy
	}
	return t.Idle
}

// next decides at now, when the last sign of life was at heard.
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

// maxPings bounds the PINGs that wait for their PONG.
const maxPings = 64

// pings match each PONG to its PING.
type pings struct {
	mu   sync.Mutex
	last uint64
	sent map[uint64]ping
}

type ping struct {
	at   time.Duration
	done chan time.Duration // takes the round trip; nil: nobody waits
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

// finish takes the payload of a PONG and returns how long it took.
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
		s.done <- now - s.at // holds one
	}
	return now - s.at, true
}
