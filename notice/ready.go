package notice

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// readyEvery is the interval at which a node that has refused peers checks whether it
// has room again.
const readyEvery = time.Second

// Refused takes note that p was refused with code, perhaps for lack of room.
func (n *Notices) Refused(p proto.PeerID, code proto.Code) {
	if code == proto.CodeFull || code == proto.CodeBusy || code == proto.CodeClock {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.refused[p] = true
	}
}

// takeRefused returns the refused peers and forgets them.
func (n *Notices) takeRefused() []proto.PeerID {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer clear(n.refused)
	return slices.Collect(maps.Keys(n.refused))
}

// AnnounceServed notifies every connected peer that this node takes what it refused as NO_HANDLER
// or CANNOT_START: it has a handler, or a box, that it did not have.
func (n *Notices) AnnounceServed() {
	n.sendReady(&proto.Ready{Handlers: true}, append(n.net.ConnectedPeers(), n.Keys.Peer()))
}

// runReady notifies the refused peers now and then.
func (n *Notices) runReady(ctx context.Context) {
	t := n.Clock.Ticker(readyEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			n.announceRoom()
		}
	}
}

// announceRoom notifies the refused peers once there is room again.
func (n *Notices) announceRoom() {
	if !n.Full() && n.Inbox.HasRoom() {
		n.sendReady(&proto.Ready{Room: true}, n.takeRefused())
	}
}

// sendReady sends the hint to peers. A lost hint is harmless: the peer retries after its
// backoff.
func (n *Notices) sendReady(r *proto.Ready, peers []proto.PeerID) {
	for _, p := range peers {
		if p == n.Keys.Peer() {
			n.Ready(p, r)
			continue
		}
		n.send(p, proto.TypeReady, r)
	}
}

// Ready receives the hint of a peer.
func (n *Notices) Ready(from proto.PeerID, r *proto.Ready) {
	select {
	case n.queue <- message{from: from, ready: r}:
	default: // dropping it is harmless: the backoff will end
	}
}

// retryRefused retries at once what the peer refused before and accepts now.
func (n *Notices) retryRefused(ctx context.Context, from proto.PeerID, r *proto.Ready) {
	var codes []proto.Code
	if r.GetHandlers() {
		codes = append(codes, proto.CodeNoHandler, proto.CodeCannotStart)
		n.RetryMail(ctx, from, proto.CodeNoHandler)
	}
	if r.GetRoom() {
		codes = append(codes, proto.CodeFull, proto.CodeBusy, proto.CodeClock, proto.CodeDraining)
	}
	n.Outbox.RetryNow(from, codes...)
}
