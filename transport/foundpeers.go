package transport

import (
	"context"
	"errors"
	"sync"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/admit"
)

// foundPeers tries hellos with the nodes that were found, on the LAN or in the DHT, and
// remembers those that are no known members.
type foundPeers struct {
	clock   clock.Clock
	members *members
	rates   *rates
	dialer  *dialer

	mu        sync.Mutex
	strangers strangers
}

// seen records that p was seen on the LAN, at these addresses.
func (f *foundPeers) seen(p proto.PeerID, addrs []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.strangers.note(p, f.clock.Mono())
	x.Addrs, x.onLAN = addrs, true
}

// due returns the nodes on the LAN for which a hello is due.
func (f *foundPeers) due() []Stranger {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strangers.due(f.clock.Mono())
}

// toReport returns p if a report of it is due.
func (f *foundPeers) toReport(p proto.PeerID) (s Stranger, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.strangers[p]
	if x == nil || x.trying || !x.shouldReport(f.clock.Mono()) {
		return s, false
	}
	return x.Stranger, true
}

// list returns those that are no known members.
func (f *foundPeers) list() []Stranger {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strangers.list()
}

// errTooMany is returned for an unvouched peer when many of them were tried recently.
var errTooMany = errors.New("transport: too many unknown peers at once")

// tryHello exchanges hellos with a peer that was found, at these addresses. An unknown
// peer may still be a member.
func (f *foundPeers) tryHello(ctx context.Context, p proto.PeerID, addrs []string) error {
	known := f.members.isKnown(p)
	now := f.clock.Mono()
	f.mu.Lock()
	x := f.strangers.note(p, now)
	if !x.onLAN {
		x.Addrs = addrs
	}
	ok := x.begin(now)
	f.mu.Unlock()
	if !ok {
		return errStranger
	}
	var nobody proto.PeerID
	err := errTooMany
	if known || f.rates.allow(nobody, admit.Unknown) {
		err = f.dialer.connect(ctx, proto.Contact{Peer: p, Addrs: addrs}, false)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		delete(f.strangers, p)
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		x.trying = false // the caller gave up: that says nothing about p
		return err
	}
	longest := maxRetry
	if known {
		longest = lanMaxRetry
	}
	x.failed(f.clock.Mono(), err, longest)
	refused := asRefusal(p, err)
	x.Joins = refused != nil && refused.Theirs && refused.Code == proto.CodeNoMesh
	return err
}
