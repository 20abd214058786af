package transport

import (
	"context"
	"crypto/ed25519"

	"github.com/balefire/balefire/proto"
)

// Keys are what a host needs of a node's keys.
type Keys interface {
	Peer() proto.PeerID
	PrivateKey() ed25519.PrivateKey
}

// A Gate decides who may connect. [Book] is one.
type Gate interface {
	// Hello returns this node's certificate, key record, boot and features;
	// the transport fills in version, addresses and software. Nil: not a member yet, so
	// that only a join is possible.
	Hello() *proto.Hello
	// Admit checks the hello of from: certificate, key record, boot. It
	// remembers what is new. Its error is told to the other side.
	Admit(h *proto.Hello, from proto.PeerID) error
	// Blocked reports whether no connection with p is wanted.
	Blocked(p proto.PeerID) bool
}

// A Receiver is given what neighbours send.
type Receiver interface {
	// Receive takes a group of DATA, RESULT, CANCEL and MARK frames of one
	// peer, in their order. It returns after all that it accepted is durable:
	// the Ack leaves then and not before (I8). After an error nothing is
	// acknowledged and the stream ends. It is called once at a time a peer.
	Receive(ctx context.Context, from proto.PeerID, msgs []*proto.Message) (Answer, error)
	// Linked runs while the outgoing task stream to l.Peer() lives. When it
	// returns, the stream ends and is opened again after a pause.
	Linked(ctx context.Context, l *Link) error
	// Started takes what an owner says of a task while it runs. It must not
	// block: the heartbeat waits behind it.
	Started(from proto.PeerID, r *proto.Receipts)
}

// An Answer says what became of a group of frames.
type Answer struct {
	Refusals  []*proto.Refusal // Number is the index in the group, ascending; all else was accepted
	Time      int64            // of the acceptance, Unix milliseconds
	Signature []byte           // over the root of the receipts
	Offense   error            // the last message of the group that no node sends; nil: there was none
}

// A Joiner answers nodes that hold a ticket and no certificate yet.
type Joiner interface {
	Join(ctx context.Context, from proto.PeerID, r *proto.JoinRequest) *proto.JoinReply
}

// A Contact is a peer that may be dialled.
type Contact struct {
	Peer   proto.PeerID
	Addrs  []string       // multiaddrs without the peer's id
	Relays []proto.PeerID // where the peer keeps places, as it said
}

// A Directory knows whom to stay connected with. [Book] is one.
type Directory interface {
	// Contacts returns every peer that is allowed and has an address.
	Contacts() []Contact
}
