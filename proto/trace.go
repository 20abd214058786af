package proto

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// AppendTraceparent appends a new trace context in the form of the W3C recommendation. It has
// random ids and the flags 01, sampled: a node records the steps of what has it, so a program
// that continues the trace finds its parent.
func AppendTraceparent(dst []byte) []byte {
	var ids [24]byte
	for ids[0] == 0 || ids[16] == 0 { // an all-zero id is not valid
		for i := 0; i < len(ids); i += 8 {
			binary.BigEndian.PutUint64(ids[i:], rand.Uint64()) // a source for each thread: no lock, no system call
		}
	}
	dst = append(hex.AppendEncode(append(dst, "00-"...), ids[:16]), '-')
	return append(hex.AppendEncode(dst, ids[16:]), "-01"...)
}

// tracedTLVs is the size of the entries of a letter up to which [TraceLetter] adds one: nodes add
// others, such as the box for the reply to a request.
const tracedTLVs = MaxLetterTLVs - 512

// TraceLetter gives the letter b[at:], which was parsed before, a new trace context if it has none.
// It returns b, which is longer then. A letter with almost as many entries as it may have stays as it is.
func TraceLetter(b []byte, at int) []byte {
	n := int(binary.BigEndian.Uint16(b[at+tlvsAt:]))
	r := b[at+LetterFixed : at+LetterFixed+n]
	for len(r) > 0 && r[0] <= letterTraceparent {
		tag, _, rest, _ := cutTLV(r)
		if tag == letterTraceparent {
			return b
		}
		r = rest
	}
	const size = 3 + traceparentSize
	if n > tracedTLVs {
		return b
	}
	i := at + LetterFixed + n - len(r) // where the entry goes
	var entry [size]byte
	AppendTraceparent(append(entry[:0], letterTraceparent, 0, traceparentSize))
	b = append(b, entry[:]...)
	copy(b[i+size:], b[i:])
	copy(b[i:], entry[:])
	binary.BigEndian.PutUint16(b[at+tlvsAt:], uint16(n+size))
	return b
}
