package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	msmux "github.com/multiformats/go-multistream"

	"github.com/balefire/balefire/transport/admit"
)

// A preHelloFilter is the network as libp2p's own services see it. Whoever is on it has
// not said hello: no service hears of the connection, and a stream of it comes to
// them by enter only. So identify, which libp2p would exchange with everybody at
// once, tells strangers nothing and asks them nothing.
//
//	connection ──▶ hello ── welcome ──▶ identify, ping, gossip, DHT, relay, …
//	                  └──▶ ctl, join, the answer of AutoNAT: nothing else
type preHelloFilter struct {
	*swarm.Swarm
	filterStream func(network.Stream) network.Stream // the stream to serve, nil: it was ended; default: all are served
	starting     bool                                // libp2p's services begin
}

// SetStreamHandler has streams served that enter lets in.
func (p *preHelloFilter) SetStreamHandler(serve network.StreamHandler) {
	if p.filterStream == nil {
		p.Swarm.SetStreamHandler(serve)
		return
	}
	p.Swarm.SetStreamHandler(func(s network.Stream) {
		if s = p.filterStream(s); s != nil {
			serve(s)
		}
	})
}

// Notify tells n of what happens. Of the services that begin with the host only
// identify wants to know of new connections, and is told of them by [Transport.identify].
func (p *preHelloFilter) Notify(n network.Notifiee) {
	if p.starting && p.filterStream != nil {
		n = noConnected{n}
	}
	p.Swarm.Notify(n)
}

// noConnected is told of everything but new connections.
type noConnected struct{ network.Notifiee }

// Connected does nothing.
func (noConnected) Connected(network.Network, network.Conn) {}

// swarmOf returns what is below n, nil if that is no swarm.
func swarmOf(n network.Network) *swarm.Swarm {
	if p, ok := n.(*preHelloFilter); ok {
		return p.Swarm
	}
	return nil
}

// What is served without a hello, and what a member whose certificate is over may
// use besides. AutoNAT answers from an identity that is made for it alone.
var (
	preHelloProtocols = []protocol.ID{streamCtl, streamJoin, autonatv2.DialBackProtocol}
	lapsedProtocols   = []protocol.ID{streamTask, streamChunk, streamSync, streamEcho}
)

// errNotServed is why a name on a stream is not looked at.
var errNotServed = errors.New("transport: one name is looked at before the hello")

// filterStream returns the stream to serve, or nil when it was ended. A stream that came
// before the hello waits for it, unless it is one of those that need none: whoever
// says none is not even told which names mean something here.
func (t *Transport) filterStream(raw network.Stream) network.Stream {
	c := t.connOf(raw)
	if c == nil {
		raw.Reset()
		return nil
	}
	if c.verified() && t.activeMember(c.peer) {
		return raw
	}
	s, ok := t.filterBeforeHello(c, raw)
	if !ok {
		t.met.refused.Inc()
		raw.Reset()
		return nil
	}
	return s
}

// filterBeforeHello is enter for a stream of one who is not known to be a member now.
func (t *Transport) filterBeforeHello(c *conn, raw network.Stream) (network.Stream, bool) {
	defer c.waiting.Add(-1)
	if c.waiting.Add(1) > maxWaiting || !c.verified() && !t.allow(c.peer, admit.Stream) {
		return nil, false
	}
	s, name, err := peek(raw, t.cfg.Timing.Hello)
	switch {
	case err != nil:
		return nil, false
	case slices.Contains(preHelloProtocols, name):
		s.oneName = true
		return s, true
	}
	half := t.cfg.Timing.Hello / 2
	// The first versions ask to join only after this has ended, and that in time.
	if joins := !c.helloEndsWithin(half) && name == identify.ID && !c.hasCtl.Load(); joins {
		return nil, false
	}
	return s, c.helloEndsWithin(half) && c.verified() && (t.activeMember(c.peer) || slices.Contains(lapsedProtocols, name))
}

// helloEndsWithin reports whether the hello of c ends within limit.
func (c *conn) helloEndsWithin(limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.ready:
		return true
	case <-c.gone:
	case <-timer.C:
	}
	return false
}

// peek reads which protocol a stream is opened for, and nothing of what follows.
func peek(raw network.Stream, limit time.Duration) (*peekedStream, protocol.ID, error) {
	if err := raw.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, "", err
	}
	s := &peekedStream{Stream: raw}
	both := io.TeeReader(raw, &s.head)
	if _, err := msmux.ReadNextToken[protocol.ID](both); err != nil { // multistream's own name
		return nil, "", err
	}
	name, err := msmux.ReadNextToken[protocol.ID](both)
	if err != nil {
		return nil, "", err
	}
	return s, name, raw.SetReadDeadline(time.Time{})
}

// A peekedStream stream begins with what was read of it already.
type peekedStream struct {
	network.Stream
	head    bytes.Buffer
	oneName bool // no name but the first is looked at
}

// Read reads the head first.
func (s *peekedStream) Read(p []byte) (int, error) {
	switch {
	case s.head.Len() > 0:
		return s.head.Read(p)
	case s.oneName && s.Protocol() == "":
		return 0, errNotServed
	}
	return s.Stream.Read(p)
}

// awaitHelloByID returns when hellos were exchanged with the peer, or none can be.
func (t *Transport) awaitHelloByID(ctx context.Context, id peer.ID) error {
	p, err := fromLibp2p(id)
	if err != nil || t.Connected(p) {
		return err
	}
	return t.awaitHello(ctx, p)
}

// identify has libp2p exchange with the other end of c, a member, what each
// listens to and where it sees the other.
func (t *Transport) identify(c *conn) {
	if h, ok := t.host.(interface{ IDService() identify.IDService }); ok && t.activeMember(c.peer) {
		h.IDService().IdentifyWait(c.raw)
	}
}
