package queue

import (
	"fmt"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Deeds signs and verifies, with the keys of this node, the deeds that prove who is the
// home of a queue.
type Deeds struct{ *Queues }

// Sign signs a deed. As the home of the queue it signs a handoff; with the root key if
// it is stored here, otherwise as an admin, it signs the creation or seizure of a queue
// or the confirmation of its home.
func (d Deeds) Sign(o ownership.Deed) (*proto.Signed, error) {
	x := identity.Deed{Queue: o.Queue, Generation: o.Generation, From: o.From, To: o.To, Seized: o.Seized, Root: o.Root, Seizure: o.Seizure}
	if !o.Admin {
		return d.parts.Keys.SignDeed(d.parts.Mesh, x)
	}
	if root, err := d.parts.Root(); err == nil && root.Mesh().ID == d.parts.Mesh.ID {
		return root.SignDeed(x)
	}
	self := d.parts.Book.Self().Member
	if !self.HasRole(identity.RoleAdmin) {
		return nil, fmt.Errorf("%w: this needs the admin role, which this node does not have: run it on a node with that role", wire.ErrDenied)
	}
	return d.parts.Keys.SignDeedAsAdmin(d.parts.Mesh, self.Cert, x)
}

// Verify checks a deed and returns its content. A deed signed by an admin or a home is
// valid only if it is first seen before its signer was revoked. This node may have forgotten
// the signer, or never known it: the revocations decide, not the address book's entries.
func (d Deeds) Verify(s *proto.Signed) (ownership.Deed, error) {
	x, err := d.parts.Mesh.VerifyDeed(s)
	switch {
	case err != nil:
	case !x.Issuer.Peer.IsZero() && (d.parts.Book.Revokes(x.Issuer) || d.parts.Book.Revoked(x.Issuer.Peer)):
		err = fmt.Errorf("statement of the home of queue %s: the admin who signed it was revoked", x.Queue)
	case !x.Admin && d.parts.Book.Revokes(identity.Member{Peer: x.From}):
		err = fmt.Errorf("statement of the home of queue %s: the home that signed it was revoked", x.Queue)
	}
	return toDeed(x), err
}

// ReadVerified returns the content of a deed that was valid when it was first seen.
func (d Deeds) ReadVerified(s *proto.Signed) (ownership.Deed, error) {
	x, err := d.parts.Mesh.VerifyDeed(s)
	return toDeed(x), err
}

func toDeed(x identity.Deed) ownership.Deed {
	return ownership.Deed{Queue: x.Queue, Generation: x.Generation, From: x.From, To: x.To, Seized: x.Seized, Root: x.Root, Seizure: x.Seizure, Admin: x.Admin}
}
