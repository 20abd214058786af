package identity

import (
	"crypto/ed25519"
	"crypto/sha256"

	"github.com/balefire/balefire/merkle"
	"github.com/balefire/balefire/proto"
)

// verifiedLimit is how many groups a Verifier remembers.
const verifiedLimit = 4096

// SignGroup signs 1 to proto.MaxGroup leaves with one signature, and returns it
// with the proof of each leaf. It panics for another number.
func (k *Keys) SignGroup(leaves [][32]byte) (sig []byte, proofs []Proof) {
	t := newTree(leaves)
	return signRoot(k.private, t.Root()), proofsOf(t)
}

// signRoot signs a group. Its message is as short as a record's: see groupMessage.
func signRoot(key ed25519.PrivateKey, root [32]byte) []byte {
	return ed25519.Sign(key, groupMessage(root))
}

func groupMessage(root [32]byte) []byte { return append([]byte(domainGroup), root[:]...) }

// A Verifier checks leaves against the signatures of their groups. It remembers
// valid groups, so that all leaves of a group but the first cost only a few
// hashes. It is safe for concurrent use.
type Verifier struct {
	verified *cache[group, struct{}]
}

// A group is a signed root.
type group struct {
	signer    proto.PeerID
	root      [32]byte
	signature [ed25519.SignatureSize]byte
}

// NewVerifier returns an empty Verifier.
func NewVerifier() *Verifier {
	return &Verifier{verified: newCache[group, struct{}](verifiedLimit)}
}

// Verify returns nil if signer signed a group that contains leaf. Otherwise the
// error is ErrProof, ErrWeakKey or ErrSignature.
func (v *Verifier) Verify(signer proto.PeerID, leaf [32]byte, proof Proof, sig []byte) error {
	root, err := RootOf(leaf, proof)
	if err != nil {
		return err
	}
	return v.verifyRoot(signer, root, sig)
}

func (v *Verifier) verifyRoot(signer proto.PeerID, root [32]byte, sig []byte) error {
	if len(sig) != ed25519.SignatureSize {
		return ErrSignature
	}
	g := group{signer, root, [ed25519.SignatureSize]byte(sig)}
	if _, ok := v.verified.get(g); ok {
		return nil
	}
	if err := checkKey(signer); err != nil {
		return err
	}
	if !ed25519.Verify(signer[:], groupMessage(root), sig) {
		return ErrSignature
	}
	v.verified.put(g, struct{}{})
	return nil
}

// EnvelopeLeaf returns the leaf of an envelope: its header as it is, with the
// digest of its sealed body. what is proto.WhatTask or proto.WhatResult: one
// cannot pass for the other.
func EnvelopeLeaf(header, body []byte, what byte) [32]byte {
	domain := domainTask
	if what == proto.WhatResult {
		domain = domainResult
	}
	var buf [512]byte // enough for a usual header: no allocation
	sum := sha256.Sum256(body)
	b := append(buf[:0], merkle.PrefixLeaf)
	b = append(b, domain...)
	b = append(b, header...)
	return sha256.Sum256(append(b, sum[:]...))
}

// StatementLeaf returns the leaf of an encoded proto.Statement.
func StatementLeaf(statement []byte) [32]byte { return leafOf(domainReceipt, statement) }

func leafOf(domain string, statement []byte) [32]byte {
	var buf [512]byte
	b := append(buf[:0], merkle.PrefixLeaf)
	b = append(b, domain...)
	return sha256.Sum256(append(b, statement...))
}
