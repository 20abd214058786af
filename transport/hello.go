package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A greeter exchanges the hellos of connections.
type greeter struct {
	self    proto.PeerID
	gate    Gate
	cfg     Config
	log     *slog.Logger
	met     *metrics
	peers   *peerTable
	members *members
	addrs   func() []string         // of this node
	joined  func(*peerState, *conn) // handles a connection that is verified; called with the mu of peers held

	refusals refusalLog
}

// A RefusedError reports that one side of a connection rejects the other.
type RefusedError struct {
	Peer   proto.PeerID // the other side
	Reason string
	Theirs bool       // the peer refused; otherwise this node did
	Code   proto.Code // CodeClock, CodeNoMesh, or 0: no other reason is acted on
}

func (e *RefusedError) Error() string {
	if e.Theirs {
		return fmt.Sprintf("transport: %s refused this node: %s", e.Peer, e.Reason)
	}
	return fmt.Sprintf("transport: %s was refused: %s", e.Peer, e.Reason)
}

// reasonGated explains a connection that the other side's gater closed.
const reasonGated = "it closed the connection: it has blocked or banned this node, or is stopping"

// asRefusal returns err as a refusal by p or of p; nil: it is something else. What a dial
// through a relay says of the relay is no refusal by p. A gater closes a connection before
// the hello, and reports it where the transport carries the reason, as QUIC does.
func asRefusal(p proto.PeerID, err error) *RefusedError {
	switch e := err.(type) { //nolint:errorlint // it walks the errors itself
	case *RefusedError:
		if e.Peer == p {
			return e
		}
		return nil
	case *network.ConnError:
		if e.Remote && e.ErrorCode == network.ConnGated {
			return &RefusedError{Peer: p, Reason: reasonGated, Theirs: true}
		}
	case *swarm.TransportError:
		if isCircuit(e.Address) {
			return nil
		}
	}
	switch e := err.(type) { //nolint:errorlint // it walks the errors itself
	case interface{ Unwrap() error }:
		return asRefusal(p, e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if r := asRefusal(p, err); r != nil {
				return r
			}
		}
	}
	return nil
}

// errNoHello is the reason for closing an inbound connection.
var errNoHello = errors.New("no hello received")

// refusalLogEvery is how often a repeated refusal, of a peer or of strangers at an
// address, is logged at info level; repetitions in between are debug.
const (
	refusalLogEvery = time.Hour
	maxRefusalLog   = 256
)

// A refusalKey identifies a logged refusal.
type refusalKey struct{ who, why string }

// logNoHello logs that c closes without a hello. A foreign mesh on the LAN and a revoked
// node retry forever, with many connections; a stranger can create any number of keys, so
// inbound connections are identified by address.
func (g *greeter) logNoHello(c *conn, err error) {
	why := err.Error()
	if r, ok := errors.AsType[*RefusedError](err); ok {
		why = r.Reason
	}
	who := c.peer.String()
	if c.inbound {
		who = originOf(c.raw.RemoteMultiaddr())
	}
	level := slog.LevelInfo
	if !g.refusals.first(refusalKey{who, why}, g.cfg.Clock.Mono()) {
		level = slog.LevelDebug
	}
	g.log.Log(context.Background(), level, "no hello", "peer", c.peer, "addr", c.raw.RemoteMultiaddr(), "why", err)
}

// A refusalLog records recently logged refusals.
type refusalLog struct {
	mu     sync.Mutex
	logged map[refusalKey]time.Duration // monotonic
}

// first reports whether r was not logged recently, and records it.
func (l *refusalLog) first(r refusalKey, now time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.logged[r]; ok && now-at < refusalLogEvery {
		return false
	}
	if l.logged == nil || len(l.logged) >= maxRefusalLog {
		l.logged = make(map[refusalKey]time.Duration)
	}
	l.logged[r] = now
	return true
}

// errNoMember is returned by a node without a certificate.
var errNoMember = errors.New("transport: this node is in no mesh yet; join one with a ticket")

// reasonNoMesh is sent by a node that waits to join a mesh.
const reasonNoMesh = "this node is in no mesh yet"

// maxReason bounds the reason sent with a refusal.
const maxReason = 256

// noteRefusal records why a verified connection ended if one side refuses the other: the
// dialing side decides only after this one has verified it.
func (g *greeter) noteRefusal(c *conn, err error) {
	r, ok := errors.AsType[*RefusedError](err)
	if !ok {
		return
	}
	g.peers.mu.Lock()
	defer g.peers.mu.Unlock()
	if n := g.peers.byID[c.peer]; n != nil {
		n.lastErr, n.failedAt = r, g.cfg.Clock.Now()
	}
}

