package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// readyEvery is the interval at which a node that has refused peers checks whether it
// has room again.
const readyEvery = time.Second

// refusedPeers holds the peers that were refused something for lack of room.
type refusedPeers struct {
	sync.Mutex
	peers map[proto.PeerID]bool
}

// add records that p was refused with code.
func (r *refusedPeers) add(p proto.PeerID, code proto.Code) {
	if code != proto.CodeFull && code != proto.CodeBusy {
		return
	}
	r.Lock()
	defer r.Unlock()
	r.peers[p] = true
}

// takeAll returns the peers and clears the set.
func (r *refusedPeers) takeAll() []proto.PeerID {
	r.Lock()
	defer r.Unlock()
	out := make([]proto.PeerID, 0, len(r.peers))
	for p := range r.peers {
		out = append(out, p)
	}
	clear(r.peers)
	return out
}

// announceHandlers tells the members which kinds this node handles now. With more it also
// notifies every connected peer, so that its tasks need not wait for the end of a backoff.
func (n *Node) announceHandlers(more bool) {
	if n.running.Load() {
		n.gossip.Describe()
	}
	if more {
		announceServed(n)
	}
}

// announceServed notifies every connected peer that n takes what it refused as NO_HANDLER:
// it has a handler, or a box, that it did not have.
func announceServed(n *Node) {
	peers := []proto.PeerID{n.keys.Peer()}
	for _, s := range n.net.Peers() {
		if s.Connected {
			peers = append(peers, s.Peer)
		}
	}
	n.sendReady(&proto.Ready{Handlers: true}, peers)
}

// runReady notifies the refused peers now and then.
func (n *Node) runReady(ctx context.Context) error {
	t := time.NewTicker(readyEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			n.announceRoom()
		}
	}
}

// announceRoom notifies the refused peers once there is room again.
func (n *Node) announceRoom() {
	if !n.storage.Store.Full() && n.inbox.HasRoom() {
		n.sendReady(&proto.Ready{Room: true}, n.refused.takeAll())
	}
}

// sendReady sends the hint to peers. A lost hint is harmless: the peer retries after its
// backoff.
func (n *Node) sendReady(r *proto.Ready, peers []proto.PeerID) {
	payload, err := proto.Encode(nil, r)
	if err != nil {
		return
	}
	for _, p := range peers {
		if p == n.keys.Peer() {
			n.ready(p, r)
			continue
		}
		err := n.net.SendCtl(p, &proto.Message{Type: proto.TypeReady, Payload: payload, Timestamp: n.cfg.Clock.Now().UnixNano()})
		if err != nil && !errors.Is(err, transport.ErrNotConnected) {
			n.log.Debug("could not notify a peer", "peer", p, "err", err)
		}
	}
}

// ready receives the hint of a peer.
func (n *Node) ready(from proto.PeerID, r *proto.Ready) {
	select {
	case n.notices <- peerNotice{from: from, ready: r}:
	default: // dropping it is harmless: the backoff will end
	}
}

// retryRefused retries at once what the peer refused before and accepts now.
func (n *Node) retryRefused(ctx context.Context, from proto.PeerID, r *proto.Ready) {
	var codes []proto.Code
	if r.GetHandlers() {
		codes = append(codes, proto.CodeNoHandler)
		n.Mail.RetryNow(ctx, from, proto.CodeNoHandler)
	}
	if r.GetRoom() {
		codes = append(codes, proto.CodeFull, proto.CodeBusy, proto.CodeDraining)
	}
	n.outbox.RetryNow(from, codes...)
}
