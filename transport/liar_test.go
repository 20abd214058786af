package transport

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	circuit "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	relayv2 "github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"

	"github.com/balefire/balefire/proto"
)

// A Lie is what a relay does to the circuits that it carries. Its own connections are as
// good as those of an honest one.
type Lie struct {
	Delay   time.Duration // of each buffer, one after another
	Rate    int           // bytes per second of each direction; 0: no limit
	Swallow bool          // what comes from From is read and dropped
	From    proto.PeerID
	Refuse  bool // all reservations and circuits
	Reset   bool // all requests for circuits
	Break   bool // all circuits, with the first byte
	Drop    int  // one of so many buffers is read and dropped; 1: all; 0: none
}

// A Liar is a relay service whose operator can change what it does to its circuits.
type Liar struct {
	mu  sync.Mutex
	lie Lie
}

// Tell sets what the relay does from now on.
func (l *Liar) Tell(lie Lie) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lie = lie
}

func (l *Liar) now() Lie {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lie
}

// ServeLies makes a node without a relay service a relay that may lie, until stop is
// called.
func (t *Transport) ServeLies(l *Liar) (stop func(), err error) {
	r := relayv2.DefaultResources()
	r.Limit, r.BufferSize = nil, bufferSize
	s, err := relayv2.New(&lyingHost{guardedHost{t.host, t.guards.onlyMembers}, l}, relayv2.WithResources(r))
	if err != nil {
		return nil, err
	}
	return func() { s.Close() }, nil
}

// A lyingHost is the host of a relay that may lie.
type lyingHost struct {
	guardedHost
	liar *Liar
}

// SetStreamHandler serves pid on streams that may lie.
func (h *lyingHost) SetStreamHandler(pid protocol.ID, serve network.StreamHandler) {
	h.guardedHost.SetStreamHandler(pid, func(s network.Stream) {
		if h.liar.now().Refuse {
			s.Reset()
			return
		}
		serve(&lyingStream{Stream: s, liar: h.liar})
	})
}

// NewStream opens a stream that may lie.
func (h *lyingHost) NewStream(ctx context.Context, p peer.ID, pids ...protocol.ID) (network.Stream, error) {
	s, err := h.guardedHost.NewStream(ctx, p, pids...)
	if err != nil {
		return nil, err
	}
	return &lyingStream{Stream: s, liar: h.liar}, nil
}

// A lyingStream is one end of a circuit, on which the relay may lie about what it reads.
type lyingStream struct {
	network.Stream
	liar *Liar
	seen int // buffers, since it drops some
}

// Read reads what the relay forwards. The messages that open a circuit, which it reads
// with small buffers, are left alone.
func (s *lyingStream) Read(p []byte) (int, error) {
	if len(p) < bufferSize {
		n, err := s.Stream.Read(p)
		if n > 1 && p[1] == byte(circuit.HopMessage_CONNECT) && s.liar.now().Reset { // behind the tag of the type
			s.Reset()
			return 0, network.ErrReset
		}
		return n, err
	}
	if s.liar.now().Break {
		s.Reset()
		return 0, network.ErrReset
	}
	for {
		if rate := s.liar.now().Rate; rate > 0 {
			p = p[:min(len(p), rate/10)]
		}
		n, err := s.Stream.Read(p)
		lie := s.liar.now()
		time.Sleep(lie.Delay) // virtual
		if lie.Rate > 0 {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(lie.Rate)) // virtual
		}
		if from, bad := fromLibp2p(s.Conn().RemotePeer()); err == nil && bad == nil && lie.Swallow && from == lie.From {
			continue
		}
		if err == nil && lie.Drop > 0 {
			if s.seen++; s.seen%lie.Drop == 0 {
				continue
			}
		}
		return n, err
	}
}
