package transport

import (
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// Every node tells its clock in each hello, also in one that refuses the other side because
// of the clocks, and in each PONG unless it doubts its clock. What a peer tells is used to date what that
// peer signed, and to warn; it grants nothing.

// maxClockRTT is the longest round trip for which clocks are compared.
const maxClockRTT = time.Minute

// A peerClock is a reading of a peer's clock.
type peerClock struct {
	wall    time.Time     // zero: none yet
	at      time.Duration // when that was, by the boot clock of this node
	doubted bool          // by the peer itself
}

// ahead returns how far the peer's clock is ahead of c, the clock of this node.
func (p peerClock) ahead(c clock.Clock) time.Duration {
	return p.wall.Add(c.Boot() - p.at).Sub(c.Now())
}

// helloClock takes the clock in a hello. The answer to the first hello took a round trip;
// how long a hello that was not asked for took is unknown until the first PONG.
func (g *greeter) helloClock(c *conn, h *proto.Hello) {
	if ms := h.GetClockMs(); ms != 0 {
		rtt := max(time.Duration(c.rtt.Load()), c.greeting.rtt)
		g.readClock(c, peerClock{wall: time.UnixMilli(ms), doubted: h.GetClockDoubted()}, rtt)
	}
}

// pongClock takes a member's clock from its PONG.
func (g *greeter) pongClock(c *conn, stamp int64, rtt time.Duration) {
	if stamp <= 0 || rtt >= maxClockRTT || !c.verified() {
		return
	}
	g.readClock(c, peerClock{wall: time.Unix(0, stamp)}, rtt)
	if g.cfg.PeerClock != nil {
		g.cfg.PeerClock(time.Unix(0, stamp).Add(rtt / 2))
	}
}

// readClock stores what the peer's clock shows, as told half a round trip ago. The clocks
// of strangers are kept as long as their connection.
func (g *greeter) readClock(c *conn, told peerClock, rtt time.Duration) {
	g.peers.mu.Lock()
	defer g.peers.mu.Unlock()
	told.wall, told.at = told.wall.Add(rtt/2), g.cfg.Clock.Boot()
	c.guarded.told = told
	if n := g.peers.byID[c.peer]; n != nil {
		n.clock = c.guarded.told
	}
}

// ClockAhead returns how far p's clock is ahead of this node's; negative: it is behind; 0 if
// p has not told it since this node started. ok reports whether p has told it and relied on
// it then.
func (t *Transport) ClockAhead(p proto.PeerID) (ahead time.Duration, ok bool) {
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	n := t.peers.byID[p]
	if n == nil || n.clock.wall.IsZero() {
		return 0, false
	}
	return n.clock.ahead(t.cfg.Clock), !n.clock.doubted
}

// AskClocks asks every connected member for its clock.
func (t *Transport) AskClocks() {
	for _, c := range t.peers.verifiedConns() {
		c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), nil)})
	}
}
