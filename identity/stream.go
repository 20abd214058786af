package identity

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// ErrStream is returned for a chunk that does not belong at its position.
var ErrStream = errors.New("identity: the stream was changed")

// SealedChunk is the size in bytes of every sealed chunk but the last.
const SealedChunk = proto.ChunkSize + tagSize

// maxStream bounds a sealed stream, in bytes: 2^32 chunks.
const maxStream = int64(SealedChunk) << 32

// SealedSize returns the sealed size of a body of plain bytes. An empty body is
// one empty chunk.
func SealedSize(plain int64) int64 {
	return plain + tagSize*max(1, (plain+proto.ChunkSize-1)/proto.ChunkSize)
}

// PlainSize is the inverse of SealedSize; it returns ErrStream for a size that no sealed
// body has.
func PlainSize(sealed int64) (int64, error) {
	chunks := (sealed + SealedChunk - 1) / SealedChunk
	plain := sealed - chunks*tagSize
	if sealed < tagSize || sealed > maxStream || SealedSize(plain) != sealed {
		return 0, fmt.Errorf("%w: no sealed body has %d bytes", ErrStream, sealed)
	}
	return plain, nil
}

// streamCipher seals and opens chunk i of a body. The nonce contains i and whether the
// chunk is the last, so that no chunk can be dropped, moved or added.
type streamCipher struct{ aead cipher.AEAD }

func newStreamCipher(key [32]byte, suiteID, what byte) (streamCipher, error) {
	suite, err := suiteOf(suiteID)
	if err != nil {
		return streamCipher{}, fmt.Errorf("stream: %w", err)
	}
	k, err := hkdf.Key(sha256.New, key[:], nil, domainStream+string([]byte{suiteID, what}), keySize)
	if err != nil {
		return streamCipher{}, fmt.Errorf("stream: %w", err)
	}
	return streamCipher{suite.aead(k)}, nil
}

func streamNonce(i uint64, last bool) (n [nonceSize]byte) {
	binary.BigEndian.PutUint64(n[3:], i)
	if last {
		n[11] = 1
	}
	return n
}

// checkChunk refuses sizes that would allow more than one split of a body into chunks.
func checkChunk(i uint64, last bool, plain int) error {
	switch {
	case plain < 0 || plain > proto.ChunkSize,
		!last && plain != proto.ChunkSize,
		last && plain == 0 && i > 0:
		return fmt.Errorf("%w: chunk %d has %d bytes", ErrStream, i, plain)
	}
	return nil
}

// A StreamSealer seals a body that is too large for its envelope, chunk by
// chunk, in any order. It is safe for concurrent use.
type StreamSealer struct{ c streamCipher }

// NewStreamSealer returns the sealer for the streamed body of an envelope: key is its
// content key, suite and what come from its header.
func NewStreamSealer(key [32]byte, suite, what byte) (*StreamSealer, error) {
	c, err := newStreamCipher(key, suite, what)
	if err != nil {
		return nil, err
	}
	return &StreamSealer{c}, nil
}

// SealChunk appends chunk i, counted from 0, to dst. Each but the last has
// proto.ChunkSize bytes; the last is empty only if the body is. The same
// chunk must not be sealed twice with different bytes.
func (s *StreamSealer) SealChunk(dst []byte, i uint64, last bool, plain []byte) ([]byte, error) {
	if err := checkChunk(i, last, len(plain)); err != nil {
		return dst, err
	}
	nonce := streamNonce(i, last)
	return s.c.aead.Seal(dst, nonce[:], plain, nil), nil
}

// A StreamOpener opens the chunks of a StreamSealer. It is safe for concurrent use.
type StreamOpener struct{ c streamCipher }

// NewStreamOpener returns the opener for the streamed body of an envelope, with
// the same arguments as NewStreamSealer.
func NewStreamOpener(key [32]byte, suite, what byte) (*StreamOpener, error) {
	c, err := newStreamCipher(key, suite, what)
	if err != nil {
		return nil, err
	}
	return &StreamOpener{c}, nil
}

// OpenChunk appends the plain bytes of chunk i to dst, or returns ErrStream.
// The sealed size in the signed header determines whether it is the last.
func (s *StreamOpener) OpenChunk(dst []byte, i uint64, last bool, sealed []byte) ([]byte, error) {
	if err := checkChunk(i, last, len(sealed)-tagSize); err != nil {
		return dst, err
	}
	nonce := streamNonce(i, last)
	out, err := s.c.aead.Open(dst, nonce[:], sealed, nil)
	if err != nil {
		return dst, fmt.Errorf("%w: chunk %d", ErrStream, i)
	}
	return out, nil
}
