package proto

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// The content of an envelope. It selects the domain of the signature.
const (
	WhatTask   = 1
	WhatResult = 2
)

// Entries of the header's TLV area. The top bit is the critical bit: a receiver rejects an
// envelope with an unknown critical entry; any other entry is kept.
const (
	TagCritical    uint16 = 0x8000
	TagStream      uint16 = TagCritical | 1 // name 32 | sealed size 8: the body is an object
	TagGeneration  uint16 = 2               // of the home, 8 bytes
	TagPathAllowed uint16 = 3               // which couriers may carry it; not used yet
)

// A Seq orders what one origin sends to one target: Boot increases with every start of the
// origin, Counter starts at 1 within it.
type Seq struct {
	Boot, Counter uint64
}

// String returns the sequence as boot.counter.
func (s Seq) String() string { return fmt.Sprintf("%d.%d", s.Boot, s.Counter) }

// Compare orders sequences by boot, then counter.
func (s Seq) Compare(o Seq) int {
	return cmp.Or(cmp.Compare(s.Boot, o.Boot), cmp.Compare(s.Counter, o.Counter))
}

// A TLV is an entry of the extensible area of the header.
type TLV struct {
	Tag   uint16
	Value []byte
}

// A Header is the part of an envelope that anyone may read and no one may
// change. Its bytes are a fixed layout, big endian:
//
//	version 1 | what 1 | suite 1 | zero 1 | mesh 16 | id 16 | origin 32 |
//	target 32 | seq boot 8 | seq counter 8 | created 8 | not_after 8 |
//	content-key commitment 32 | sealed length 4 | TLV length 2 | TLVs
//
// and each TLV is tag 2 | length 2 | value, ascending by tag.
type Header struct {
	What       byte
	Suite      byte
	Mesh       MeshID
	ID         TaskID
	Origin     PeerID // who created and signed it
	Target     PeerID // who may open it: for a queue or agent, its home
	Seq        Seq    // of the origin for the target; of a result: that of its task
	Created    int64  // Unix milliseconds
	NotAfter   int64  // Unix milliseconds: do not start after this
	Commitment [32]byte
	SealedLen  uint32 // of Envelope.body
	TLVs       []TLV
}

const headerFixed = 4 + 16 + 16 + 32 + 32 + 8*4 + 32 + 4 + 2

// ErrBadHeader is returned for bytes that are not a valid header of this version.
var ErrBadHeader = errors.New("proto: bad header")

// ErrVersion is returned for a header of a later version, or with unknown content: a newer
// node may have sent it, so it is no reason to end a task.
var ErrVersion = errors.New("proto: unknown header version")

// ErrCritical is returned for a header with an unknown critical entry.
var ErrCritical = errors.New("proto: unknown critical header entry")

// Append appends the encoding of h to dst. The TLVs must be ascending by tag and the whole
// at most MaxHeader bytes; otherwise ParseHeader rejects it.
func (h *Header) Append(dst []byte) []byte {
	dst = append(dst, Version, h.What, h.Suite, 0)
	dst = append(dst, h.Mesh[:]...)
	dst = append(dst, h.ID[:]...)
	dst = append(dst, h.Origin[:]...)
	dst = append(dst, h.Target[:]...)
	dst = binary.BigEndian.AppendUint64(dst, h.Seq.Boot)
	dst = binary.BigEndian.AppendUint64(dst, h.Seq.Counter)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.Created))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.NotAfter))
	dst = append(dst, h.Commitment[:]...)
	dst = binary.BigEndian.AppendUint32(dst, h.SealedLen)
	at := len(dst)
	dst = append(dst, 0, 0)
	for _, t := range h.TLVs {
		dst = binary.BigEndian.AppendUint16(dst, t.Tag)
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(t.Value)))
		dst = append(dst, t.Value...)
	}
	binary.BigEndian.PutUint16(dst[at:], uint16(len(dst)-at-2))
	return dst
}

