package transport

import (
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A revoked node is told so: a peer that refuses its hello presents the signed
// revocation. The node verifies and stores it, and from then on dials rarely: the
// revocation may have been void, which only other nodes can tell it.

// A revocationChecker knows revocations.
type revocationChecker interface {
	// RevocationOf returns the revocation of p, which may be this node.
	RevocationOf(p proto.PeerID) (identity.Revocation, bool)
	// SelfRevoked stores a revocation of this node's own membership that a peer
	// presented. It returns an error if it is not one.
	SelfRevoked(s *proto.Signed) error
}

// reasonRevoked is sent to a revoked node, together with the revocation.
const reasonRevoked = "REVOKED: its certificate was revoked"

// revokedRedial is the delay between two dials of a peer by a revoked node.
const revokedRedial = time.Hour

// refusalFrom returns the refusal in h, from the other side of c. It stores a revocation
// contained in it.
func (g *greeter) refusalFrom(c *conn, h *proto.Hello) *RefusedError {
	if s := h.GetRevocation(); s != nil && !g.members.selfRevoked() {
		if j, ok := g.gate.(revocationChecker); ok {
			if err := j.SelfRevoked(s); err != nil {
				g.log.Debug("invalid revocation presented", "peer", c.peer, "why", err)
			} else {
				g.log.Error("this node's membership was revoked: nothing is sent or accepted anymore, and peers are dialed once an hour; join again with a new key, in another folder", "told_by", c.peer)
			}
		}
	}
	return &RefusedError{Peer: c.peer, Reason: proto.Clip(h.GetRefusal(), maxReason), Theirs: true, Code: h.GetRefusalCode()}
}
