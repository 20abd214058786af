package ledger

import (
	"encoding/binary"
	"hash/crc32"
)

// Limits of the format.
const (
	MaxBatch   = 1 << 20 // largest batch in bytes, with its header and padding
	MaxEntries = 4096    // entries of a batch
)

const (
	batchHead  = 40 // bytes of the header of a batch
	entryHead  = 8  // bytes before the data of an entry
	batchMagic = 0x42464c42
)

// A Kind tells what is in a batch.
type Kind uint8

// The kinds of batches.
const (
	KindEntries   Kind = 1 // what was queued
	KindHardState Kind = 2 // reserved for replication: has the index of the batch before it

	// KindLost takes the place of what could not be read when the ledger was rebuilt, see
	// [Rebuild]: its index is that of the last lost batch, or of the batch before it if it
	// is the first part of a long one. It has no entries.
	KindLost Kind = 4

	segmentEnd Kind = 3 // empty: the segment is complete
)

const (
	flagZstd   = 1 << iota // reserved: the entries are compressed
	flagSealed             // reserved: the entries are encrypted
	flagSynced             // everything before this batch was on disk when it was written
)

// A batchHeader is the header of a batch. Its last bytes are not in it: they
// follow, padded with zeros to a multiple of 8.
type batchHeader struct {
	length uint32 // bytes of header and entries, without padding
	crc    uint32
	kind   Kind
	flags  uint8
	count  uint16 // entries
	index  uint64
	term   uint64
	time   int64 // Unix ms
}

// size returns the bytes that the batch takes in the file.
func (h *batchHeader) size() int { return padded(int(h.length)) }

func (h *batchHeader) synced() bool { return h.flags&flagSynced != 0 }

// follows reports whether a batch of this index may follow one of index last.
func (h *batchHeader) follows(last uint64) bool {
	switch h.kind {
	case KindEntries:
		return h.index == last+1
	case KindLost:
		return h.index >= last
	}
	return h.index == last
}

func padded(n int) int { return (n + 7) &^ 7 }

// put writes the header but for the CRC, which [seal] adds.
func (h *batchHeader) put(b []byte) {
	binary.BigEndian.PutUint32(b, batchMagic)
	binary.BigEndian.PutUint32(b[4:], h.length)
	binary.BigEndian.PutUint32(b[8:], 0)
	b[12], b[13] = byte(h.kind), h.flags
	binary.BigEndian.PutUint16(b[14:], h.count)
	binary.BigEndian.PutUint64(b[16:], h.index)
	binary.BigEndian.PutUint64(b[24:], h.term)
	binary.BigEndian.PutUint64(b[32:], uint64(h.time))
}

// parseBatch reads the header at the start of b. ok is false if it is none that
// this version writes; its CRC is not checked.
func parseBatch(b []byte) (h batchHeader, ok bool) {
	if len(b) < batchHead || binary.BigEndian.Uint32(b) != batchMagic {
		return h, false
	}
	h = batchHeader{
		length: binary.BigEndian.Uint32(b[4:]),
		crc:    binary.BigEndian.Uint32(b[8:]),
		kind:   Kind(b[12]),
		flags:  b[13],
		count:  binary.BigEndian.Uint16(b[14:]),
		index:  binary.BigEndian.Uint64(b[16:]),
		term:   binary.BigEndian.Uint64(b[24:]),
		time:   int64(binary.BigEndian.Uint64(b[32:])),
	}
	if h.length < batchHead || h.length > MaxBatch || h.flags&^flagSynced != 0 || int(h.count) > MaxEntries {
		return h, false
	}
	body := int(h.length) - batchHead
	switch h.kind {
	case KindEntries:
		return h, h.count > 0 && body >= int(h.count)*entryHead
	case KindHardState:
		return h, body >= int(h.count)*entryHead
	case KindLost:
		return h, h.count == 0
	case segmentEnd:
		return h, h.count == 0 && body == 0
	}
	return h, false
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC of the padded batch b, which continues prev, the CRC of
// the batch before it.
func (id ID) checksum(prev uint32, b []byte) uint32 {
	c := crc32.Update(prev, castagnoli, id[:])
	c = crc32.Update(c, castagnoli, b[:8])
	return crc32.Update(c, castagnoli, b[12:])
}

// seal completes the padded batch b with its CRC.
func (id ID) seal(prev uint32, b []byte) uint32 {
	c := id.checksum(prev, b)
	binary.BigEndian.PutUint32(b[8:], c)
	return c
}

// verifies reports whether b, a padded batch with the header h, was written behind
// the batch whose CRC is prev, and is well formed.
func (id ID) verifies(h *batchHeader, prev uint32, b []byte) bool {
	return id.checksum(prev, b) == h.crc && wellFormed(h, b)
}

// wellFormed reports whether the entries of b fill it exactly. The CRCs of entries
// are not checked: that of the batch covers their data.
func wellFormed(h *batchHeader, b []byte) bool {
	if h.kind == KindLost {
		return allZero(b[batchHead:])
	}
	at, end := batchHead, int(h.length)
	for range h.count {
		if end-at < entryHead {
			return false
		}
		n := int(binary.BigEndian.Uint32(b[at:]))
		if n > end-at-entryHead {
			return false
		}
		at += entryHead + n
	}
	return at == end && allZero(b[end:])
}

// putEntry writes an entry at b[at:] and returns where it ends.
func putEntry(b []byte, at int, data []byte) int {
	binary.BigEndian.PutUint32(b[at:], uint32(len(data)))
	binary.BigEndian.PutUint32(b[at+4:], crc32.Checksum(data, castagnoli))
	return at + entryHead + copy(b[at+entryHead:], data)
}

// entryVerifies reports whether data is what was written behind head, the bytes
// before the data of an entry.
func entryVerifies(head, data []byte) bool {
	return binary.BigEndian.Uint32(head) == uint32(len(data)) &&
		binary.BigEndian.Uint32(head[4:]) == crc32.Checksum(data, castagnoli)
}