// helloTime returns the time for both hellos on c: more over a slow path, and for a known
// peer. Over a link that is full the hellos take ten seconds and more, and a handshake that was for
// nothing keeps it full. A TCP connection that was punched may exist on one side only, and while
// it is there it is in the way of the next attempt: it ends early.
func (g *greeter) helloTime(c *conn) time.Duration {
	most := 3 * g.cfg.Timing.Hello
	if (!c.direct() || c.network() != "tcp") && g.members.isKnown(c.peer) {
		return most
	}
	return min(g.cfg.Timing.Hello+2*c.longestRTT(), most)
}

// exchangeHellos exchanges the hellos over s within the time limit for both, and returns
// the other side's.
func (g *greeter) exchangeHellos(s *stream, first bool) (*proto.Hello, error) {
	if err := s.SetDeadline(time.Now().Add(g.helloTime(s.conn))); err != nil {
		return nil, err
	}
	if first {
		if err := g.sendFirstHello(s); err != nil {
			return nil, err
		}
	}
	sent := s.conn.clock.Mono()
	h, err := readHello(s)
	s.conn.greeting.gotMessage.Store(true)
	if first {
		s.conn.greeting.rtt = s.conn.clock.Mono() - sent
	}
	if err == nil && !first && len(h.GetChallenge()) > 0 {
		h, err = g.answerChallenge(s, h)
	}
	if err != nil {
		return nil, err
	}
	if reason := g.admitHello(s.conn, h); reason != nil {
		return nil, g.refuse(s, reason)
	}
	if !first {
		if err := g.sendHello(s, nil); err != nil {
			return nil, err
		}
	}
	return h, s.SetDeadline(time.Time{})
}

// sendFirstHello sends the first hello. An unknown peer must first prove that it belongs
// to this mesh.
func (g *greeter) sendFirstHello(s *stream) error {
	if g.gate.Hello() == nil {
		return errNoMember
	}
	if !g.members.isKnown(s.conn.peer) {
		if err := g.challenge(s); err != nil {
			return err
		}
	}
	return g.sendHello(s, nil)
}

// sendHello sends this node's hello, or the reason for a refusal.
func (g *greeter) sendHello(s *stream, reason error) error {
	if r, ok := errors.AsType[*RefusedError](reason); ok {
		h := &proto.Hello{Refusal: proto.Clip(r.Reason, maxReason), RefusalCode: r.Code, Revocation: g.members.revocationOf(s.conn.peer)}
		if r.Code == proto.CodeClock { // it has shown a genuine certificate
			h.ClockMs = g.cfg.Clock.Now().UnixMilli()
		}
		return g.writeHello(s, h)
	}
	h, err := g.ownHello()
	if err != nil {
		return err
	}
	return g.writeHello(s, h)
}

// writeHello sends h with this protocol version.
func (g *greeter) writeHello(s *stream, h *proto.Hello) error {
	m, err := helloMessage(h)
	if err != nil {
		return err
	}
	b, err := proto.AppendFrame(nil, m)
	if err != nil {
		return err
	}
	_, err = s.rw.Write(b)
	return err
}

// ownHello returns this node's hello.
func (g *greeter) ownHello() (*proto.Hello, error) {
	h := g.gate.Hello()
	if h == nil {
		return nil, errNoMember
	}
	h.Addrs, h.Software = g.addrs(), g.cfg.Software
	h.ClockDoubted, h.ClockMs = g.cfg.Clock.Doubted(), g.cfg.Clock.Now().UnixMilli() // the doubt may end between them
	h.Features = append(h.Features, proto.FeatureLease)
	if g.cfg.Mail != nil {
		h.Features = append(h.Features, proto.FeatureMail)
	}
	h.Addrs = h.Addrs[:min(len(h.Addrs), proto.MaxAddrs)]
	return h, nil
}

// helloMessage returns a frame with h.
func helloMessage(h *proto.Hello) (*proto.Message, error) {
	h.Version = proto.Version
	b, err := proto.Encode(nil, h)
	if err != nil {
		return nil, fmt.Errorf("own hello: %w", err)
	}
	return &proto.Message{Type: proto.TypeHello, Payload: b}, nil
}

