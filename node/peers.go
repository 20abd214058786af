package node

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// peerName returns the display name of a peer, or "" for the zero id.
func (n *Node) peerName(p proto.PeerID) string { return n.book.NameOf(p) }

// peerNameID returns the name and the id of a peer.
func (n *Node) peerNameID(key []byte) (name, id string) { return n.book.Identify(key) }

func msTime(ms int64) time.Time { return proto.Time(ms) }

func msOrNil(ms int64) *time.Time { return proto.TimeOrNil(ms) }
