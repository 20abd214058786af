package transport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

// A RefusedError says that one side of a connection does not want the other.
type RefusedError struct {
	Peer   proto.PeerID // the other side
	Reason string
	Theirs bool // it refused; else this node did
}

func (e *RefusedError) Error() string {
	if e.Theirs {
		return fmt.Sprintf("transport: %s refuses this node: %s", e.Peer, e.Reason)
	}
	return fmt.Sprintf("transport: %s is refused: %s", e.Peer, e.Reason)
}

// errNoMember is why a node without a certificate has nothing to say.
var errNoMember = errors.New("transport: this node is in no mesh yet; join one with a ticket")

// maxReason bounds what is told about a refusal.
const maxReason = 256

// greet says hello first, as the side that dialled, and keeps the ctl stream
// up until the connection ends.
func (t *Transport) greet(ctx context.Context, c *conn) {
	s, err := openStream(ctx, c, streamCtl, proto.MaxControl, t.cfg.Timing)
	if err == nil {
		defer s.unblock(ctx)()
		err = t.exchange(s, true)
	}
	t.talk(ctx, c, s, err)
}

// answer says hello second.
func (t *Transport) answer(ctx context.Context, c *conn, s *stream) {
	defer s.unblock(ctx)()
	t.talk(ctx, c, s, t.exchange(s, false))
}

// talk ends the hello and, when it went well, has the conversation that follows.
func (t *Transport) talk(ctx context.Context, c *conn, s *stream, err error) {
	t.settle(c, err)
	if err == nil {
		err = t.converse(ctx, c, s)
	}
	if errors.Is(err, ErrProtocol) {
		t.offend(c.peer, "ctl", err)
	}
	t.log.Debug("connection ends", "peer", c.peer.Short(), "addr", c.raw.RemoteMultiaddr(), "why", err)
	c.raw.Close()
}

// exchange carries the hellos over s in the time that is set for both. On
// success the conn's hello is set.
func (t *Transport) exchange(s *stream, first bool) error {
	if err := s.SetDeadline(time.Now().Add(t.cfg.Timing.Hello)); err != nil {
		return err
	}
	if first {
		if err := t.sendHello(s, nil); err != nil {
			return err
		}
	}
	h, err := readHello(s)
	if err != nil {
		return err
	}
	reason := t.welcome(s.conn, h)
	if r, ok := errors.AsType[*RefusedError](reason); ok && r.Theirs {
		return reason
	}
	if reason != nil || !first {
		err = t.sendHello(s, reason)
	}
	if reason != nil {
		// the other side closes as soon as it has read the reason
		s.CloseWrite()
		s.rd.NextRaw()
		return reason
	}
	if err != nil {
		return err
	}
	s.conn.hello = h
	return s.SetDeadline(time.Time{})
}

// sendHello sends this node's hello, or why the other side is not welcome.
func (t *Transport) sendHello(s *stream, reason error) error {
	m, err := t.helloMessage(reason)
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

func (t *Transport) helloMessage(reason error) (*proto.Message, error) {
	h := t.gate.Hello()
	switch r, ok := errors.AsType[*RefusedError](reason); {
	case ok:
		h = &proto.Hello{Refusal: proto.Clip(r.Reason, maxReason)}
	case h == nil:
		return nil, errNoMember
	default:
		h.Addrs, h.Software = t.Addrs(), t.cfg.Software
		h.Addrs = h.Addrs[:min(len(h.Addrs), maxAddrs)]
	}
	h.Version = proto.Version
	b, err := proto.Encode(nil, h)
	if err != nil {
		return nil, fmt.Errorf("own hello: %w", err)
	}
	return &proto.Message{Type: proto.MessageType_HELLO, Payload: b}, nil
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
	if err := proto.Decode(b, &m); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", ErrProtocol, err)
	}
	if m.GetType() != proto.MessageType_HELLO {
		return nil, fmt.Errorf("%w: message type %d before the hello", ErrProtocol, m.GetType())
	}
	h := new(proto.Hello)
	if err := proto.Decode(m.GetPayload(), h); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", ErrProtocol, err)
	}
	return h, nil
}

// welcome decides about the other side's hello. Its error is a RefusedError.
func (t *Transport) welcome(c *conn, h *proto.Hello) error {
	switch {
	case h.GetRefusal() != "":
		return &RefusedError{c.peer, proto.Clip(h.GetRefusal(), maxReason), true}
	case h.GetVersion() != proto.Version:
		return &RefusedError{c.peer, fmt.Sprintf("it speaks version %d of the protocol, this node speaks %d", h.GetVersion(), proto.Version), false}
	case t.gate.Hello() == nil:
		return &RefusedError{c.peer, "this node is in no mesh yet", false}
	case t.gate.Blocked(c.peer):
		return &RefusedError{c.peer, "it is blocked", false}
	}
	h.Addrs = usable(h.GetAddrs(), c.raw.RemoteMultiaddr(), maxAddrs)
	if err := t.gate.Admit(h, c.peer); err != nil {
		return &RefusedError{c.peer, err.Error(), false}
	}
	return nil
}

// settle ends the hello of c: err is nil when both sides are content.
func (t *Transport) settle(c *conn, err error) {
	c.err = err
	close(c.ready)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.neighbours[c.peer]; n != nil && err != nil {
		n.lastErr, n.verdict = err, err
	}
	select {
	case <-c.gone:
		return
	default:
	}
	if err != nil {
		t.met.refused.Inc()
		t.log.Info("no hello", "peer", c.peer.Short(), "addr", c.raw.RemoteMultiaddr(), "why", err)
		return
	}
	t.join(t.neighbour(c.peer), c)
}

// expect closes an inbound connection that says no hello in time.
func (t *Transport) expect(ctx context.Context, c *conn) {
	timer := time.NewTimer(t.cfg.Timing.Hello)
	defer timer.Stop()
	select {
	case <-c.ready:
	case <-c.gone:
	case <-ctx.Done():
	case <-timer.C:
		if !c.joining.Load() {
			t.log.Info("no hello", "peer", c.peer.Short(), "addr", c.raw.RemoteMultiaddr(), "why", "it said nothing")
			c.raw.Close()
		}
	}
}
