package transport

import (
	"context"
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
)

// A connection is closed without a goodbye message. TLS sends a close notification and
// yamux a reason, over a path that may be dead: they wait for up to fifteen seconds while
// libp2p holds the connection's locks. No one needs them: a circuit is reset right after
// them, which discards them, and TCP signals the close by itself.

// fastCloseSecurity is a security protocol whose connections close only the layer below.
// TCP sockets are also configured here: see limitRetransmit.
type fastCloseSecurity struct{ sec.SecureTransport }

// SecureInbound secures an inbound connection.
func (a fastCloseSecurity) SecureInbound(ctx context.Context, below net.Conn, p peer.ID) (sec.SecureConn, error) {
	limitRetransmit(below)
	c, err := a.SecureTransport.SecureInbound(ctx, below, p)
	return wrapSecure(c, below, err)
}

// SecureOutbound secures an outbound connection to p.
func (a fastCloseSecurity) SecureOutbound(ctx context.Context, below net.Conn, p peer.ID) (sec.SecureConn, error) {
	limitRetransmit(below)
	c, err := a.SecureTransport.SecureOutbound(ctx, below, p)
	return wrapSecure(c, below, err)
}

func wrapSecure(c sec.SecureConn, below net.Conn, err error) (sec.SecureConn, error) {
	if err != nil {
		return nil, err
	}
	return fastCloseConn{c, sync.OnceValue(below.Close)}, nil
}

type fastCloseConn struct {
	sec.SecureConn
	closeBelow func() error // called once: a circuit counts its closes
}

func (c fastCloseConn) Close() error { return c.closeBelow() }

// fastCloseMuxer is a multiplexer that sends no reason when a connection is closed.
type fastCloseMuxer struct{ network.Multiplexer }

// NewConn multiplexes c.
func (t fastCloseMuxer) NewConn(c net.Conn, server bool, scope network.PeerScope) (network.MuxedConn, error) {
	m, err := t.Multiplexer.NewConn(c, server, scope)
	if err != nil {
		return nil, err
	}
	return fastCloseMuxedConn{m}, nil
}

type fastCloseMuxedConn struct{ network.MuxedConn }

func (c fastCloseMuxedConn) CloseWithError(network.ConnErrorCode) error { return c.Close() }
