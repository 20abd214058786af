package transport

import (
	"context"
	"slices"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// A streamGuard decides which streams of others are served.
type streamGuard struct {
	timing  Timing
	met     *metrics
	group   *taskGroup
	peers   *peerTable
	rates   *rates
	members *members
	greeter *greeter
}

// filterStream returns the stream to serve, or nil if it was closed. A stream opened
// before the hello waits for it, unless its protocol needs none: a peer without a hello
// does not even learn which protocols are supported.
func (sg *streamGuard) filterStream(raw network.Stream) network.Stream {
	c := sg.peers.connOf(raw)
	if c == nil {
		raw.Reset()
		return nil
	}
	if c.verified() && sg.members.activeMember(c.peer) {
		return raw
	}
	s, ok := sg.filterBeforeHello(c, raw)
	if !ok {
		sg.met.refused.Inc()
		raw.Reset()
		return nil
	}
	return s
}

// filterBeforeHello is filterStream for a peer that is not known to be an active member.
func (sg *streamGuard) filterBeforeHello(c *conn, raw network.Stream) (network.Stream, bool) {
	defer c.greeting.waiting.Add(-1)
	if c.greeting.waiting.Add(1) > maxWaiting || !c.verified() && !sg.rates.allow(c.peer, admit.Stream) {
		return nil, false
	}
	s, name, err := peek(raw, sg.timing.Hello)
	switch {
	case err != nil:
		return nil, false
	case slices.Contains(preHelloProtocols, name):
		s.oneName = true
		return s, true
	}
	half := sg.greeter.helloTime(c) / 2
	// The first versions request to join only after identify has ended, and do not wait
	// long for that.
	if joins := !c.helloEndsWithin(half) && name == identify.ID && !c.hasCtl.Load(); joins {
		return nil, false
	}
	return s, c.helloEndsWithin(half) && c.verified() && (sg.members.activeMember(c.peer) || slices.Contains(lapsedProtocols, name))
}

// afterHello returns a handler that calls serve for each stream whose connection is verified,
// or becomes verified in time. Other streams are reset, and those beyond the rate of their kind.
func (sg *streamGuard) afterHello(kind admit.Kind, serve func(context.Context, *conn, network.Stream)) network.StreamHandler {
	return func(raw network.Stream) {
		c := sg.peers.connOf(raw)
		if c == nil || !sg.rates.allow(c.peer, kind) || c.greeting.waiting.Load() >= maxWaiting {
			sg.met.refused.Inc()
			raw.Reset()
			return
		}
		c.greeting.waiting.Add(1)
		ok := sg.group.start(func(ctx context.Context) {
			verified := sg.greeter.awaitVerified(ctx, c)
			c.greeting.waiting.Add(-1)
			if !verified {
				raw.Reset()
				return
			}
			serve(ctx, c, raw)
		})
		if !ok {
			raw.Reset()
		}
	}
}

// onlyMembers is afterHello for protocols that are served only to members, and not to a node
// that was admitted with a recently expired certificate to have it renewed.
func (sg *streamGuard) onlyMembers(serve network.StreamHandler) network.StreamHandler {
	return sg.afterHello(admit.Stream, func(_ context.Context, c *conn, raw network.Stream) {
		if !sg.members.activeMember(c.peer) {
			sg.met.refused.Inc()
			raw.Reset()
			return
		}
		serve(raw)
	})
}

// handler returns the handler of a protocol that is served only after the hello.
func (sg *streamGuard) handler(name string, max int, serve func(context.Context, *stream) error) network.StreamHandler {
	kind := admit.Stream
	if name == "chunk" { // a body takes as little as a round trip, and the other streams must not suffer from many
		kind = admit.Body
	}
	return sg.afterHello(kind, func(ctx context.Context, c *conn, raw network.Stream) {
		defer raw.Reset()
		s := newStream(raw, raw, c, max, sg.timing)
		s.work = max == proto.MaxFrame
		defer s.unblock(ctx)()
		sg.rates.streamEnded(c.peer, name, serve(ctx, s))
	})
}

// maxWaiting bounds the streams of one connection that wait for its hello.
const maxWaiting = 16
