package transport

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/net/swarm"
	"github.com/libp2p/go-libp2p/p2p/protocol/autonatv2"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	msmux "github.com/multiformats/go-multistream"
)

// A preHelloFilter is the network as libp2p's own services see it. Before the hello no
// service learns of a connection, and its streams reach them only through filterStream.
// Thus identify, which libp2p would run with every peer at once, sends strangers nothing
// and asks them nothing.
//
//	connection ──▶ hello ── accepted ──▶ identify, ping, gossip, DHT, relay, …
//	                  └──▶ ctl, join, AutoNAT dial-back: nothing else
type preHelloFilter struct {
	*swarm.Swarm
	filterStream func(network.Stream) network.Stream // returns the stream to serve; nil: it was closed; default: all are served
	starting     bool                                // libp2p's services are starting
}

// SetStreamHandler serves the streams that filterStream admits.
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

// Notify registers n. Of the services that start with the host only identify handles new
// connections, and it is called for them by [Transport.identify].
func (p *preHelloFilter) Notify(n network.Notifiee) {
	if p.starting && p.filterStream != nil {
		n = noConnected{n}
	}
	p.Swarm.Notify(n)
}

// noConnected receives all notifications except new connections.
type noConnected struct{ network.Notifiee }

// Connected does nothing.
func (noConnected) Connected(network.Network, network.Conn) {}

// A hostBus is the event bus of the host. Identify learns of new protocols only: it would
// push every change of the addresses to all peers at once, two kilobytes to each, which
// fills a narrow link for seconds. Peers learn them from the hello and by gossip.
type hostBus struct{ event.Bus }

// Subscribe subscribes to events of the given types.
func (b hostBus) Subscribe(types any, opts ...event.SubscriptionOpt) (event.Subscription, error) {
	if all, ok := types.([]any); ok && slices.ContainsFunc(all, isProtocolsUpdated) {
		types = slices.DeleteFunc(slices.Clone(all), func(typ any) bool { _, ok := typ.(*event.EvtLocalAddressesUpdated); return ok })
	}
	return b.Bus.Subscribe(types, opts...)
}

func isProtocolsUpdated(typ any) bool { _, ok := typ.(*event.EvtLocalProtocolsUpdated); return ok }

// swarmOf returns the swarm below n, nil if there is none.
func swarmOf(n network.Network) *swarm.Swarm {
	if p, ok := n.(*preHelloFilter); ok {
		return p.Swarm
	}
	return nil
}

// Protocols served without a hello, and those that a member with an expired certificate
// may also use. AutoNAT dials back from an identity created only for that.
var (
	preHelloProtocols = []protocol.ID{streamCtl, streamJoin, autonatv2.DialBackProtocol}
	lapsedProtocols   = []protocol.ID{streamTask, streamLease, streamMail, streamChunk, streamSync, streamEcho}
)

// errNotServed is returned when a second protocol is proposed on a stream.
var errNotServed = errors.New("transport: only one protocol proposal is accepted before the hello")

// helloEndsWithin reports whether the hello of c completes within limit.
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

// peek reads the protocol proposed on a stream, and nothing after it.
func peek(raw network.Stream, limit time.Duration) (*peekedStream, protocol.ID, error) {
	if err := raw.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, "", err
	}
	s := &peekedStream{Stream: raw}
	both := io.TeeReader(raw, &s.head)
	if _, err := msmux.ReadNextToken[protocol.ID](both); err != nil { // the multistream protocol itself
		return nil, "", err
	}
	name, err := msmux.ReadNextToken[protocol.ID](both)
	if err != nil {
		return nil, "", err
	}
	return s, name, raw.SetReadDeadline(time.Time{})
}

// A peekedStream starts with the data that was already read from it.
type peekedStream struct {
	network.Stream
	head    bytes.Buffer
	oneName bool // accept only the first protocol proposal
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

// identify runs libp2p's identify with the other end of c, a member: each learns the
// other's addresses and observed address.
func (t *Transport) identify(c *conn) {
	if h, ok := t.host.(interface{ IDService() identify.IDService }); ok && t.members.activeMember(c.peer) {
		h.IDService().IdentifyWait(c.raw)
	}
}
