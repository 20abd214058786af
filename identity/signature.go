package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// ErrSignature is returned for data that was not signed by the peer that it
// names.
var ErrSignature = errors.New("identity: the signature is not the author's")

// ErrWeakKey is returned for a public key of small order: one signature would be
// valid for many messages, so the key identifies nobody.
var ErrWeakKey = errors.New("identity: the public key is of small order")

// smallOrder lists the encodings of the points whose order divides 8, without
// the sign bit: seven, which makes 14 with it. Go's ed25519 accepts them all.
var smallOrder = [...][32]byte{
	{},  // order 4
	{1}, // the neutral element
	{0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0,
		0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05}, // order 8
	{0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f,
		0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a}, // order 8
	fieldPrime(0xec), // p-1, order 2
	fieldPrime(0xed), // p, a second encoding of 0
	fieldPrime(0xee), // p+1, a second encoding of 1
}

// fieldPrime returns 2^255-19 in little endian with a different last byte.
func fieldPrime(low byte) (b [32]byte) {
	for i := range b {
		b[i] = 0xff
	}
	b[0], b[31] = low, 0x7f
	return b
}

// checkKey refuses a weak public key.
func checkKey(key [32]byte) error {
	key[31] &= 0x7f
	for _, weak := range smallOrder {
		if key == weak {
			return ErrWeakKey
		}
	}
	return nil
}

// signedMessage returns the bytes that are signed for a record: its domain and
// its digest.
func signedMessage(domain string, details []byte) []byte {
	sum := sha256.Sum256(details)
	return append([]byte(domain), sum[:]...)
}

// signDetails signs details in a domain.
func signDetails(key ed25519.PrivateKey, domain string, details []byte) *proto.Signed {
	return &proto.Signed{
		Details:   details,
		Signature: ed25519.Sign(key, signedMessage(domain, details)),
		Signer:    key.Public().(ed25519.PublicKey),
	}
}

// verifyDetails checks that signer signed details in a domain.
func verifyDetails(s *proto.Signed, signer [32]byte, domain string) error {
	if !bytes.Equal(s.GetSigner(), signer[:]) {
		return ErrSignature
	}
	if err := checkKey(signer); err != nil {
		return err
	}
	if !ed25519.Verify(signer[:], signedMessage(domain, s.GetDetails()), s.GetSignature()) {
		return ErrSignature
	}
	return nil
}

// publicOf returns the public half of key as an array.
func publicOf(key ed25519.PrivateKey) [32]byte { return [32]byte(key[ed25519.SeedSize:]) }

// encodeDetails returns b, the encoding of details, if others would accept it.
func encodeDetails(b []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	if len(b) > maxDetails {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrBadRecord, len(b), maxDetails)
	}
	return b, nil
}

// verifySelfSigned returns who signed s in a domain for itself, without an
// issuer. The details must not be decoded before.
func verifySelfSigned(s *proto.Signed, domain string) (proto.PeerID, error) {
	if s == nil || len(s.GetDetails()) > maxDetails || s.GetIssuer() != nil {
		return proto.PeerID{}, fmt.Errorf("%w: there is none, it is too long, or it has an issuer", ErrBadRecord)
	}
	signer, err := proto.PeerIDFrom(s.GetSigner())
	if err != nil {
		return proto.PeerID{}, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	return signer, verifyDetails(s, signer, domain)
}
