package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	libtransport "github.com/libp2p/go-libp2p/core/transport"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// On a link that loses packets one QUIC connection is slow by itself: it takes
// every loss for congestion. Several carry several times as much. libp2p makes
// one connection a peer, so the further ones are made below it. They belong to
// who dialled: streams are opened from that side only.

// Features that a hello states.
const (
	featureWiden = "widen" // this node knows further connections
	featureWide  = "wide"  // this connection is one
)

// maxWide bounds the further connections to a peer.
const maxWide = 8

// errCannotWiden is returned for a peer with which there is nothing to widen.
var errCannotWiden = errors.New("transport: no direct connection to widen")

// Widen makes n further QUIC connections to p, which must be connected directly,
// and returns how many there are then. They end with the last other connection.
func (t *Transport) Widen(ctx context.Context, p proto.PeerID, n int) (int, error) {
	c := t.best(p)
	switch {
	case c == nil || !c.direct():
		return 0, fmt.Errorf("widen %s: %w", p.Short(), errCannotWiden)
	case !slices.Contains(c.hello.GetFeatures(), featureWiden):
		return 0, fmt.Errorf("widen %s: %w: its software is too old", p.Short(), errCannotWiden)
	}
	addr := t.quicAddr(c)
	if addr == nil {
		return 0, fmt.Errorf("widen %s: %w: no QUIC address of it is known", p.Short(), errCannotWiden)
	}
	var err error
	for range n {
		if t.width(p) >= maxWide {
			break
		}
		if err = t.widenOnce(ctx, p, addr); err != nil {
			err = fmt.Errorf("widen %s: %w", p.Short(), err)
			break
		}
	}
	return t.width(p), err
}

func (t *Transport) width(p proto.PeerID) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.neighbours[p]; n != nil {
		return len(n.wide)
	}
	return 0
}

// quicAddr returns where the other end of c takes QUIC connections.
func (t *Transport) quicAddr(c *conn) ma.Multiaddr {
	if c.network() == "quic" {
		return c.raw.RemoteMultiaddr()
	}
	list, err := parseAddrs(c.peer, slices.Concat(t.contact(c.peer).Addrs, c.hello.GetAddrs()))
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(list, func(a ma.Multiaddr) bool {
		_, err := a.ValueForProtocol(ma.P_QUIC_V1)
		return err == nil && !isCircuit(a)
	})
	if i < 0 {
		return nil
	}
	return list[i]
}

// widenOnce makes one further connection and returns after both hellos.
func (t *Transport) widenOnce(ctx context.Context, p proto.PeerID, a ma.Multiaddr) error {
	sw := swarmOf(t.host.Network())
	if sw == nil {
		return errors.New("the network makes no further connections")
	}
	tr := sw.TransportForDialing(a)
	if tr == nil {
		return fmt.Errorf("nothing dials %s", a)
	}
	under, err := tr.Dial(ctx, a, toLibp2p(p))
	if err != nil {
		return err
	}
	raw := &wideConn{CapableConn: under, limits: t.host.Network().ResourceManager()}
	c := newConn(raw, p, t.cfg.Clock)
	c.wide = true
	c.greeted.Store(true)
	t.mu.Lock()
	t.conns[raw] = c
	t.mu.Unlock()
	held := t.crew.hand(func(ctx context.Context) { t.holdWide(ctx, c, under) }) &&
		t.crew.hand(func(ctx context.Context) { t.greet(ctx, c) })
	if !held {
		under.Close()
		return errors.New("the transport ends")
	}
	select {
	case <-c.ready:
		return c.err
	case <-ctx.Done():
		under.Close()
		return ctx.Err()
	}
}

// holdWide refuses the streams of the other side until c ends.
func (t *Transport) holdWide(ctx context.Context, c *conn, under libtransport.CapableConn) {
	stop := context.AfterFunc(ctx, func() { under.Close() })
	defer stop()
	for {
		s, err := under.AcceptStream()
		if err != nil {
			break
		}
		s.Reset()
	}
	under.Close()
	t.disconnected(nil, c.raw)
}

// joinWide adds a further connection to n. The caller holds mu.
func (t *Transport) joinWide(n *neighbour, c *conn) {
	if len(n.conns) == 0 || len(n.wide) >= maxWide {
		t.crew.hand(func(context.Context) { c.raw.Close() })
		return
	}
	n.wide = append(n.wide, c)
	t.met.connections.WithLabelValues("wide", c.network()).Inc()
}

// leaveWide removes one and reports whether it was there. The caller holds mu.
func (t *Transport) leaveWide(n *neighbour, c *conn) bool {
	i := slices.Index(n.wide, c)
	if i < 0 {
		return false
	}
	n.wide = slices.Delete(n.wide, i, i+1)
	t.met.connections.WithLabelValues("wide", c.network()).Dec()
	return true
}

// isWide reports whether c is a further connection, by who made it or by the
// hello of who did.
func (c *conn) isWide() bool {
	return c.wide || c.inbound && slices.Contains(c.hello.GetFeatures(), featureWide)
}

// A wideConn is a connection of libp2p's transport as one of its network.
type wideConn struct {
	libtransport.CapableConn
	limits network.ResourceManager
}

// ID names the connection in logs.
func (c *wideConn) ID() string { return fmt.Sprintf("wide-%p", c) }

// Stat says that this node dialled.
func (c *wideConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: network.DirOutbound}}
}

// GetStreams returns none: nobody counts them.
func (c *wideConn) GetStreams() []network.Stream { return nil }

// NewStream opens a stream within the limits of the peer.
func (c *wideConn) NewStream(ctx context.Context) (network.Stream, error) {
	scope, err := c.limits.OpenStream(c.RemotePeer(), network.DirOutbound)
	if err != nil {
		return nil, err
	}
	s, err := c.OpenStream(ctx)
	if err != nil {
		scope.Done()
		return nil, err
	}
	return &wideStream{MuxedStream: s, conn: c, scope: scope, done: sync.OnceFunc(scope.Done)}, nil
}

// A wideStream is a stream of a wideConn.
type wideStream struct {
	network.MuxedStream
	conn     *wideConn
	scope    network.StreamManagementScope
	done     func()
	protocol protocol.ID
}

// ID names the stream in logs.
func (s *wideStream) ID() string { return fmt.Sprintf("wide-%p", s) }

// Protocol returns what SetProtocol set.
func (s *wideStream) Protocol() protocol.ID { return s.protocol }

// SetProtocol counts the stream as one of p.
func (s *wideStream) SetProtocol(p protocol.ID) error {
	s.protocol = p
	return s.scope.SetProtocol(p)
}

// Stat says that this node opened it.
func (s *wideStream) Stat() network.Stats { return network.Stats{Direction: network.DirOutbound} }

// Conn returns the connection.
func (s *wideStream) Conn() network.Conn { return s.conn }

// Scope returns its part of the limits.
func (s *wideStream) Scope() network.StreamScope { return s.scope }

// Close ends both directions.
func (s *wideStream) Close() error {
	defer s.done()
	return s.MuxedStream.Close()
}

// Reset drops the stream.
func (s *wideStream) Reset() error {
	defer s.done()
	return s.MuxedStream.Reset()
}

// ResetWithError drops the stream and says why.
func (s *wideStream) ResetWithError(code network.StreamErrorCode) error {
	defer s.done()
	return s.MuxedStream.ResetWithError(code)
}
