package transport

import (
	"math"
	"net"
	"os"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// Congestion control by loss, as QUIC and TCP have it, fills the queue before a narrow link. The
// round trips of all connections over that link become as long as the queue, within a second;
// then QUIC takes for lost what is only late, and sends hardly anything of this connection,
// and heartbeats of the others go unanswered. So a large frame is written in pieces, each when a
// PING behind the one before it was answered, and a piece is as large as the path carries in
// about half a second. On a fast path pieces soon need no PING.

// Bounds of a pace.
const (
	firstPiece = 16 << 10
	leastPiece = 4 << 10
	mostPiece  = 128 << 10              // from here on without PINGs
	shortQueue = 250 * time.Millisecond // a piece that takes less is smaller than need be
	longQueue  = 750 * time.Millisecond // one that takes more is too large
	slowPath   = time.Second            // by which round trips have grown where PINGs are needed again
	baseAge    = 10 * time.Second       // after which the round trip without a piece is measured again
)

// A pace is the size of the pieces in which frames are written on a connection.
type pace struct {
	mu    sync.Mutex
	piece int           // 0: not known yet
	base  time.Duration // round trip without a piece; 0: not known
	at    time.Duration // when base was measured
}

// size returns the bytes that may be written before the next PING, given the round trip that
// was measured last.
func (p *pace) size(rtt time.Duration) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.piece == 0 || p.piece > mostPiece && p.base > 0 && rtt > p.base+slowPath {
		p.piece, p.at = firstPiece, 0
	}
	return p.piece
}

// stale reports whether base is to be measured.
func (p *pace) stale(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at == 0 || now-p.at > baseAge
}

// setBase records a round trip without a piece.
func (p *pace) setBase(rtt, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.base, p.at = rtt, max(now, 1)
}

// arrived records the round trip of a PING behind a piece.
func (p *pace) arrived(rtt time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.base = min(p.base, rtt)
	switch took := rtt - p.base; {
	case took > longQueue:
		p.piece = max(p.piece/2, leastPiece)
	case took >= shortQueue:
	case p.piece < mostPiece:
		p.piece *= 2
	default:
		p.piece = math.MaxInt
	}
}

// settle waits until what was written on c has arrived, and learns from how long that took. It
// ends with an error when stop is closed, or after limit.
func (c *conn) settle(stop <-chan struct{}, limit time.Duration) error {
	rtt, err := c.roundTrip(stop, limit)
	if err != nil || rtt == 0 {
		return err
	}
	if now := c.clock.Mono(); c.pace.stale(now) {
		base, err := c.roundTrip(stop, limit)
		if err != nil || base == 0 {
			return err
		}
		c.pace.setBase(base, now)
	}
	c.pace.arrived(rtt)
	return nil
}

// roundTrip sends a PING and returns the time until its answer; 0: too much waits already to be
// sent.
func (c *conn) roundTrip(stop <-chan struct{}, limit time.Duration) (time.Duration, error) {
	done := make(chan time.Duration, 1)
	if c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), done)}) != nil {
		return 0, nil
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case rtt := <-done:
		return max(rtt, 1), nil
	case <-c.gone:
		return 0, net.ErrClosed
	case <-stop:
		return 0, net.ErrClosed
	case <-late.C:
		return 0, os.ErrDeadlineExceeded
	}
}
