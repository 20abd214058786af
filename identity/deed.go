package identity

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Deed is proof of who is the home of a queue, once its signature was checked.
type Deed struct {
	Queue      string
	Generation uint64
	From, To   proto.PeerID // From is zero when the queue is made
	Seized     bool
	Root       [32]byte // of the chain of deeds: see [DeedRoot]
	Admin      bool     // signed by the root or an admin
	Issuer     Member   // whose certificate the signer showed; zero: the root, or From itself
}

func (d *Deed) message(mesh Mesh) *proto.Deed {
	m := &proto.Deed{Mesh: mesh.ID[:], Queue: d.Queue, Generation: d.Generation, To: d.To[:], Seized: d.Seized}
	if d.Generation > 1 {
		m.Root = d.Root[:]
	}
	if d.Generation > 1 && !d.From.IsZero() {
		m.From = d.From[:]
	}
	return m
}

// DeedRoot is what all deeds have in common that go back to one making of a queue, by
// the holder of the key maker: the root of the mesh or an admin. Where two made a queue
// of one name the lower root wins, everywhere.
func DeedRoot(queue string, maker []byte) [32]byte {
	return sha256.Sum256(append([]byte(queue), maker...))
}

// SignDeed states as the home of a queue that it goes to another.
func (k *Keys) SignDeed(mesh Mesh, d Deed) (*proto.Signed, error) {
	return d.sign(mesh, func(details []byte) *proto.Signed { return signDetails(k.private, domainDeed, details) })
}

// SignDeedAsAdmin states by the right of own, the certificate of k itself, that a
// queue is made or seized, or its home is confirmed. own must be of the root and have the admin role.
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
	details, err := encodeDetails(proto.Encode(nil, d.message(mesh)))
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
// then signed, or what an admin signed: that a queue is made, that it is seized, or,
// with a generation above 1 and no home before, who is its home. Whether From was the home is not known here,
// nor whether the admin's certificate was withdrawn.
func (m Mesh) VerifyDeed(s *proto.Signed) (Deed, error) {
	if s == nil || len(m.Root) != 32 || len(s.GetDetails()) > maxDetails {
		return Deed{}, fmt.Errorf("deed: %w: there is none, or it is too long", ErrBadRecord)
	}
	var d Deed
	var signer proto.PeerID
	var by [32]byte
	if s.GetIssuer() != nil || bytes.Equal(s.GetSigner(), m.Root) {
		key, issuer, err := m.authority(s, domainDeed)
		if err != nil {
			return Deed{}, fmt.Errorf("deed: %w", err)
		}
		d.Admin, d.Issuer, by = true, issuer, key
	} else {
		var err error
		if signer, err = verifySelfSigned(s, domainDeed); err != nil {
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
	copy(d.Root[:], p.GetRoot())
	stated := len(p.GetFrom()) == 0 && !d.Seized // by an admin alone: it is made, or its home is confirmed
	handed := d.Generation > 1 && len(p.GetFrom()) == len(d.From) && d.From != d.To
	rooted := d.Generation > 1 && len(p.GetRoot()) == len(d.Root) || d.Generation == 1 && len(p.GetRoot()) == 0
	if d.Generation == 1 {
		d.Root = DeedRoot(d.Queue, by[:])
	}
	switch {
	case d.Queue == "" || len(p.GetTo()) != len(d.To) || !stated && !handed || !rooted:
		return Deed{}, fmt.Errorf("deed: %w: it names no queue, or no change of its home", ErrBadRecord)
	case d.Generation == 0 || d.Generation > proto.MaxGeneration:
		return Deed{}, fmt.Errorf("deed of queue %.128s: %w: no queue has a generation %d", d.Queue, ErrBadRecord, d.Generation)
	case (stated || d.Seized) != d.Admin:
		return Deed{}, fmt.Errorf("deed of queue %.128s: %w: an admin signs that a queue is made or seized, or who its home is; its home signs that it is handed over", d.Queue, ErrNotAdmin)
	case handed && !d.Seized && d.From != signer:
		return Deed{}, fmt.Errorf("deed of queue %.128s: %w", d.Queue, ErrSignature)
	}
	return d, nil
}
