package identity

import (
	"bytes"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// Incarnations count above the boot number of a start: the boot number shifted by
// incarnationBits, and one more for each refutation.
const incarnationBits = 20

// maxBoot bounds a boot number: it is in Unix seconds, and a higher one would
// leave no headroom.
const maxBoot = 1 << 42

// Incarnation returns the first incarnation of a start: higher than any that the
// node had in an earlier one.
func Incarnation(boot uint64) uint64 { return boot << incarnationBits }

// SignNode signs the record that a node publishes about itself. The caller sets
// r.Mesh and r.Peer. It refuses what VerifyNode would refuse elsewhere.
func (k *Keys) SignNode(r *proto.NodeRecord) (*proto.Signed, error) {
	if err := checkNode(r, k.peer); err != nil {
		return nil, fmt.Errorf("sign the node record: %w", err)
	}
	details, err := encodeDetails(proto.Encode(nil, r))
	if err != nil {
		return nil, fmt.Errorf("sign the node record: %w", err)
	}
	return signDetails(k.private, domainNode, details), nil
}

// VerifyNode returns the record that a node of the mesh published about itself.
// It does not check membership.
func (m Mesh) VerifyNode(s *proto.Signed) (*proto.NodeRecord, error) {
	signer, err := verifySelfSigned(s, domainNode)
	if err != nil {
		return nil, fmt.Errorf("node record: %w", err)
	}
	var r proto.NodeRecord
	if err := proto.DecodeKnown(s.GetDetails(), &r); err != nil {
		return nil, fmt.Errorf("node record of %s: %w: %w", signer.Short(), ErrBadRecord, err)
	}
	if !bytes.Equal(r.GetMesh(), m.ID[:]) {
		return nil, fmt.Errorf("node record: %w %x", ErrWrongMesh, r.GetMesh())
	}
	if err := checkNode(&r, signer); err != nil {
		return nil, fmt.Errorf("node record of %s: %w", signer.Short(), err)
	}
	return &r, nil
}

// checkNode checks the format of r, which signer signs.
func checkNode(r *proto.NodeRecord, signer proto.PeerID) error {
	boot, inc := r.GetBoot(), r.GetIncarnation()
	switch {
	case !bytes.Equal(r.GetPeer(), signer[:]):
		return fmt.Errorf("%w: it is of another peer", ErrBadRecord)
	case len(r.GetMesh()) != len(proto.MeshID{}):
		return fmt.Errorf("%w: a mesh id of %d bytes", ErrBadRecord, len(r.GetMesh()))
	case boot == 0 || boot >= maxBoot:
		return fmt.Errorf("%w: boot number %d", ErrBadRecord, boot)
	case inc>>incarnationBits < boot || inc>>incarnationBits > 2*maxBoot:
		return fmt.Errorf("%w: incarnation %d does not follow from boot %d", ErrBadRecord, inc, boot)
	case r.GetRevision() == 0:
		return fmt.Errorf("%w: no revision", ErrBadRecord)
	case r.GetState() < proto.NodeStarting || r.GetState() > proto.NodeDraining:
		return fmt.Errorf("%w: state %d", ErrBadRecord, r.GetState())
	}
	for _, relay := range r.GetRelays() {
		if len(relay) != len(signer) {
			return fmt.Errorf("%w: a relay id of %d bytes", ErrBadRecord, len(relay))
		}
	}
	for _, h := range r.GetHops() {
		if len(h.GetRelay()) != len(signer) || h.GetLossPermille() > 1000 {
			return fmt.Errorf("%w: a path to a relay with an id of %d bytes that loses %d of 1000", ErrBadRecord, len(h.GetRelay()), h.GetLossPermille())
		}
	}
	return nil
}

// SignAccusation signs that another node did not answer. The caller sets a.Mesh
// and a.Accuser.
func (k *Keys) SignAccusation(a *proto.Accusation) (*proto.Signed, error) {
	if err := checkAccusation(a, k.peer); err != nil {
		return nil, fmt.Errorf("sign the accusation: %w", err)
	}
	details, err := encodeDetails(proto.Encode(nil, a))
	if err != nil {
		return nil, fmt.Errorf("sign the accusation: %w", err)
	}
	return signDetails(k.private, domainAccusation, details), nil
}

// VerifyAccusation returns the statement of one node about another. It does not
// check whether the accuser is a member.
func (m Mesh) VerifyAccusation(s *proto.Signed) (*proto.Accusation, error) {
	signer, err := verifySelfSigned(s, domainAccusation)
	if err != nil {
		return nil, fmt.Errorf("accusation: %w", err)
	}
	var a proto.Accusation
	if err := proto.DecodeKnown(s.GetDetails(), &a); err != nil {
		return nil, fmt.Errorf("accusation by %s: %w: %w", signer.Short(), ErrBadRecord, err)
	}
	if !bytes.Equal(a.GetMesh(), m.ID[:]) {
		return nil, fmt.Errorf("accusation: %w %x", ErrWrongMesh, a.GetMesh())
	}
	if err := checkAccusation(&a, signer); err != nil {
		return nil, fmt.Errorf("accusation by %s: %w", signer.Short(), err)
	}
	return &a, nil
}

// checkAccusation checks the format of a, which signer signs.
func checkAccusation(a *proto.Accusation, signer proto.PeerID) error {
	switch {
	case !bytes.Equal(a.GetAccuser(), signer[:]):
		return fmt.Errorf("%w: it is of another accuser", ErrBadRecord)
	case len(a.GetPeer()) != len(signer) || bytes.Equal(a.GetPeer(), signer[:]):
		return fmt.Errorf("%w: it accuses nobody else", ErrBadRecord)
	case len(a.GetMesh()) != len(proto.MeshID{}):
		return fmt.Errorf("%w: a mesh id of %d bytes", ErrBadRecord, len(a.GetMesh()))
	case a.GetIncarnation() == 0:
		return fmt.Errorf("%w: no incarnation", ErrBadRecord)
	case a.GetLiveness() != proto.Suspect && a.GetLiveness() != proto.Dead:
		return fmt.Errorf("%w: liveness %d", ErrBadRecord, a.GetLiveness())
	}
	return nil
}
