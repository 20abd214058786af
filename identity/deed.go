package identity

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Deed proves who the home of a queue is, once its signature was verified.
type Deed struct {
	Queue      string
	Generation uint64
	From, To   proto.PeerID // From is zero when the queue is created
	Seized     bool
	Root       [32]byte // of the chain of deeds: see [DeedRoot]
	Seizure    uint64   // of a confirmation: the generation of the newest seizure before it; 0: none
	Admin      bool     // signed by the root or an admin
	Issuer     Member   // the signer's certificate; zero: the root, or From itself
}

func (d *Deed) message(mesh Mesh) *proto.Deed {
	m := &proto.Deed{Mesh: mesh.ID[:], Queue: d.Queue, Generation: d.Generation, To: d.To[:], Seized: d.Seized, Seizure: d.Seizure}
	if d.Generation > 1 {
		m.Root = d.Root[:]
	}
	if d.Generation > 1 && !d.From.IsZero() {
		m.From = d.From[:]
	}
	return m
}

// DeedRoot returns the value shared by all deeds that go back to one creation of
// a queue by the holder of the key maker: the root of the mesh or an admin. If
// two create a queue of the same name the lower root wins everywhere.
func DeedRoot(queue string, maker []byte) [32]byte {
	return sha256.Sum256(append([]byte(queue), maker...))
}

// SignDeed signs, as the home of a queue, its handoff to another node.
func (k *Keys) SignDeed(mesh Mesh, d Deed) (*proto.Signed, error) {
	return d.sign(mesh, func(details []byte) *proto.Signed { return signDetails(k.private, domainDeed, details) })
}

// SignDeedAsAdmin signs, by the authority of own, the certificate of k itself,
// that a queue is created or seized, or that its home is confirmed. own must be
// issued by the root and have the admin role.
func (k *Keys) SignDeedAsAdmin(mesh Mesh, own *proto.Signed, d Deed) (*proto.Signed, error) {
	return d.sign(mesh, func(details []byte) *proto.Signed {
		s := signDetails(k.private, domainDeed, details)
		s.Issuer = own
		return s
	})
}

// SignDeed signs, as the root, that a queue is created or seized.
func (r *Root) SignDeed(d Deed) (*proto.Signed, error) {
	return d.sign(r.mesh, func(details []byte) *proto.Signed { return signDetails(r.private, domainDeed, details) })
}

// sign refuses what VerifyDeed would refuse elsewhere.
func (d *Deed) sign(mesh Mesh, with func(details []byte) *proto.Signed) (*proto.Signed, error) {
	details, err := encodeDetails(proto.Encode(nil, d.message(mesh)))
	if err != nil {
		return nil, fmt.Errorf("sign who the home of queue %s is: %w", d.Queue, err)
	}
	s := with(details)
	if _, err := mesh.VerifyDeed(s); err != nil {
		return nil, fmt.Errorf("sign who the home of queue %s is: %w", d.Queue, err)
	}
	return s, nil
}

// VerifyDeed returns what a deed of the mesh proves: a handoff signed by the
// previous home, or a statement signed by an admin: that a queue is created, that
// it is seized, or, with a generation above 1 and no previous home, who its home
// is. It does not check whether From was the home, or whether the admin's
// certificate was revoked.
func (m Mesh) VerifyDeed(s *proto.Signed) (Deed, error) {
	if s == nil || len(m.Root) != 32 || len(s.GetDetails()) > maxDetails {
		return Deed{}, fmt.Errorf("statement of the home of a queue: %w: there is none, or it is too long", ErrBadRecord)
	}
	var d Deed
	var signer proto.PeerID
	var by [32]byte
	if s.GetIssuer() != nil || bytes.Equal(s.GetSigner(), m.Root) {
		key, issuer, err := m.authority(s, domainDeed)
		if err != nil {
			return Deed{}, fmt.Errorf("statement of the home of a queue: %w", err)
		}
		d.Admin, d.Issuer, by = true, issuer, key
	} else {
		var err error
		if signer, err = verifySelfSigned(s, domainDeed); err != nil {
			return Deed{}, fmt.Errorf("statement of the home of a queue: %w", err)
		}
	}
	var p proto.Deed
	if err := proto.DecodeKnown(s.GetDetails(), &p); err != nil {
		return Deed{}, fmt.Errorf("statement of the home of a queue: %w: %w", ErrBadRecord, err)
	}
	if !bytes.Equal(p.GetMesh(), m.ID[:]) {
		return Deed{}, fmt.Errorf("statement of the home of a queue: %w %x", ErrWrongMesh, p.GetMesh())
	}
	d.Queue, d.Generation, d.Seized, d.Seizure = p.GetQueue(), p.GetGeneration(), p.GetSeized(), p.GetSeizure()
	copy(d.From[:], p.GetFrom())
	copy(d.To[:], p.GetTo())
	copy(d.Root[:], p.GetRoot())
	stated := len(p.GetFrom()) == 0 && !d.Seized // by an admin alone: it is created, or its home is confirmed
	handed := d.Generation > 1 && len(p.GetFrom()) == len(d.From) && !d.From.IsZero() && d.From != d.To
	rooted := d.Generation > 1 && len(p.GetRoot()) == len(d.Root) && d.Root != [32]byte{} || d.Generation == 1 && len(p.GetRoot()) == 0
	if d.Generation == 1 {
		d.Root = DeedRoot(d.Queue, by[:])
	}
	switch {
	case d.Queue == "" || len(p.GetTo()) != len(d.To) || d.To.IsZero() || !stated && !handed || !rooted:
		return Deed{}, fmt.Errorf("statement of the home of a queue: %w: it names no queue, or no change of its home", ErrBadRecord)
	case d.Seizure > d.Generation || d.Seizure > 0 && (!stated || d.Generation == 1):
		return Deed{}, fmt.Errorf("statement of the home of queue %.128s: %w: a confirmation alone names the newest seizure before it", d.Queue, ErrBadRecord)
	case d.Generation == 0 || d.Generation > proto.MaxGeneration:
		return Deed{}, fmt.Errorf("statement of the home of queue %.128s: %w: no queue has a generation %d", d.Queue, ErrBadRecord, d.Generation)
	case (stated || d.Seized) != d.Admin:
		return Deed{}, fmt.Errorf("statement of the home of queue %.128s: %w: an admin signs that a queue is made or seized, or who its home is; its home signs that it is handed over", d.Queue, ErrNotAdmin)
	case handed && !d.Seized && d.From != signer:
		return Deed{}, fmt.Errorf("statement of the home of queue %.128s: %w", d.Queue, ErrSignature)
	}
	return d, nil
}
