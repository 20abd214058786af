package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// joinTimeout bounds a join at the inviter: it verifies, writes and signs.
const joinTimeout = 20 * time.Second

// handleJoin takes a join stream: the one thing, besides a hello, that is
// served to a stranger. It is served once a connection, and rarely: strangers
// share one account, since a new key costs nothing.
func (t *Transport) handleJoin(raw network.Stream) {
	c := t.connOf(raw)
	var strangers proto.PeerID
	if c == nil || c.joining.Swap(true) || !t.allow(c.peer, admit.Join) || !t.allow(strangers, admit.Join) {
		t.met.refused.Inc()
		raw.Reset()
		return
	}
	ok := t.crew.hand(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, joinTimeout)
		defer cancel()
		s := newStream(raw, raw, c, proto.MaxControl, t.cfg.Timing)
		defer s.unblock(ctx)()
		t.blame(c.peer, "join", t.serveJoin(ctx, s))
		if !c.verified() {
			raw.Conn().Close()
		}
	})
	if !ok {
		raw.Reset()
	}
}

func (t *Transport) serveJoin(ctx context.Context, s *stream) error {
	b, err := s.expect(proto.MessageType_JOIN)
	if err != nil {
		return err
	}
	r := new(proto.JoinRequest)
	if err := proto.Decode(b, r); err != nil {
		return err
	}
	reply := t.cfg.Joiner.Join(ctx, s.conn.peer, r)
	reply.Refusal = proto.Clip(reply.GetRefusal(), maxReason)
	if b, err = proto.Encode(nil, reply); err != nil {
		return err
	}
	if err := s.send(&proto.Message{Type: proto.MessageType_JOINED, Payload: b}); err != nil {
		return err
	}
	s.CloseWrite()
	_, err = s.rd.NextRaw() // until the joiner has read it and closes
	return err
}

// RequestJoin asks the inviter of a ticket for membership, at one of addrs. It
// waits for Run and needs no membership. The connection is given up afterwards: the next
// one begins with a hello.
func (t *Transport) RequestJoin(ctx context.Context, addrs []string, inviter proto.PeerID, r *proto.JoinRequest) (*proto.JoinReply, error) {
	t.setJoining(inviter, 1)
	defer t.setJoining(inviter, -1)
	if err := t.reach(ctx, inviter, addrs); err != nil {
		return nil, fmt.Errorf("join through %s: %w", inviter, err)
	}
	c := t.nextConn(inviter, nil)
	if c == nil {
		return nil, fmt.Errorf("join through %s: it closed the connection", inviter)
	}
	defer c.raw.Close()
	reply, err := t.askJoin(ctx, c, r)
	if err != nil {
		return nil, fmt.Errorf("join through %s: %w", inviter, err)
	}
	return reply, nil
}

func (t *Transport) askJoin(ctx context.Context, c *conn, r *proto.JoinRequest) (*proto.JoinReply, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	b, err := proto.Encode(nil, r)
	if err != nil {
		return nil, err
	}
	s, err := openStream(ctx, c, streamJoin, proto.MaxFrame, t.cfg.Timing)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	defer s.unblock(ctx)()
	if err := s.send(&proto.Message{Type: proto.MessageType_JOIN, Payload: b}); err != nil {
		return nil, err
	}
	if b, err = s.expect(proto.MessageType_JOINED); err != nil {
		return nil, err
	}
	reply := new(proto.JoinReply)
	return reply, proto.Decode(b, reply)
}

func (t *Transport) setJoining(p proto.PeerID, by int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.joins[p] += by; t.joins[p] == 0 {
		delete(t.joins, p)
	}
}
