package transport

import (
	"context"
	"crypto/ed25519"

	"github.com/balefire/balefire/proto"
)

// Keys holds the parts of a node's keys that a host needs.
type Keys interface {
	Peer() proto.PeerID
	PrivateKey() ed25519.PrivateKey
}

// A Gate decides who may connect.
type Gate interface {
	// Hello returns this node's certificate, key record and boot; the transport adds
	// version, addresses, software and features. Nil: not a member yet, so only a join is
	// possible.
	Hello() *proto.Hello
	// Admit checks the hello of from: certificate, key record, boot. It stores what is
	// new. Its error is sent to the other side.
	Admit(h *proto.Hello, from proto.PeerID) error
	// Blocked reports whether connections with p are rejected.
	Blocked(p proto.PeerID) bool
}

// A Receiver handles what peers send.
type Receiver interface {
	// Receive handles a group of DATA, RESULT, CANCEL and MARK frames from one peer, in
	// order. It returns after all that it accepted is durable: the Ack is sent then and
	// not before (I8). After an error nothing is acknowledged and the stream is closed.
	// Calls for one peer overlap only if one of them has nothing but ownership messages.
	Receive(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (Answer, error)
	// Linked runs while the outgoing task stream to l.Peer() is open. When it returns,
	// the stream is closed and reopened after a delay.
	Linked(ctx context.Context, l *Link) error
	// Started handles an owner's receipts of started tasks. It must not block: the
	// heartbeat waits for it.
	Started(from proto.PeerID, r *proto.Receipts)
}

// A MailReceiver handles a message about mail from a peer. Calls for one peer never overlap
// and are in the order in which the messages were sent on one stream. While it blocks, the
// peer's mail waits and nothing else does; so it must not wait for [MailStream.Send], since
// both sides may. ctx ends when the connection is lost or the peer has begun another stream.
//
// An error closes the stream: its messages may be sent again. It counts as an offense if it
// is ErrProtocol or an error of package proto for what no node sends.
type MailReceiver func(ctx context.Context, from proto.PeerID, m *proto.Message) error

// An Answer is the result of a group of frames.
type Answer struct {
	Refusals  []*proto.Refusal // Number is the index in the group, ascending; the others were accepted
	Time      int64            // time of acceptance, Unix milliseconds
	Signature []byte           // over the root of the receipts
	Offense   error            // the last protocol violation in the group; nil: none
}

// A Joiner answers join requests of nodes without a certificate.
type Joiner interface {
	Join(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) *proto.JoinReply
}

// A Directory knows whom to stay connected with.
type Directory interface {
	// Contacts returns every peer that is allowed and has an address.
	Contacts() []proto.Contact
}
