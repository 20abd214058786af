package transport

import (
	"context"
	"fmt"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// A rumorTracer counts what gossipsub does with messages, and holds peers accountable for
// messages that no honest node forwards.
type rumorTracer struct{ topic *gossipTopic }

// Graft adds a member of the overlay.
func (r *rumorTracer) Graft(p peer.ID, _ string) { r.topic.overlay.set(p, true) }

// Prune removes one.
func (r *rumorTracer) Prune(p peer.ID, _ string) { r.topic.overlay.set(p, false) }

// OnClosedOutboundStream removes one.
func (r *rumorTracer) OnClosedOutboundStream(p peer.ID) { r.topic.overlay.set(p, false) }

// RejectMessage counts a rejected message. This node's own validator does its own
// counting.
func (r *rumorTracer) RejectMessage(m *pubsub.Message, reason string) {
	switch reason {
	case pubsub.RejectMissingSignature, pubsub.RejectInvalidSignature, pubsub.RejectUnexpectedAuthInfo, pubsub.RejectUnexpectedSignature:
		r.count("forged")
		p, err := fromLibp2p(m.ReceivedFrom)
		if err != nil || p == r.topic.host.self {
			return
		}
		r.topic.group.start(func(context.Context) {
			r.topic.rates.offend(p, "gossip", fmt.Errorf("%w: a rumor with %s", ErrProtocol, reason))
		})
	case pubsub.RejectValidationQueueFull, pubsub.RejectValidationThrottled:
		r.count("crowded out")
	}
}

// DuplicateMessage counts a duplicate.
func (r *rumorTracer) DuplicateMessage(*pubsub.Message) { r.count("duplicate") }

// UndeliverableMessage counts a message dropped because Receive was too slow.
func (r *rumorTracer) UndeliverableMessage(*pubsub.Message) { r.count("unheard") }

// DropRPC counts the messages dropped because the queue to a peer was full.
func (r *rumorTracer) DropRPC(rpc *pubsub.RPC, _ peer.ID) {
	r.topic.met.rumors.WithLabelValues("unsent").Add(float64(len(rpc.GetPublish())))
}

func (r *rumorTracer) count(outcome string) { r.topic.met.rumors.WithLabelValues(outcome).Inc() }

// The remaining methods of pubsub.RawTracer do nothing.

// OnNewOutboundStream does nothing.
func (*rumorTracer) OnNewOutboundStream(peer.ID, protocol.ID) {}

// Join does nothing.
func (*rumorTracer) Join(string) {}

// Leave does nothing.
func (*rumorTracer) Leave(string) {}

// ValidateMessage does nothing.
func (*rumorTracer) ValidateMessage(*pubsub.Message) {}

// DeliverMessage does nothing.
func (*rumorTracer) DeliverMessage(*pubsub.Message) {}

// ThrottlePeer does nothing.
func (*rumorTracer) ThrottlePeer(peer.ID) {}

// RecvRPC does nothing.
func (*rumorTracer) RecvRPC(*pubsub.RPC) {}

// SendRPC does nothing.
func (*rumorTracer) SendRPC(*pubsub.RPC, peer.ID) {}