// ParseHeader parses exactly the encoding of Append: one header has one encoding. It
// returns ErrBadHeader, ErrVersion, or ErrCritical together with the header if it has an
// unknown critical entry. It keeps no reference to b.
func ParseHeader(b []byte) (Header, error) {
	var h Header
	if len(b) < 2 || len(b) > MaxHeader {
		return h, fmt.Errorf("%w: %d bytes", ErrBadHeader, len(b))
	}
	if b[0] > Version || b[0] == Version && b[1] > WhatResult {
		return h, fmt.Errorf("%w: version %d, what %d", ErrVersion, b[0], b[1])
	}
	if len(b) < headerFixed {
		return h, fmt.Errorf("%w: %d bytes", ErrBadHeader, len(b))
	}
	if b[0] != Version || b[3] != 0 || b[1] == 0 {
		return h, fmt.Errorf("%w: version %d, what %d", ErrBadHeader, b[0], b[1])
	}
	h.What, h.Suite = b[1], b[2]
	r := b[4:]
	take := func(n int) []byte { v := r[:n]; r = r[n:]; return v }
	u64 := func() uint64 { return binary.BigEndian.Uint64(take(8)) }
	copy(h.Mesh[:], take(16))
	copy(h.ID[:], take(16))
	copy(h.Origin[:], take(32))
	copy(h.Target[:], take(32))
	h.Seq = Seq{u64(), u64()}
	h.Created, h.NotAfter = int64(u64()), int64(u64())
	copy(h.Commitment[:], take(32))
	h.SealedLen = binary.BigEndian.Uint32(take(4))
	if int(binary.BigEndian.Uint16(take(2))) != len(r) {
		return h, fmt.Errorf("%w: TLV length", ErrBadHeader)
	}
	if h.Created < 0 || h.NotAfter < h.Created {
		return h, fmt.Errorf("%w: it ends before it begins", ErrBadHeader)
	}
	return h, h.parseTLVs(r)
}

func (h *Header) parseTLVs(r []byte) error {
	last, unknown := -1, error(nil)
	for len(r) > 0 {
		if len(r) < 4 {
			return fmt.Errorf("%w: TLV cut short", ErrBadHeader)
		}
		tag, n := binary.BigEndian.Uint16(r), int(binary.BigEndian.Uint16(r[2:]))
		if int(tag) <= last || n > len(r)-4 {
			return fmt.Errorf("%w: TLV %#x", ErrBadHeader, tag)
		}
		if !validTLV(tag, r[4:4+n]) {
			return fmt.Errorf("%w: TLV %#x of %d bytes", ErrBadHeader, tag, n)
		}
		if tag&TagCritical != 0 && tag != TagStream {
			unknown = fmt.Errorf("%w: %#x", ErrCritical, tag)
		}
		h.TLVs = append(h.TLVs, TLV{tag, slices.Clone(r[4 : 4+n])})
		r, last = r[4+n:], int(tag)
	}
	return unknown
}

// validTLV checks the value of a known entry. A sealed body is not empty.
func validTLV(tag uint16, v []byte) bool {
	switch tag {
	case TagStream:
		if len(v) != 40 {
			return false
		}
		size := binary.BigEndian.Uint64(v[32:])
		return size > 0 && size <= math.MaxInt64
	case TagGeneration:
		return len(v) == 8
	}
	return true
}

// Object returns the name and the sealed size of the object that is the body; ok is false
// if the body is inside the envelope.
func (h *Header) Object() (name [32]byte, size int64, ok bool) {
	for _, t := range h.TLVs {
		if t.Tag == TagStream {
			return [32]byte(t.Value), int64(binary.BigEndian.Uint64(t.Value[32:])), true
		}
	}
	return name, 0, false
}

// Streamed reports whether the body is an object, streamed separately from the envelope.
func (h *Header) Streamed() bool { _, _, ok := h.Object(); return ok }

// SetObject declares the body an object: its name and its sealed size, more than 0.
func (h *Header) SetObject(name [32]byte, size int64) {
	v := binary.BigEndian.AppendUint64(name[:], uint64(size))
	h.TLVs = slices.DeleteFunc(h.TLVs, func(t TLV) bool { return t.Tag == TagStream })
	h.TLVs = append(h.TLVs, TLV{TagStream, v})
	slices.SortFunc(h.TLVs, func(a, b TLV) int { return int(a.Tag) - int(b.Tag) })
}
