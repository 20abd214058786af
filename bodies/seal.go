package bodies

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/balefire/balefire/proto"
)

// Cipher suites of chunks.
const (
	AES    byte = 1 // AES-256-GCM
	ChaCha byte = 2 // ChaCha20-Poly1305, for machines without AES in hardware
)

// ErrSealed is returned for an object that cannot be opened with its reference, or whose
// plain bytes differ from what the reference says (I9).
var ErrSealed = errors.New("bodies: the body does not match its digest (I9)")

// A Ref is what a reader of an object needs. It belongs into sealed content: who has it
// can read the body.
type Ref struct {
	Name   Name
	Key    [32]byte // of this object alone
	Suite  byte     // AES or ChaCha
	Packed bool     // the plain bytes were compressed before they were sealed
	Size   int64    // plain bytes
	Digest [32]byte // SHA-256 of the plain bytes
}

// A chunkCipher seals and opens the chunks of one object. The nonce has the index and
// whether the chunk is the last, so that none can be dropped, moved or added.
type chunkCipher struct {
	aead   cipher.AEAD
	header [len(domainSeal) + 6]byte
}

const domainSeal = "balefire/v1/object chunk\x00"

func newChunkCipher(key [32]byte, suite byte, chunk int) (c chunkCipher, err error) {
	h := append(c.header[:0], domainSeal...)
	binary.BigEndian.AppendUint32(append(h, version, suite), uint32(chunk))
	switch suite {
	case AES:
		var block cipher.Block
		if block, err = aes.NewCipher(key[:]); err == nil {
			c.aead, err = cipher.NewGCM(block)
		}
	case ChaCha:
		c.aead, err = chacha20poly1305.New(key[:])
	default:
		err = fmt.Errorf("%w: suite %d is unknown", ErrSealed, suite)
	}
	return c, err
}

func nonce(i int, last bool) (n [12]byte) {
	binary.BigEndian.PutUint64(n[3:], uint64(i))
	if last {
		n[11] = 1
	}
	return n
}

func (c *chunkCipher) seal(dst []byte, i int, last bool, plain []byte) []byte {
	n := nonce(i, last)
	return c.aead.Seal(dst, n[:], plain, c.header[:])
}

func (c *chunkCipher) open(dst []byte, i int, last bool, sealed []byte) ([]byte, error) {
	n := nonce(i, last)
	plain, err := c.aead.Open(dst, n[:], sealed, c.header[:])
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %d", ErrSealed, i)
	}
	return plain, nil
}

// RefOf returns the reference that sealed content states: o, with the size and the digest
// of the plain body.
func RefOf(o *proto.BodyRef, size uint64, digest []byte) (r Ref, err error) {
	if len(o.GetName()) != len(r.Name) || len(o.GetKey()) != len(r.Key) || len(digest) != len(r.Digest) || size > math.MaxInt64 {
		return r, fmt.Errorf("%w: it refers to no body", ErrSealed)
	}
	r = Ref{Name: Name(o.GetName()), Key: [32]byte(o.GetKey()), Suite: byte(o.GetSuite()), Packed: o.GetPacked(), Size: int64(size), Digest: [32]byte(digest)}
	_, err = newChunkCipher(r.Key, r.Suite, proto.ChunkSize)
	return r, err
}

// Proto returns what sealed content states besides the size and the digest.
func (r *Ref) Proto() *proto.BodyRef {
	return &proto.BodyRef{Name: r.Name[:], Key: r.Key[:], Suite: uint32(r.Suite), Packed: r.Packed}
}