func readHello(s *stream) (*proto.Hello, error) {
	b, err := s.rd.NextRaw()
	if err != nil {
		return nil, fmt.Errorf("read hello: %w", err)
	}
	var m proto.Message
	if len(b) > maxHello {
		return nil, fmt.Errorf("%w: a hello of %d bytes", ErrProtocol, len(b))
	}
	if err := proto.DecodeKnown(b, &m); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", ErrProtocol, err)
	}
	if m.GetType() != proto.TypeHello {
		return nil, fmt.Errorf("%w: message type %d before the hello", ErrProtocol, m.GetType())
	}
	h := new(proto.Hello)
	if err := proto.DecodeKnown(m.GetPayload(), h); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", ErrProtocol, err)
	}
	return h, nil
}

// admitHello checks the other side's hello. Its error is a RefusedError.
func (g *greeter) admitHello(c *conn, h *proto.Hello) error {
	g.helloClock(c, h)
	if err := g.precheckHello(c, h); err != nil {
		return err
	}
	h.Addrs = usable(h.GetAddrs(), c.raw.RemoteMultiaddr(), proto.MaxAddrs)
	if err := g.gate.Admit(h, c.peer); err != nil {
		r := &RefusedError{Peer: c.peer, Reason: err.Error()}
		if errors.Is(err, identity.ErrClocks) {
			r.Code = proto.CodeClock
		}
		return r
	}
	return nil
}

// precheckHello checks what needs no certificate. Its error is a RefusedError.
func (g *greeter) precheckHello(c *conn, h *proto.Hello) error {
	switch {
	case h.GetRefusal() != "":
		return g.refusalFrom(c, h)
	case h.GetVersion() != proto.Version:
		return &RefusedError{Peer: c.peer, Reason: fmt.Sprintf("it uses protocol version %d, this node uses %d", h.GetVersion(), proto.Version)}
	case g.gate.Hello() == nil:
		return &RefusedError{Peer: c.peer, Reason: reasonNoMesh, Code: proto.CodeNoMesh}
	case g.members.revocationOf(c.peer) != nil:
		return &RefusedError{Peer: c.peer, Reason: reasonRevoked}
	case g.gate.Blocked(c.peer):
		return &RefusedError{Peer: c.peer, Reason: "it is blocked"}
	}
	return nil
}

// endHello records the result of the hello of c: err is nil if both sides accepted. It
// returns false if there is a result already.
func (g *greeter) endHello(c *conn, h *proto.Hello, err error) bool {
	if c.greeting.done.Swap(true) {
		return false
	}
	c.hello, c.err = h, err
	if err == nil {
		c.measure() // so that the round trip is known at once
		c.member.Store(g.members.activeMember(c.peer))
	}
	g.peers.mu.Lock()
	defer g.peers.mu.Unlock()
	close(c.ready) // under mu: a dial that it wakes must find the error
	if n := g.peers.byID[c.peer]; n != nil && err != nil {
		n.lastErr, n.helloErr, n.failedAt = describeHelloError(err), err, g.cfg.Clock.Now()
	}
	select {
	case <-c.gone:
		return true
	default:
	}
	if err != nil {
		g.met.refused.Inc()
		g.logNoHello(c, err)
		return true
	}
	n := g.peers.get(c.peer)
	n.clock = c.guarded.told
	g.joined(n, c)
	return true
}

// expectHello closes an inbound connection without a timely hello.
func (g *greeter) expectHello(ctx context.Context, c *conn) {
	timer := time.NewTimer(g.helloTime(c))
	defer timer.Stop()
	select {
	case <-c.ready:
	case <-c.gone:
	case <-ctx.Done():
	case <-timer.C:
		if !c.greeting.joining.Load() {
			g.logNoHello(c, errNoHello)
			c.raw.Close()
		}
	}
}

// awaitVerified waits for the hello of c, which a stream may overtake.
func (g *greeter) awaitVerified(ctx context.Context, c *conn) bool {
	timer := time.NewTimer(g.helloTime(c))
	defer timer.Stop()
	select {
	case <-c.ready:
	case <-c.gone:
	case <-ctx.Done():
	case <-timer.C:
	}
	return c.verified()
}

// sendHellos sends the hello again on the connections for which the function returns true.
func (g *greeter) sendHellos(which func(*conn) bool) {
	h, err := g.ownHello()
	if err != nil {
		return
	}
	m, err := helloMessage(h)
	if err != nil {
		return // not in a mesh yet
	}
	g.peers.mu.Lock()
	defer g.peers.mu.Unlock()
	for _, n := range g.peers.byID {
		for _, c := range n.conns {
			if which(c) {
				c.queueCtl(m)
			}
		}
	}
}
