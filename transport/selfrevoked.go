package transport

import (
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A node that was revoked is told so: whoever refuses its hello shows the signed
// revocation. It checks it, keeps it, and dials rarely from then on: the revocation may
// have been void, and only the others can tell.

// A revocationChecker knows revocations. [Book] is one.
type revocationChecker interface {
	// RevocationOf returns what ended the membership of p, which may be this node.
	RevocationOf(p proto.PeerID) (identity.Revocation, bool)
	// SelfRevoked takes what a peer shows to have ended this node's own membership. An
	// error says that it did not.
	SelfRevoked(s *proto.Signed) error
}

// reasonRevoked is what a revoked node is told, beside the revocation.
const reasonRevoked = "REVOKED: its certificate was revoked"

// revokedRedial is the pause between two dials of a peer by a revoked node.
const revokedRedial = time.Hour

// revocationOf returns the signed end of p's membership, nil: there is none.
func (t *Transport) revocationOf(p proto.PeerID) *proto.Signed {
	if j, ok := t.gate.(revocationChecker); ok {
		if r, revoked := j.RevocationOf(p); revoked {
			return r.Signed
		}
	}
	return nil
}

// selfRevoked reports whether this node knows that it was revoked.
func (t *Transport) selfRevoked() bool { return t.revocationOf(t.self) != nil }

// refusalFrom returns the refusal in h, of c's other side. A revocation in it is kept.
func (t *Transport) refusalFrom(c *conn, h *proto.Hello) *RefusedError {
	if s := h.GetRevocation(); s != nil && !t.selfRevoked() {
		if j, ok := t.gate.(revocationChecker); ok {
			if err := j.SelfRevoked(s); err != nil {
				t.log.Debug("a revocation that was shown does not hold", "peer", c.peer, "why", err)
			} else {
				t.log.Error("this node's membership was revoked: nothing is sent or taken any more, and peers are dialled once an hour; join again with a new key, in another folder", "told_by", c.peer)
			}
		}
	}
	return &RefusedError{c.peer, proto.Clip(h.GetRefusal(), maxReason), true}
}
