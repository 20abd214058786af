package transport

import (
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A node that was revoked is told so: whoever refuses its hello shows the signed
// revocation. It checks it, keeps it, and dials rarely from then on: the revocation may
// have been void, and only the others can tell.

// A judge knows revocations. [Book] is one.
type judge interface {
	// RevocationOf returns what ended the membership of p, which may be this node.
	RevocationOf(p proto.PeerID) (identity.Revocation, bool)
	// Expelled takes what a peer shows to have ended this node's own membership. An
	// error says that it did not.
	Expelled(s *proto.Signed) error
}

// reasonRevoked is what a revoked node is told, beside the revocation.
const reasonRevoked = "REVOKED: its certificate was revoked"

// expelledRedial is the pause between two dials of a peer by a revoked node.
const expelledRedial = time.Hour

// revocationOf returns the signed end of p's membership, nil: there is none.
func (t *Transport) revocationOf(p proto.PeerID) *proto.Signed {
	if j, ok := t.gate.(judge); ok {
		if r, revoked := j.RevocationOf(p); revoked {
			return r.Signed
		}
	}
	return nil
}

// expelled reports whether this node knows that it was revoked.
func (t *Transport) expelled() bool { return t.revocationOf(t.self) != nil }

// refusedBy returns the refusal in h, of c's other side. A revocation in it is kept.
func (t *Transport) refusedBy(c *conn, h *proto.Hello) *RefusedError {
	if s := h.GetRevocation(); s != nil && !t.expelled() {
		if j, ok := t.gate.(judge); ok {
			if err := j.Expelled(s); err != nil {
				t.log.Debug("a revocation that was shown does not hold", "peer", c.peer, "why", err)
			} else {
				t.log.Error("this node's membership was revoked: nothing is sent or taken any more, and peers are dialled once an hour; join again with a new key, in another folder", "told_by", c.peer)
			}
		}
	}
	return &RefusedError{c.peer, proto.Clip(h.GetRefusal(), maxReason), true}
}
