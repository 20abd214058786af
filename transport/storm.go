package transport

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	manet "github.com/multiformats/go-multiaddr/net"

	"github.com/balefire/balefire/proto"
)

// When a path suddenly becomes slower than the probe timeout of QUIC, quic-go v0.64.1 does not
// notice: it declares lost what it repeats, so it measures no round trip with it, and any
// acknowledgment ends the backoff (RFC 9002, section 6.2, wants such packets to stay in flight).
// It then repeats a kilobyte ten times a second for half a minute. With a dozen peers that alone
// keeps a link of 64 kbit/s full, and the path slow. So this node detects such storms, and sends
// hardly anything of such a connection until a round trip is measured again: QUIC takes
// that for loss, and the queue on the path, which the storm fills, becomes empty.

// Bounds of a storm.
const (
	stormCheck    = time.Second      // without a measured round trip; twice, the second time after a PING
	stormSent     = 6                // packets in that time
	stormReceived = 3                // likewise
	stormEnds     = 20 * time.Second // at the latest
	stormSpacing  = time.Second      // between two packets that are sent
)

// A storm detects that packets pass in both directions while no round trip is measured, even
// though a PING was sent.
type storm struct {
	since          time.Duration // when a round trip was measured, or of the last check; 0: not yet
	sent, received uint64        // packets by then
	phase          stormPhase
}

type stormPhase int

const (
	noStorm   stormPhase = iota
	suspected            // a PING was sent
	stormy
)

// step returns the phase at now. The phase suspected is returned once, when a PING is to be sent.
func (w *storm) step(now time.Duration, g quicStats) stormPhase {
	switch {
	case !g.known:
		return noStorm
	case g.progress || w.since == 0:
		*w = storm{since: max(now, 1), sent: g.sent, received: g.received}
		return noStorm
	case w.phase == stormy && now-w.since < stormEnds:
		return stormy
	case w.phase != stormy && now-w.since < stormCheck:
		return noStorm
	}
	next := noStorm
	if w.phase != stormy && g.sent-w.sent >= stormSent && g.received-w.received >= stormReceived {
		next = w.phase + 1
	}
	*w = storm{since: now, sent: g.sent, received: g.received, phase: next}
	return next
}

// A handshake has the same fault: quic-go v0.64.1 begins with a probe timeout of 200 ms, where RFC
// 9002, section 6.2.2, recommends a second, and over a full link both sides repeat their
// kilobytes five times before the first answer is there. So those to an address whose last connection
// was slow are sent in bursts, a second apart.
const (
	slowRTT        = time.Second // of a path on which handshakes are slow
	slowFor        = 10 * time.Minute
	maxSlow        = 256 // addresses
	burstLength    = 50 * time.Millisecond
	handshakeEvery = time.Second // from one burst to the next
	leastRepeated  = 200         // bytes of a packet: less is cheap, and may be hole punching
)

// A thinner drops most packets to some addresses, and repeated handshakes to others.
type thinner struct {
	some atomic.Bool // there are any

	mu   sync.Mutex
	next map[netip.AddrPort]time.Time // when a packet passes again
	slow map[netip.AddrPort]slowAddr
}

// A slowAddr is an address to which handshakes take seconds.
type slowAddr struct{ until, burst time.Time } // burst is when the last one began

// thin sets whether packets to an address are dropped.
func (t *thinner) thin(to netip.AddrPort, on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.next[to]
	switch {
	case on && !is:
		if t.next == nil {
			t.next = make(map[netip.AddrPort]time.Time)
		}
		t.next[to] = time.Time{}
	case !on:
		delete(t.next, to)
	}
	t.some.Store(len(t.next)+len(t.slow) > 0)
}

// slowDown records that the path to an address was slow at now.
func (t *thinner) slowDown(to netip.AddrPort, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.slow, func(_ netip.AddrPort, p slowAddr) bool { return now.After(p.until) })
	if t.slow == nil || len(t.slow) >= maxSlow {
		t.slow = make(map[netip.AddrPort]slowAddr)
	}
	t.slow[to] = slowAddr{now.Add(slowFor), t.slow[to].burst}
	t.some.Store(true)
}

// repeats reports whether a packet to an address at now belongs to a handshake, but to no burst.
// On a path that has become fast that may be the second half of one: it is repeated. The caller
// holds mu.
func (t *thinner) repeats(b []byte, to netip.AddrPort, now time.Time) bool {
	p, is := t.slow[to]
	switch since := now.Sub(p.burst); {
	case !is || len(b) < leastRepeated || b[0]&0x80 == 0: // RFC 9000, section 17.2: a long header
		return false
	case now.After(p.until):
		delete(t.slow, to)
		t.some.Store(len(t.next)+len(t.slow) > 0)
		return false
	case since < burstLength:
		return false
	case since < handshakeEvery:
		return true
	}
	p.burst = now
	t.slow[to] = p
	return false
}

// drops reports whether packet b to an address at now is to be dropped.
func (t *thinner) drops(b []byte, to net.Addr, now time.Time) bool {
	if !t.some.Load() {
		return false
	}
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return false
	}
	a := unmapped(u.AddrPort())
	t.mu.Lock()
	defer t.mu.Unlock()
	next, is := t.next[a]
	switch {
	case !is:
		return t.repeats(b, a, now)
	case now.Before(next):
		return true
	}
	t.next[a] = now.Add(stormSpacing)
	return false
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// listen opens the UDP socket of QUIC.
func (t *thinner) listen(network string, at *net.UDPAddr) (net.PacketConn, error) {
	c, err := net.ListenUDP(network, at)
	if err != nil {
		return nil, err
	}
	return thinnedConn{c, t}, nil
}

// A thinnedConn is a UDP socket that drops some packets instead of sending them.
type thinnedConn struct {
	*net.UDPConn
	by *thinner
}

// WriteTo sends a packet.
func (c thinnedConn) WriteTo(b []byte, to net.Addr) (int, error) {
	if c.by.drops(b, to, time.Now()) {
		return len(b), nil
	}
	return c.UDPConn.WriteTo(b, to)
}

// WriteMsgUDP sends a packet, or several of the same size.
func (c thinnedConn) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	if c.by.drops(b, to, time.Now()) {
		return len(b), len(oob), nil
	}
	return c.UDPConn.WriteMsgUDP(b, oob, to)
}

// calm thins what is sent on c while there is a storm on it.
func (t *Transport) calm(c *conn, p stormPhase) {
	if p == suspected {
		c.queueCtl(&proto.Message{Type: proto.TypePing, Payload: c.pings.start(c.clock.Mono(), nil)})
	}
	if (p == stormy) == c.thinned {
		return
	}
	at, ok := udpAddr(c)
	if !ok {
		return
	}
	c.thinned = p == stormy
	t.thinner.thin(at, c.thinned)
	if c.thinned {
		t.thinner.slowDown(at, time.Now())
	}
	t.log.Debug("storm of QUIC's probes", "peer", c.peer, "thinned", c.thinned)
}

// noteSlow records whether c, a direct connection that has ended, was slow.
func (t *Transport) noteSlow(c *conn) {
	if at, ok := udpAddr(c); ok && c.longestRTT() >= slowRTT {
		t.thinner.slowDown(at, time.Now())
	}
}

// udpAddr returns the address to which packets of c are sent.
func udpAddr(c *conn) (netip.AddrPort, bool) {
	at, err := manet.ToNetAddr(bare(c.raw.RemoteMultiaddr()))
	u, ok := at.(*net.UDPAddr)
	if err != nil || !ok {
		return netip.AddrPort{}, false
	}
	return unmapped(u.AddrPort()), true
}
