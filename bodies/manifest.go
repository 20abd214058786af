package bodies

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// ErrManifest is returned for a manifest that no object of this version can have, or
// that has another name than asked for.
var ErrManifest = errors.New("bodies: bad manifest")

// A Name is the SHA-256 of an object's manifest.
type Name [32]byte

// String returns the name of the object's file.
func (n Name) String() string { return proto.ObjectFile(n) }

const (
	version      = 1
	tagSize      = 16
	minChunk     = 1 << 10
	maxChunks    = proto.MaxChunks
	manifestSize = 1 + 8 + 4 + 32
	domainName   = "balefire/v1/object\x00"
)

// A Manifest describes an object: it is all that is needed to check its chunks.
type Manifest struct {
	Size  int64    // bytes of all sealed chunks
	Chunk int      // plain bytes of each chunk but the last
	Root  [32]byte // of the Merkle tree over the sealed chunks
}

func (m *Manifest) sealedChunk() int64 { return int64(m.Chunk) + tagSize }

// Chunks returns the number of chunks, at least one.
func (m *Manifest) Chunks() int {
	return int((m.Size + m.sealedChunk() - 1) / m.sealedChunk())
}

// ChunkSize returns the sealed size of chunk i.
func (m *Manifest) ChunkSize(i int) int {
	return int(min(m.Size-int64(i)*m.sealedChunk(), m.sealedChunk()))
}

func (m *Manifest) check() error {
	switch {
	case m.Chunk < minChunk || m.Chunk > proto.ChunkSize:
		return fmt.Errorf("%w: chunks of %d bytes", ErrManifest, m.Chunk)
	case m.Size < tagSize || m.Size > maxChunks*m.sealedChunk():
		return fmt.Errorf("%w: %d bytes", ErrManifest, m.Size)
	}
	if n := m.Chunks(); m.ChunkSize(n-1) < tagSize || n > 1 && m.ChunkSize(n-1) == tagSize {
		return fmt.Errorf("%w: %d bytes cannot be cut into chunks of %d", ErrManifest, m.Size, m.Chunk)
	}
	return nil
}

// Append appends the manifest's only encoding to b: version 1 | size 8 | chunk size 4 |
// root 32, big endian.
func (m *Manifest) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, version), uint64(m.Size))
	b = binary.BigEndian.AppendUint32(b, uint32(m.Chunk))
	return append(b, m.Root[:]...)
}

// Name returns the name of the object.
func (m *Manifest) Name() Name {
	return sha256.Sum256(m.Append([]byte(domainName)))
}

// ParseManifest parses a manifest.
func ParseManifest(b []byte) (m Manifest, err error) {
	if len(b) != manifestSize || b[0] != version {
		return m, fmt.Errorf("%w: %d bytes", ErrManifest, len(b))
	}
	size := binary.BigEndian.Uint64(b[1:])
	m = Manifest{Size: int64(min(size, 1<<62)), Chunk: int(binary.BigEndian.Uint32(b[9:])), Root: [32]byte(b[13:])}
	return m, m.check()
}

// CheckManifest parses a manifest and checks that it has the name.
func CheckManifest(b []byte, name Name) (Manifest, error) {
	m, err := ParseManifest(b)
	if err == nil && m.Name() != name {
		err = fmt.Errorf("%w: it belongs to another object", ErrManifest)
	}
	return m, err
}
