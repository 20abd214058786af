package transport

import (
	"math"
	"net"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// Congestion control by loss, as QUIC and TCP have it, fills the queue before a narrow link. The
// round trips of all connections over that link become as long as the queue, within a second;
// then QUIC takes for lost what is only late, and sends hardly anything of this connection,
// and heartbeats of the others go unanswered. So a large frame is written in pieces, with a PING
// behind each: at most two pieces are on their way. A piece is as large as the path carries in
// about half a second, or in its round trip if that is longer. On a fast path pieces soon need no PING.

// Bounds of a pace.
const (
	firstPiece = 8 << 10
	leastPiece = 4 << 10
	mostPiece  = 128 << 10              // from here on without PINGs
	pieceTime  = 500 * time.Millisecond // that a piece takes, or as long as the round trip without one
	slowPath   = time.Second            // by which round trips have grown where pieces are small again
	baseAge    = 10 * time.Second       // after which the round trip without a piece is measured again
	pingAgain  = 3 * time.Second        // after which a PING behind a piece is repeated: its answer may be dropped
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
	if p.piece == 0 || p.piece > firstPiece && p.base > 0 && rtt > p.base+slowPath {
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
	switch took, want := rtt-p.base, max(pieceTime, p.base); {
	case took > want*3/2:
		p.piece = max(p.piece/2, leastPiece)
	case took >= want/2:
	case p.piece < mostPiece:
		p.piece *= 2
	default:
		p.piece = math.MaxInt
	}
}

// A pacedWrite is a frame that is being written.
type pacedWrite struct {
	conn  *conn
	stop  <-chan struct{}    // the stream has ended
	limit time.Duration      // for one answer
	last  chan time.Duration // receives the round trip of the PING behind the last piece; nil: there is none
}

// wrote waits for the PING behind the piece before the one that was just written, and learns from
// its round trip. The error says that the connection or stream has ended.
func (w *pacedWrite) wrote() error {
	p := &w.conn.pace
	err := w.await(p.arrived)
	if w.last = w.conn.startPing(); err != nil || !p.stale(w.conn.clock.Mono()) {
		return err
	}
	if err = w.await(func(time.Duration) {}); err == nil {
		w.last = w.conn.startPing() // behind nothing
		err = w.await(func(rtt time.Duration) { p.setBase(rtt, w.conn.clock.Mono()) })
	}
	return err
}

// await waits for the last PING. Without an answer in time it goes on, with smaller pieces: the
// deadline of a write tells whether anything arrives.
func (w *pacedWrite) await(learn func(rtt time.Duration)) error {
	last := w.last
	if w.last = nil; last == nil {
		return nil
	}
	late, again := time.NewTimer(w.limit), time.NewTicker(pingAgain)
	defer late.Stop()
	defer again.Stop()
	for {
		select {
		case rtt := <-last:
			learn(rtt)
			return nil
		case <-again.C:
			w.conn.startPing() // its answer counts for those before it
		case <-late.C:
			w.conn.pace.arrived(w.limit)
			return nil
		case <-w.conn.gone:
			return net.ErrClosed
		case <-w.stop:
			return net.ErrClosed
		}
	}
}

// startPing sends a PING and returns what receives its round trip; nil: too much waits already to
// be sent.
func (c *conn) startPing() chan time.Duration {
	if len(c.ctl) == cap(c.ctl) {
		return nil
	}
	done := make(chan time.Duration, 1)
	if c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), done)}) != nil {
		return nil
	}
	return done
}
