package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	exchangeTimeout = 20 * time.Second // for a request and its reply
	maxExchanges    = 4                // served at once per connection
)

// Exchange sends m, a SYNC, to p on its own stream and returns the SYNCED that answers
// it. The peer must be connected. Any error means: try again later.
func (t *Transport) Exchange(ctx context.Context, p proto.PeerID, m *proto.Message) (*proto.Message, error) {
	reply, err := t.exchangeOnce(ctx, p, m)
	if err != nil {
		t.met.exchanges.WithLabelValues("failed").Inc()
		return nil, fmt.Errorf("sync with %s: %w", p.Short(), err)
	}
	t.met.exchanges.WithLabelValues("asked").Inc()
	return reply, nil
}

func (t *Transport) exchangeOnce(ctx context.Context, p proto.PeerID, m *proto.Message) (*proto.Message, error) {
	if m.GetType() != proto.TypeSync {
		return nil, fmt.Errorf("message type %d is not one of a sync stream", m.GetType())
	}
	c := t.peers.best(p)
	if c == nil {
		return nil, ErrNotConnected
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	s, err := openStream(ctx, c, streamSync, proto.MaxControl, t.cfg.Timing)
	if err != nil {
		return nil, err
	}
	defer s.Reset()
	defer s.unblock(ctx)()
	s.idleTimeout = exchangeTimeout
	if err := s.sendControl(m); err != nil {
		return nil, fmt.Errorf("write: %w", err)
	}
	reply := new(proto.Message)
	if err := s.next(reply); err != nil {
		t.rates.streamEnded(p, "sync", err)
		return nil, fmt.Errorf("read: %w", err)
	}
	if reply.GetType() != proto.TypeSynced {
		err := fmt.Errorf("%w: message type %d answers a SYNC", ErrProtocol, reply.GetType())
		t.rates.streamEnded(p, "sync", err)
		return nil, err
	}
	return reply, nil
}

// serveSync answers one request.
func (t *Transport) serveSync(ctx context.Context, s *stream) error {
	if s.conn.syncing.Add(1) > maxExchanges {
		s.conn.syncing.Add(-1)
		t.met.refused.Inc()
		return nil
	}
	defer s.conn.syncing.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	defer s.unblock(ctx)()
	s.idleTimeout = t.cfg.Timing.Hello
	m := new(proto.Message)
	if err := s.next(m); err != nil {
		return err
	}
	if m.GetType() != proto.TypeSync {
		return fmt.Errorf("%w: message type %d on a sync stream", ErrProtocol, m.GetType())
	}
	reply, err := t.cfg.Sync(ctx, s.conn.peer, m)
	if err != nil {
		return fmt.Errorf("answer a sync: %w", err)
	}
	if err := s.sendControl(reply); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	t.met.exchanges.WithLabelValues("answered").Inc()
	return s.finish()
}

// sendControl sends a message that must fit in a control frame: the other side would
// treat a longer one as an offense.
func (s *stream) sendControl(m *proto.Message) error {
	b, err := proto.AppendFrame(nil, m)
	if err != nil {
		return err
	}
	if len(b) > proto.MaxControl {
		return fmt.Errorf("message of %d bytes, the limit is %d: send it in parts", len(b), proto.MaxControl)
	}
	return s.write(b)
}
