package proto

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// ErrSealedSize is returned for a size that no sealed body has.
var ErrSealedSize = errors.New("proto: no sealed body has this size")

// ObjectFile returns the name of the file with the sealed body that has the name in a
// header.
func ObjectFile(name [32]byte) string { return "o-" + hex.EncodeToString(name[:]) }

// File returns the name of the file with the body that r refers to, empty if it refers to
// none.
func (r *BodyRef) File() string {
	if len(r.GetName()) != 32 {
		return ""
	}
	return ObjectFile([32]byte(r.GetName()))
}

// ObjectFile returns the name of the file with the body, empty if that is not an object.
func (h *Header) ObjectFile() string {
	name, _, ok := h.Object()
	if !ok {
		return ""
	}
	return ObjectFile(name)
}

// ResultSize returns the plain size of a result: what it states or the size of its stream,
// whichever is more.
func ResultSize(h *Header, o *Outcome) uint64 {
	if _, sealed, ok := h.Object(); ok {
		if plain, err := PlainSize(sealed); err == nil {
			return max(uint64(plain), o.GetBodySize())
		}
	}
	return max(uint64(len(o.GetBody())), o.GetBodySize())
}

const (
	tagSize     = 16 // of the authentication of a chunk
	sealedChunk = ChunkSize + tagSize
)

// SealedSize returns the sealed size of a body of plain bytes in chunks of ChunkSize. An
// empty body is one empty chunk.
func SealedSize(plain int64) int64 {
	return plain + tagSize*max(1, (plain+ChunkSize-1)/ChunkSize)
}

// PlainSize is the inverse of SealedSize; it returns ErrSealedSize for a size that no
// sealed body has.
func PlainSize(sealed int64) (int64, error) {
	chunks := (max(sealed, 0) + sealedChunk - 1) / sealedChunk
	plain := sealed - chunks*tagSize
	if sealed < tagSize || chunks > MaxChunks || SealedSize(plain) != sealed {
		return 0, fmt.Errorf("%w: %d bytes", ErrSealedSize, sealed)
	}
	return plain, nil
}

// Check checks that r refers to the object that a header names, whose plain body has size
// bytes.
func (r *BodyRef) Check(h *Header, size uint64) error {
	name, sealed, ok := h.Object()
	plain, err := PlainSize(sealed)
	switch {
	case !ok || err != nil:
		return fmt.Errorf("its header names no body: %w", err)
	case string(r.GetName()) != string(name[:]) || len(r.GetKey()) != maxKeyBytes || r.GetSuite() > 255:
		return errors.New("its content refers to another body than its header")
	case !r.GetPacked() && uint64(plain) != size:
		return fmt.Errorf("its stream has %d bytes, its content states %d", plain, size)
	}
	return nil
}
