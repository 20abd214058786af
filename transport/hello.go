package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A RefusedError reports that one side of a connection rejects the other.
type RefusedError struct {
	Peer   proto.PeerID // the other side
	Reason string
	Theirs bool // the peer refused; otherwise this node did
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
			return &RefusedError{p, reasonGated, true}
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
func (t *Transport) logNoHello(c *conn, err error) {
	why := err.Error()
	if r, ok := errors.AsType[*RefusedError](err); ok {
		why = r.Reason
	}
	who := c.peer.String()
	if c.inbound {
		who = originOf(c.raw.RemoteMultiaddr())
	}
	level := slog.LevelInfo
	if !t.refusals.first(refusalKey{who, why}, t.cfg.Clock.Mono()) {
		level = slog.LevelDebug
	}
	t.log.Log(context.Background(), level, "no hello", "peer", c.peer, "addr", c.raw.RemoteMultiaddr(), "why", err)
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

// reasonNoMesh is sent by a node that waits to join a mesh. Peers compare it.
const reasonNoMesh = "this node is in no mesh yet"

// maxReason bounds the reason sent with a refusal.
const maxReason = 256

// initiateHello sends the first hello, as the side that dialed, and serves the ctl stream
// until the connection closes.
func (t *Transport) initiateHello(ctx context.Context, c *conn) {
	var h *proto.Hello
	s, err := openStream(ctx, c, streamCtl, proto.MaxControl, t.cfg.Timing)
	if err == nil {
		defer s.unblock(ctx)()
		h, err = t.exchangeHellos(s, true)
	}
	if c.yielded.Load() { // the other side's hello is used instead
		if s != nil {
			s.Reset()
		}
		return
	}
	t.finishHello(ctx, c, s, h, err)
}

// respondHello answers the other side's hello.
func (t *Transport) respondHello(ctx context.Context, c *conn, s *stream) {
	defer s.unblock(ctx)()
	h, err := t.exchangeHellos(s, false)
	t.finishHello(ctx, c, s, h, err)
}

// finishHello completes the hello and, if it succeeded, serves the connection.
func (t *Transport) finishHello(ctx context.Context, c *conn, s *stream, h *proto.Hello, err error) {
	switch {
	case !t.endHello(c, h, err):
		err = fmt.Errorf("%w: a second hello", ErrProtocol)
	case err == nil:
		t.identify(c)
		err = t.serveCtl(ctx, c, s)
		t.noteRefusal(c, err)
	}
	if errors.Is(err, ErrProtocol) {
		t.offend(c.peer, "ctl", err)
	}
	t.log.Debug("connection closed", "peer", c.peer, "addr", c.raw.RemoteMultiaddr(), "why", err)
	c.raw.Close()
}

// noteRefusal records why a verified connection ended if one side refuses the other: the
// dialing side decides only after this one has verified it.
func (t *Transport) noteRefusal(c *conn, err error) {
	r, ok := errors.AsType[*RefusedError](err)
	if !ok {
		return
	}
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	if n := t.peers.byID[c.peer]; n != nil {
		n.lastErr, n.failedAt = r, t.cfg.Clock.Now()
	}
}

// helloTime returns the time for both hellos on c: more over a slow path, and for a known
// peer. Over a link that is full the hellos take ten seconds and more, and a handshake that was for
// nothing keeps it full. A TCP connection that was punched may exist on one side only, and while
// it is there it is in the way of the next attempt: it ends early.
func (t *Transport) helloTime(c *conn) time.Duration {
	most := 3 * t.cfg.Timing.Hello
	if (!c.direct() || c.network() != "tcp") && t.members.isKnown(c.peer) {
		return most
	}
	return min(t.cfg.Timing.Hello+2*c.longestRTT(), most)
}

// exchangeHellos exchanges the hellos over s within the time limit for both, and returns
// the other side's.
func (t *Transport) exchangeHellos(s *stream, first bool) (*proto.Hello, error) {
	if err := s.SetDeadline(time.Now().Add(t.helloTime(s.conn))); err != nil {
		return nil, err
	}
	if first {
		if err := t.sendFirstHello(s); err != nil {
			return nil, err
		}
	}
	sent := s.conn.clock.Mono()
	h, err := readHello(s)
	s.conn.gotMessage.Store(true)
	if first {
		s.conn.helloRTT = s.conn.clock.Mono() - sent
	}
	if err == nil && !first && len(h.GetChallenge()) > 0 {
		h, err = t.answerChallenge(s, h)
	}
	if err != nil {
		return nil, err
	}
	if reason := t.admitHello(s.conn, h); reason != nil {
		return nil, t.refuse(s, reason)
	}
	if !first {
		if err := t.sendHello(s, nil); err != nil {
			return nil, err
		}
	}
	return h, s.SetDeadline(time.Time{})
}

// sendFirstHello sends the first hello. An unknown peer must first prove that it belongs
// to this mesh.
func (t *Transport) sendFirstHello(s *stream) error {
	if t.gate.Hello() == nil {
		return errNoMember
	}
	if !t.members.isKnown(s.conn.peer) {
		if err := t.challenge(s); err != nil {
			return err
		}
	}
	return t.sendHello(s, nil)
}

// sendHello sends this node's hello, or the reason for a refusal.
func (t *Transport) sendHello(s *stream, reason error) error {
	if r, ok := errors.AsType[*RefusedError](reason); ok {
		h := &proto.Hello{Refusal: proto.Clip(r.Reason, maxReason), Revocation: t.members.revocationOf(s.conn.peer)}
		if strings.Contains(r.Reason, identity.CompareClocks) { // it has shown a genuine certificate
			h.ClockMs = t.cfg.Clock.Now().UnixMilli()
		}
		return t.writeHello(s, h)
	}
	h, err := t.ownHello()
	if err != nil {
		return err
	}
	return t.writeHello(s, h)
}

// writeHello sends h with this protocol version.
func (t *Transport) writeHello(s *stream, h *proto.Hello) error {
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
func (t *Transport) ownHello() (*proto.Hello, error) {
	h := t.gate.Hello()
	if h == nil {
		return nil, errNoMember
	}
	h.Addrs, h.Software = t.Addrs(), t.cfg.Software
	h.ClockDoubted, h.ClockMs = t.cfg.Clock.Doubted(), t.cfg.Clock.Now().UnixMilli() // the doubt may end between them
	if t.cfg.Mail != nil {
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
func (t *Transport) admitHello(c *conn, h *proto.Hello) error {
	t.helloClock(c, h)
	if err := t.precheckHello(c, h); err != nil {
		return err
	}
	h.Addrs = usable(h.GetAddrs(), c.raw.RemoteMultiaddr(), proto.MaxAddrs)
	if err := t.gate.Admit(h, c.peer); err != nil {
		return &RefusedError{c.peer, err.Error(), false}
	}
	return nil
}

// precheckHello checks what needs no certificate. Its error is a RefusedError.
func (t *Transport) precheckHello(c *conn, h *proto.Hello) error {
	switch {
	case h.GetRefusal() != "":
		return t.refusalFrom(c, h)
	case h.GetVersion() != proto.Version:
		return &RefusedError{c.peer, fmt.Sprintf("it uses protocol version %d, this node uses %d", h.GetVersion(), proto.Version), false}
	case t.gate.Hello() == nil:
		return &RefusedError{c.peer, reasonNoMesh, false}
	case t.members.revocationOf(c.peer) != nil:
		return &RefusedError{c.peer, reasonRevoked, false}
	case t.gate.Blocked(c.peer):
		return &RefusedError{c.peer, "it is blocked", false}
	}
	return nil
}

// endHello records the result of the hello of c: err is nil if both sides accepted. It
// returns false if there is a result already.
func (t *Transport) endHello(c *conn, h *proto.Hello, err error) bool {
	if c.helloDone.Swap(true) {
		return false
	}
	c.hello, c.err = h, err
	if err == nil {
		c.measure() // so that the round trip is known at once
		c.member.Store(t.members.activeMember(c.peer))
	}
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	close(c.ready) // under mu: a dial that it wakes must find the error
	if n := t.peers.byID[c.peer]; n != nil && err != nil {
		n.lastErr, n.helloErr, n.failedAt = describeHelloError(err), err, t.cfg.Clock.Now()
	}
	select {
	case <-c.gone:
		return true
	default:
	}
	if err != nil {
		t.met.refused.Inc()
		t.logNoHello(c, err)
		return true
	}
	n := t.peers.get(c.peer)
	n.clock = c.told
	t.join(n, c)
	return true
}

// expectHello closes an inbound connection without a timely hello.
func (t *Transport) expectHello(ctx context.Context, c *conn) {
	timer := time.NewTimer(t.helloTime(c))
	defer timer.Stop()
	select {
	case <-c.ready:
	case <-c.gone:
	case <-ctx.Done():
	case <-timer.C:
		if !c.joining.Load() {
			t.logNoHello(c, errNoHello)
			c.raw.Close()
		}
	}
}
