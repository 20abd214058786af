package proto

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// An Unsigned is the encoding of a Stored whose envelope is not signed yet. Many
// are signed together by one goroutine; what does not hang on the signature is
// encoded before that, by whoever made it.
//
//	envelope ( header, body, slot | path, index, signature ) | record, key
//	           head                 what Append is given       tail
type Unsigned struct {
	bytes []byte // head, then tail
	head  int    // bytes of head
}

// typicalRecordSize fits the record of most tasks, with the bytes between the fields.
const typicalRecordSize = 320

// Numbers of the fields that are encoded by hand.
const (
	numStoredEnvelope    = 1
	numEnvelopeHeader    = 1
	numEnvelopeBody      = 2
	numEnvelopeSlot      = 3
	numEnvelopePath      = 4
	numEnvelopeIndex     = 5
	numEnvelopeSignature = 6
)

// EncodeUnsigned encodes st except the path, index and signature of its envelope, which
// must not be set. It rejects what Encode rejects. It overwrites and keeps buf if that is
// large enough: see [Unsigned.Buffer].
func EncodeUnsigned(buf []byte, st *Stored) (Unsigned, error) {
	if e := st.GetEnvelope(); len(e.GetPath()) > 0 || e.GetIndex() > 0 || len(e.GetSignature()) > 0 {
		return Unsigned{}, fmt.Errorf("%w: the envelope is signed already", ErrMalformed)
	}
	rest := Stored{Record: st.Record, Key: st.Key}
	room := len(st.GetEnvelope().GetHeader()) + len(st.GetEnvelope().GetBody()) + len(st.GetEnvelope().GetSlot()) + typicalRecordSize
	if cap(buf) < room {
		buf = make([]byte, 0, room)
	}
	b, err := appendEnvelope(buf[:0], st.GetEnvelope())
	if err != nil {
		return Unsigned{}, err
	}
	u := Unsigned{head: len(b)}
	if u.bytes, err = Encode(b, &rest); err != nil {
		return Unsigned{}, err
	}
	if len(u.bytes)+maxPath+maxSignature+32 > MaxEncoded {
		return Unsigned{}, fmt.Errorf("%w: a record of %d bytes", ErrTooLong, len(u.bytes))
	}
	return u, nil
}

// appendEnvelope encodes the fields of an envelope that has no signature.
func appendEnvelope(dst []byte, e *Envelope) ([]byte, error) {
	for _, f := range [...]struct {
		num   protowire.Number
		name  string
		value []byte
		limit int
	}{
		{numEnvelopeHeader, "header", e.GetHeader(), MaxHeader},
		{numEnvelopeBody, "body", e.GetBody(), MaxSealed},
		{numEnvelopeSlot, "slot", e.GetSlot(), maxSlot},
	} {
		if len(f.value) > f.limit {
			return nil, fmt.Errorf("%w: Envelope.%s of %d bytes, the limit is %d", ErrTooLong, f.name, len(f.value), f.limit)
		}
		if len(f.value) > 0 {
			dst = protowire.AppendTag(dst, f.num, protowire.BytesType)
			dst = protowire.AppendBytes(dst, f.value)
		}
	}
	return dst, nil
}

// Buffer returns the memory of u, which must not be used afterwards.
func (u Unsigned) Buffer() []byte { return u.bytes[:0] }

// Append appends the encoding of the Stored with a signed envelope. It does not check the
// length of the path and the signature, which are the signer's responsibility.
func (u Unsigned) Append(dst, path []byte, index uint32, signature []byte) []byte {
	var room [maxPath + maxSignature + 32]byte
	signed := room[:0]
	if len(path) > 0 {
		signed = protowire.AppendTag(signed, numEnvelopePath, protowire.BytesType)
		signed = protowire.AppendBytes(signed, path)
	}
	if index > 0 {
		signed = protowire.AppendTag(signed, numEnvelopeIndex, protowire.VarintType)
		signed = protowire.AppendVarint(signed, uint64(index))
	}
	if len(signature) > 0 {
		signed = protowire.AppendTag(signed, numEnvelopeSignature, protowire.BytesType)
		signed = protowire.AppendBytes(signed, signature)
	}
	dst = protowire.AppendTag(dst, numStoredEnvelope, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(u.head+len(signed)))
	dst = append(dst, u.bytes[:u.head]...)
	dst = append(dst, signed...)
	return append(dst, u.bytes[u.head:]...)
}
