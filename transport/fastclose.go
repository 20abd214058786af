package transport

import (
	"context"
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/sec"
)

// A connection ends without last words. TLS says that it ends and yamux says why,
// each to a path that may be dead: they wait for up to fifteen seconds, while
// libp2p holds the locks of the connection. Nobody needs to hear it: a circuit is
// reset behind the words and takes them along, and TCP says by itself that it ends.

// fastCloseSecurity is a way to secure connections that closes what is below and no more. It is
// also where the sockets of TCP are in hand: see resendSoon.
type fastCloseSecurity struct{ sec.SecureTransport }

// SecureInbound secures a connection that somebody else made.
func (a fastCloseSecurity) SecureInbound(ctx context.Context, below net.Conn, p peer.ID) (sec.SecureConn, error) {
	limitRetransmit(below)
	c, err := a.SecureTransport.SecureInbound(ctx, below, p)
	return wrapSecure(c, below, err)
}

// SecureOutbound secures a connection to p.
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
	closeBelow func() error // once: a circuit counts how often it is closed
}

func (c fastCloseConn) Close() error { return c.closeBelow() }

// fastCloseMuxer is a way to share connections that tells nobody why one ends.
type fastCloseMuxer struct{ network.Multiplexer }

// NewConn shares c.
func (t fastCloseMuxer) NewConn(c net.Conn, server bool, scope network.PeerScope) (network.MuxedConn, error) {
	m, err := t.Multiplexer.NewConn(c, server, scope)
	if err != nil {
		return nil, err
	}
	return fastCloseMuxedConn{m}, nil
}

type fastCloseMuxedConn struct{ network.MuxedConn }

func (c fastCloseMuxedConn) CloseWithError(network.ConnErrorCode) error { return c.Close() }
