package transport

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A conn is one connection to a peer, from the moment that libp2p tells of it.
type conn struct {
	raw     network.Conn
	peer    proto.PeerID
	inbound bool
	clock   clock.Clock

	ready chan struct{} // closed when the hellos ended, well or not
	gone  chan struct{} // closed when the connection ended
	err   error         // why it is not welcome; set before ready is closed
	hello *proto.Hello  // the other side's, when it is; set before ready is closed

	connState
	pings       pings
	ctl         chan *proto.Message // frames that wait for the ctl stream
	lastHeard   atomic.Int64        // monotonic nanoseconds of the last sign of life
	rtt         atomic.Int64        // nanoseconds, of the last heartbeat; 0: not yet
	waiting     atomic.Int32        // streams that wait for the hello
	hasCtl      atomic.Bool         // a ctl stream is there already
	yielded     atomic.Bool         // both sides dialled, and the other one says hello first
	joining     atomic.Bool         // a join was asked for already
	gotMessage  atomic.Bool         // a whole message of it was read
	inflight    atomic.Int32        // frames of ours without an Ack
	syncing     atomic.Int32        // sync streams that are served
	pendingAcks pendingAcks
	hole        blackHole
}

// A connState is what a connection is used for and how well it does.
type connState struct {
	since            time.Duration // monotonic; when it was made
	meter            connMeter
	helloDone        atomic.Bool // the hello ended
	holdsReservation atomic.Bool // circuits hang on it: its end is to be noticed soon
	evicted          bool        // its place is another's; guarded by the transport's mu
}

func newConn(raw network.Conn, p proto.PeerID, clk clock.Clock) *conn {
	c := &conn{
		raw: raw, peer: p, inbound: raw.Stat().Direction == network.DirInbound, clock: clk,
		ready: make(chan struct{}), gone: make(chan struct{}), ctl: make(chan *proto.Message, 16),
		pendingAcks: pendingAcks{wake: make(chan struct{}, 1)},
	}
	c.since = clk.Mono()
	c.touch()
	return c
}

// touch notes a sign of life.
func (c *conn) touch() { c.lastHeard.Store(int64(c.clock.Mono())) }

func (c *conn) heard() time.Duration { return time.Duration(c.lastHeard.Load()) }

// verified reports whether both sides said hello and liked it.
func (c *conn) verified() bool {
	select {
	case <-c.ready:
		return c.err == nil
	default:
		return false
	}
}

// queueCtl queues m for the ctl stream. It is dropped when much waits there.
func (c *conn) queueCtl(m *proto.Message) error {
	select {
	case c.ctl <- m:
		return nil
	default:
		return fmt.Errorf("control message to %s: the stream is busy", c.peer.Short())
	}
}

// network returns quic or tcp, of the hop to the relay when there is one.
func (c *conn) network() string { return networkOf(c.raw.RemoteMultiaddr()) }

// direct reports whether no relay stands between.
func (c *conn) direct() bool { return !isCircuit(c.raw.RemoteMultiaddr()) }

// kind returns direct or relay.
func (c *conn) kind() string {
	if c.direct() {
		return "direct"
	}
	return "relay"
}
