package identity

import (
	"bytes"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Deed is proof of who is the home of a queue, once its signature was checked.
type Deed struct {
	Queue      string
	Generation uint64
	From, To   proto.PeerID // From is zero when the queue is made
	Seized     bool
	Admin      bool   // signed by the root or an admin
	Issuer     Member // whose certificate the signer showed; zero: the root, or From itself
}

func (d *Deed) message(mesh Mesh) *proto.Deed {
	m := &proto.Deed{Mesh: mesh.ID[:], Queue: d.Queue, Generation: d.Generation, To: d.To[:], Seized: d.Seized}
	if d.Generation > 1 {
		m.From = d.From[:]
	}
	return m
}

// SignDeed states as the home of a queue that it goes to another.
func (k *Keys) SignDeed(mesh Mesh, d Deed) (*proto.Signed, error) {
	return d.sign(mesh, func(details []byte) *proto.Signed { return signDetails(k.private, domainDeed, details) })
}

// SignDeedAsAdmin states by the right of own, the certificate of k itself, that a
// queue is made or seized. own must be of the root and have the admin role.
func (k *Keys) SignDeedAsAdmin(mesh Mesh, own *proto.Signed, d Deed) (*proto.Signed, error) {
	return d.sign(mesh, func(details []byte) *proto.Signed {
		s := signDetails(k.private, domainDeed, details)
		s.Issuer = own
		return s
	})
}

// SignDeed states by the right of the root that a queue is made or seized.
func (r *Root) SignDeed(d Deed) (*proto.Signed, error) {
	return d.sign(r.mesh, func(details []byte) *proto.Signed { return signDetails(r.private, domainDeed, details) })
}

// sign refuses what VerifyDeed would refuse elsewhere.
func (d *Deed) sign(mesh Mesh, with func(details []byte) *proto.Signed) (*proto.Signed, error) {
	details, err := statement(proto.Encode(nil, d.message(mesh)))
	if err != nil {
		return nil, fmt.Errorf("sign the deed of queue %s: %w", d.Queue, err)
	}
	s := with(details)
	if _, err := mesh.VerifyDeed(s); err != nil {
		return nil, fmt.Errorf("sign the deed of queue %s: %w", d.Queue, err)
	}
	return s, nil
}

// VerifyDeed returns what a deed of the mesh proves: a handoff that the home until
// then signed, or what an admin signed. Whether From was the home is not known here,
// nor whether the admin's certificate was withdrawn.
func (m Mesh) VerifyDeed(s *proto.Signed) (Deed, error) {
	if s == nil || len(m.Root) != 32 || len(s.GetDetails()) > maxDetails {
		return Deed{}, fmt.Errorf("deed: %w: there is none, or it is too long", ErrBadRecord)
	}
	var d Deed
	var signer proto.PeerID
	if s.GetIssuer() != nil || bytes.Equal(s.GetSigner(), m.Root) {
		_, issuer, err := m.authority(s, domainDeed)
		if err != nil {
			return Deed{}, fmt.Errorf("deed: %w", err)
		}
		d.Admin, d.Issuer = true, issuer
	} else {
		var err error
		if signer, err = verifyOwn(s, domainDeed); err != nil {
			return Deed{}, fmt.Errorf("deed: %w", err)
		}
	}
	var p proto.Deed
	if err := proto.DecodeKnown(s.GetDetails(), &p); err != nil {
		return Deed{}, fmt.Errorf("deed: %w: %w", ErrBadRecord, err)
	}
	if !bytes.Equal(p.GetMesh(), m.ID[:]) {
		return Deed{}, fmt.Errorf("deed: %w %x", ErrWrongMesh, p.GetMesh())
	}
	d.Queue, d.Generation, d.Seized = p.GetQueue(), p.GetGeneration(), p.GetSeized()
	copy(d.From[:], p.GetFrom())
	copy(d.To[:], p.GetTo())
	made := d.Generation == 1 && len(p.GetFrom()) == 0 && !d.Seized
	handed := d.Generation > 1 && len(p.GetFrom()) == len(d.From) && d.From != d.To
	switch {
	case d.Queue == "" || len(p.GetTo()) != len(d.To) || !made && !handed:
		return Deed{}, fmt.Errorf("deed: %w: it names no queue, or no change of its home", ErrBadRecord)
	case (made || d.Seized) != d.Admin:
		return Deed{}, fmt.Errorf("deed of queue %.128s: %w: an admin signs that a queue is made or seized, its home that it is handed over", d.Queue, ErrNotAdmin)
	case handed && !d.Seized && d.From != signer:
		return Deed{}, fmt.Errorf("deed of queue %.128s: %w", d.Queue, ErrSignature)
	}
	return d, nil
}
