package ownership

import (
	"crypto/sha256"

	"github.com/balefire/balefire/proto"
)

// plainDeeds accepts unsigned deeds. It is for tests only.
type plainDeeds struct{}

func (plainDeeds) Sign(d Deed) (*proto.Signed, error) {
	m := &proto.Deed{Queue: d.Queue, Generation: d.Generation, From: d.From[:], To: d.To[:], Seized: d.Seized, Seizure: d.Seizure}
	if d.From.IsZero() {
		m.From = nil
	}
	if d.Generation > 1 {
		m.Root = d.Root[:]
	}
	b, err := proto.Encode(nil, m)
	return &proto.Signed{Details: b}, err
}

func (plainDeeds) Verify(s *proto.Signed) (d Deed, err error) {
	m := new(proto.Deed)
	err = proto.DecodeKnown(s.GetDetails(), m)
	d.Queue, d.Generation, d.Seized, d.Seizure = m.Queue, m.Generation, m.Seized, m.Seizure
	copy(d.From[:], m.From)
	copy(d.To[:], m.To)
	copy(d.Root[:], m.Root)
	if d.Generation == 1 {
		d.Root = sha256.Sum256(append([]byte(d.Queue), s.Signer...))
	}
	d.Admin = d.Seized || d.From.IsZero()
	return d, err
}

func (p plainDeeds) ReadVerified(s *proto.Signed) (Deed, error) { return p.Verify(s) }
