package transport

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/quic-go/quic-go"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A conn is one connection to a peer, from the moment that libp2p reports it.
type conn struct {
	raw     network.Conn
	peer    proto.PeerID
	inbound bool
	clock   clock.Clock

	ready chan struct{} // closed when the hello succeeded or failed
	gone  chan struct{} // closed when the connection closed
	err   error         // why the hello failed; set before ready is closed
	hello *proto.Hello  // the other side's, if it succeeded; set before ready is closed

	greeting    greeting
	guarded     guardedState
	pings       pings
	ctl         chan *proto.Message // frames queued for the ctl stream
	since       time.Duration       // monotonic; when it was established
	lastHeard   atomic.Int64        // monotonic nanoseconds of the last received data
	rtt         atomic.Int64        // nanoseconds, of the last heartbeat; 0: none
	reservedAt  atomic.Int64        // of a relay with a reservation, whose failure must be detected quickly: since when, monotonic; 0: there is none
	hasCtl      atomic.Bool         // there is a ctl stream
	member      atomic.Bool         // the peer was a member on it, not one whose certificate had ended
	inflight    atomic.Int32        // unacknowledged frames of this node
	syncing     atomic.Int32        // sync streams being served
	pendingAcks pendingAcks
	work        unanswered
	meter       connMeter
	hole        blackHole
	pace        pace
	rumors      rumorPace
	thinned     bool // hardly anything is sent; used by the heartbeat alone
}

// A greeting is the state of a connection until its hello.
type greeting struct {
	done       atomic.Bool   // the hello succeeded or failed
	yielded    atomic.Bool   // both sides dialed, and the other one sends the first hello
	gotMessage atomic.Bool   // a complete message was read
	joining    atomic.Bool   // a join was requested
	hasTicket  atomic.Bool   // a join was requested with a valid ticket
	waiting    atomic.Int32  // streams that wait for the hello
	rtt        time.Duration // from the first hello to its answer, if this node sent the first
}

// A guardedState is what is known of a connection under the mu of the peerTable.
type guardedState struct {
	trial     bool          // made for a comparison
	preferred time.Duration // monotonic; when it was chosen for new streams; 0: never
	evicted   bool          // its slot was given away
	told      peerClock     // the other side's clock
}

func newConn(raw network.Conn, p proto.PeerID, clk clock.Clock) *conn {
	c := &conn{
		raw: raw, peer: p, inbound: raw.Stat().Direction == network.DirInbound, clock: clk,
		ready: make(chan struct{}), gone: make(chan struct{}), ctl: make(chan *proto.Message, 16),
		pendingAcks: pendingAcks{wake: make(chan struct{}, 1)},
	}
	c.since = clk.Mono()
	c.rumors = rumorPace{clock: clk, ping: c.askRTT}
	c.touch()
	c.answer()
	return c
}

// touch records received data.
func (c *conn) touch() { c.lastHeard.Store(int64(c.clock.Mono())) }

// An unanswered is what this node has sent on a connection without an answer yet.
type unanswered struct {
	frames     atomic.Int64  // bytes in the window of the link
	chunks     atomic.Int64  // bytes of bodies
	mail       atomic.Int64  // bytes of messages about mail
	acked      atomic.Uint64 // bytes acknowledged so far
	received   atomic.Uint64 // bytes received so far
	incoming   atomic.Uint64 // of these, on streams on which the other side sends work
	atLastPong atomic.Uint64 // of these, at the last PONG
	lastAnswer atomic.Int64  // monotonic nanoseconds of the last answer
}

// answer records an answer to something that this node has sent: only that shows that
// both directions of the path work.
func (c *conn) answer() { c.work.lastAnswer.Store(int64(c.clock.Mono())) }

func (c *conn) answered() time.Duration { return time.Duration(c.work.lastAnswer.Load()) }

// unacked returns how many bytes are sent and not acknowledged.
func (c *conn) unacked() int64 {
	return c.work.frames.Load() + c.work.chunks.Load() + c.work.mail.Load()
}

// loaded reports whether so much was sent or received since the last PONG that heartbeats
// had to wait behind it.
func (c *conn) loaded() bool {
	return c.unacked() >= loadBytes || c.work.received.Load()-c.work.atLastPong.Load() >= loadBytes
}

// packets returns how many packets were received; bytes, where they cannot be counted.
func (c *conn) packets() uint64 {
	var q *quic.Conn
	if c.direct() && c.raw.As(&q) {
		return q.ConnectionStats().PacketsReceived
	}
	return c.work.received.Load()
}

// longestRTT returns the longest of the last round trips that are known; 0: none.
func (c *conn) longestRTT() time.Duration {
	rtt := time.Duration(c.rtt.Load())
	var q *quic.Conn
	if c.direct() && c.raw.As(&q) {
		s := q.ConnectionStats()
		rtt = max(rtt, s.LatestRTT, s.SmoothedRTT)
	}
	return rtt
}

func (c *conn) heard() time.Duration { return time.Duration(c.lastHeard.Load()) }

// silent reports whether c is to a relay with a reservation that was not heard for long. It
// is heard often only since it has one.
func (c *conn) silent() bool {
	since := time.Duration(c.reservedAt.Load())
	return since > 0 && c.clock.Mono()-max(since, c.heard()) > silentAfter
}

// verified reports whether both sides accepted each other's hello.
func (c *conn) verified() bool {
	select {
	case <-c.ready:
		return c.err == nil
	default:
		return false
	}
}

// queueCtl queues m for the ctl stream. It is dropped when the queue is full.
func (c *conn) queueCtl(m *proto.Message) error {
	select {
	case c.ctl <- m:
		return nil
	default:
		return fmt.Errorf("control message to %s: the stream is busy", c.peer.Short())
	}
}

// network returns quic or tcp: of the hop to the relay, if there is one.
func (c *conn) network() string { return networkOf(c.raw.RemoteMultiaddr()) }

// direct reports whether the connection uses no relay.
func (c *conn) direct() bool { return !isCircuit(c.raw.RemoteMultiaddr()) }

// kind returns direct or relay.
func (c *conn) kind() string {
	if c.direct() {
		return "direct"
	}
	return "relay"
}
