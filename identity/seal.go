package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// ErrTooLarge is returned for data beyond a limit of the proto package.
var ErrTooLarge = errors.New("identity: too large")

// ErrOpen is returned for a body that does not open with the key that its author
// committed to.
var ErrOpen = errors.New("identity: the body does not open")

// The first byte of a sealed body is its packing.
const (
	packedRaw  = 0
	packedZstd = 1
)

// sealOverhead is what sealing adds to incompressible content.
const sealOverhead = 1 + tagSize

// Seal encrypts content, a marshaled proto.Content or proto.Outcome, for
// h.Target, whose key is to. It fills in Suite, Commitment and SealedLen of h,
// which must be complete otherwise. It returns an envelope that remains to be
// signed (see Keys.SignGroup) and its content key.
//
// The body is sealed under a key that is used for nothing else, with the header
// as additional data, so its nonce is constant.
func (s *Sealer) Seal(h *proto.Header, to KeyRecord, content []byte) (*proto.Envelope, [32]byte, error) {
	var key [keySize]byte
	rand.Read(key[:])
	env, err := s.seal(key, h, to, content)
	return env, key, err
}

// seal is Seal with a key that serves this envelope only. To seal the same envelope for
// another recipient key use [Sealer.WrapKey].
func (s *Sealer) seal(key [32]byte, h *proto.Header, to KeyRecord, content []byte) (*proto.Envelope, error) {
	if h.Target != to.Peer {
		return nil, fmt.Errorf("seal for %s: %w: the key is of %s", h.Target.Short(), ErrBadRecord, to.Peer.Short())
	}
	if len(content) > proto.MaxSealed-sealOverhead {
		return nil, fmt.Errorf("seal for %s: %w: %d bytes, the limit is %d",
			to.Peer.Short(), ErrTooLarge, len(content), proto.MaxSealed-sealOverhead)
	}
	suite, err := suiteOf(to.Suite)
	if err != nil {
		return nil, fmt.Errorf("seal for %s: %w", to.Peer.Short(), err)
	}
	plain := pack(content, h.What)
	h.Suite, h.Commitment, h.SealedLen = to.Suite, commitment(&key), uint32(len(plain)+tagSize)
	header := h.Append(make([]byte, 0, 256))
	if len(header) > proto.MaxHeader {
		return nil, fmt.Errorf("seal for %s: %w: a header of %d bytes", to.Peer.Short(), ErrTooLarge, len(header))
	}
	wrapped, err := s.WrapKey(header, to, key)
	if err != nil {
		return nil, err
	}
	bodyKey := derive(domainBody, &key)
	body := suite.aead(bodyKey[:]).Seal(plain[:0], zeroNonce[:], plain, header)
	return &proto.Envelope{Header: header, Body: body, Slot: wrapped}, nil
}

// Open returns the content of an envelope and its content key. It trusts nobody:
// a wrapped key that differs from the one that the header commits to is
// ErrBadKey, a body that does not open with it ErrOpen.
func (k *Keys) Open(env *proto.Envelope, h *proto.Header) (content []byte, key [32]byte, err error) {
	return k.open(nil, env, h)
}

// open is Open into dst, which is empty. It may be the beginning of the sealed body, which is
// overwritten then.
func (k *Keys) open(dst []byte, env *proto.Envelope, h *proto.Header) (content []byte, key [32]byte, err error) {
	suite, err := suiteOf(h.Suite)
	if err != nil {
		return nil, key, fmt.Errorf("open: %w", err)
	}
	key, err = k.unwrapKey(env.GetHeader(), env.GetSlot())
	if err != nil {
		return nil, [32]byte{}, fmt.Errorf("open: %w", err)
	}
	if commitment(&key) != h.Commitment {
		return nil, [32]byte{}, fmt.Errorf("open: %w: it differs from the header's key", ErrBadKey)
	}
	content, err = openBody(dst, suite, &key, env)
	if err != nil {
		return nil, [32]byte{}, fmt.Errorf("open: %w", err)
	}
	return content, key, nil
}

func openBody(dst []byte, suite suite, key *[keySize]byte, env *proto.Envelope) ([]byte, error) {
	bodyKey := derive(domainBody, key)
	plain, err := suite.aead(bodyKey[:]).Open(dst, zeroNonce[:], env.GetBody(), env.GetHeader())
	if err != nil {
		return nil, ErrOpen
	}
	return unpack(plain)
}

var zeroNonce [nonceSize]byte

// commitment returns the header's commitment to its content key. AES-GCM and
// ChaCha20-Poly1305 ciphertexts can be crafted to open under more than one key;
// with the commitment, no two readers see different bodies.
func commitment(key *[keySize]byte) [32]byte { return derive(domainCommit, key) }

// derive derives a value from a random key. The input fits one block of SHA-256.
func derive(domain string, key *[keySize]byte) [32]byte {
	var buf [64]byte
	return sha256.Sum256(append(append(buf[:0], domain...), key[:]...))
}

// minOutcome is the smallest outcome worth compressing, in bytes: smaller ones
// are mostly signatures and hashes.
const minOutcome = 2 << 10

// pack returns content with its packing byte in front, compressed if that pays,
// with capacity for a tag.
func pack(content []byte, what byte) []byte {
	out := make([]byte, 1, len(content)+sealOverhead)
	if what == proto.WhatResult && len(content) < minOutcome {
		return append(out, content...)
	}
	if small, ok := proto.Compress(out, content); ok {
		small[0] = packedZstd
		return small
	}
	return append(out, content...)
}

// unpack reverses pack; it never produces more than the largest content.
func unpack(plain []byte) ([]byte, error) {
	if len(plain) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrOpen)
	}
	switch plain[0] {
	case packedRaw:
		return plain[1:], nil
	case packedZstd:
		content, err := proto.Decompress(plain[1:], proto.MaxSealed-sealOverhead)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrOpen, err)
		}
		return content, nil
	}
	return nil, fmt.Errorf("%w: unknown packing %d", ErrOpen, plain[0])
}

// OpenWith returns the content of an envelope to its author, who has kept the
// content key.
func OpenWith(key [32]byte, env *proto.Envelope, h *proto.Header) ([]byte, error) {
	suite, err := suiteOf(h.Suite)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	content, err := openBody(nil, suite, &key, env)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return content, nil
}
