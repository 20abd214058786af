package bodies

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/balefire/balefire/proto"
)

// The file of an object: a header, and the sealed chunks, each behind its entry. An entry
// is written after its chunk was synced; a torn one fails its checksum, and its chunk comes
// again.
const (
	magic      = "bfo1"
	headerSize = 128
	entrySize  = 4 + 32 + 4 // index, leaf hash, checksum
)

// ErrDamaged is returned for a file that is not what this package wrote.
var ErrDamaged = errors.New("bodies: damaged file")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A note is what the header of a file says about its object.
type note struct {
	manifest Manifest
	notAfter int64        // Unix milliseconds: nobody sends the rest of a part after it
	owner    [32]byte     // who is charged for a part
	task     proto.TaskID // for which a part is awaited only as long as its record is here; zero: none
}

func (n *note) encode() []byte {
	b := n.manifest.Append([]byte(magic))
	b = binary.BigEndian.AppendUint64(b, uint64(n.notAfter))
	b = append(append(b, n.owner[:]...), n.task[:]...)
	b = append(b, make([]byte, headerSize-4-len(b))...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseNote(b []byte) (n note, err error) {
	const end = headerSize - 4
	if len(b) != headerSize || string(b[:4]) != magic || binary.BigEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
		return n, ErrDamaged
	}
	if n.manifest, err = ParseManifest(b[4 : 4+manifestSize]); err != nil {
		return n, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	b = b[4+manifestSize:]
	n.notAfter, n.owner = int64(binary.BigEndian.Uint64(b)), [32]byte(b[8:])
	n.task = proto.TaskID(b[40:])
	return n, nil
}

func readNote(r io.ReaderAt) (note, error) {
	b := make([]byte, headerSize)
	if _, err := r.ReadAt(b, 0); err != nil {
		return note{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return parseNote(b)
}

// An entry says that a chunk is durable.
type entry struct {
	index int
	leaf  [32]byte
}

func (e *entry) append(b []byte) []byte {
	from := len(b)
	b = append(binary.BigEndian.AppendUint32(b, uint32(e.index)), e.leaf[:]...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

func parseEntry(b []byte) (e entry, ok bool) {
	e = entry{index: int(binary.BigEndian.Uint32(b)), leaf: [32]byte(b[4:36])}
	return e, binary.BigEndian.Uint32(b[36:]) == crc32.Checksum(b[:36], castagnoli)
}

func entryAt(m *Manifest, i int) int64 {
	return headerSize + int64(i)*(m.sealedChunk()+entrySize)
}

func chunkAt(m *Manifest, i int) int64 { return entryAt(m, i) + entrySize }

// readEntries calls f with the entry of each chunk that is durable.
func readEntries(r io.ReaderAt, m *Manifest, f func(entry)) error {
	b := make([]byte, entrySize)
	for i := range m.Chunks() {
		if _, err := r.ReadAt(b, entryAt(m, i)); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the entries of an object: %w", err)
		}
		if e, ok := parseEntry(b); ok && e.index == i {
			f(e)
		}
	}
	return nil
}

// readLeaves returns the leaf hashes of a complete object, or ErrDamaged.
func readLeaves(f *os.File, m *Manifest) ([][32]byte, error) {
	leaves := make([][32]byte, 0, m.Chunks())
	err := readEntries(f, m, func(e entry) { leaves = append(leaves, e.leaf) })
	if missing := m.Chunks() - len(leaves); err == nil && missing > 0 {
		err = fmt.Errorf("%w: %d hashes are missing", ErrDamaged, missing)
	}
	return leaves, err
}

// A bitmap has a bit for each chunk, the lowest of a byte first.
type bitmap []byte

func newBitmap(n int) bitmap { return make(bitmap, (n+7)/8) }

func (b bitmap) has(i int) bool { return b[i/8]>>(i%8)&1 == 1 }
func (b bitmap) set(i int)      { b[i/8] |= 1 << (i % 8) }
