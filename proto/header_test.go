package proto

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawBytes fills an array of n bytes.
func drawBytes(t *rapid.T, dst []byte, name string) {
	copy(dst, rapid.SliceOfN(rapid.Byte(), len(dst), len(dst)).Draw(t, name))
}

// drawHeader draws a valid header with known TLVs.
func drawHeader(t *rapid.T) Header {
	h := Header{
		What:      rapid.SampledFrom([]byte{WhatTask, WhatResult}).Draw(t, "what"),
		Suite:     rapid.Byte().Draw(t, "suite"),
		Seq:       Seq{rapid.Uint64().Draw(t, "boot"), rapid.Uint64().Draw(t, "counter")},
		Created:   rapid.Int64Range(0, math.MaxInt64).Draw(t, "created"),
		SealedLen: rapid.Uint32().Draw(t, "sealed"),
	}
	drawBytes(t, h.Mesh[:], "mesh")
	drawBytes(t, h.ID[:], "id")
	drawBytes(t, h.Origin[:], "origin")
	drawBytes(t, h.Target[:], "target")
	drawBytes(t, h.Commitment[:], "commitment")
	h.NotAfter = rapid.Int64Range(h.Created, math.MaxInt64).Draw(t, "not after")
	tags := rapid.SliceOfNDistinct(rapid.Uint16Range(TagPathAllowed, TagCritical-1), 0, 8, rapid.ID[uint16]).Draw(t, "tags")
	slices.Sort(tags)
	if rapid.Bool().Draw(t, "generation") {
		v := binary.BigEndian.AppendUint64(nil, rapid.Uint64().Draw(t, "generation number"))
		h.TLVs = append(h.TLVs, TLV{TagGeneration, v})
	}
	for _, tag := range tags {
		h.TLVs = append(h.TLVs, TLV{tag, rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "value")})
	}
	if rapid.Bool().Draw(t, "streamed") {
		h.SetObject([32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "name")), rapid.Int64Range(1, math.MaxInt64).Draw(t, "size"))
	}
	return h
}

// sameHeader compares by content: an empty list equals a missing one.
func sameHeader(a, b Header) bool {
	same := slices.EqualFunc(a.TLVs, b.TLVs, func(x, y TLV) bool { return x.Tag == y.Tag && bytes.Equal(x.Value, y.Value) })
	a.TLVs, b.TLVs = nil, nil
	return same && a.fixed() == b.fixed()
}

// fixed returns the encoding without the TLVs.
func (h Header) fixed() string { return string(h.Append(nil)) }

// A header survives a round trip and has a unique encoding; a trailer is refused.
func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		b := h.Append([]byte("before"))[len("before"):]
		back, err := ParseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		if !sameHeader(h, back) {
			t.Fatalf("%+v became %+v", h, back)
		}
		if again := back.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x encodes as %x", b, again)
		}
		if _, err := ParseHeader(append(slices.Clone(b), 0)); !errors.Is(err, ErrBadHeader) {
			t.Fatalf("with a trailer: %v", err)
		}
		name, size, ok := h.Object()
		name2, size2, ok2 := back.Object()
		if size != size2 || name != name2 || ok != ok2 {
			t.Fatalf("object %x %d %v became %x %d %v", name, size, ok, name2, size2, ok2)
		}
		clear(b) // it does not retain b
		if !sameHeader(h, back) {
			t.Fatal("the header changed with its bytes")
		}
	})
}

// A truncated header is refused; one with a flipped bit is refused or decodes to
// another header: no two encodings have the same meaning (I9).
func TestHeaderDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		b := h.Append(nil)
		for cut := range len(b) {
			if _, err := ParseHeader(b[:cut]); !errors.Is(err, ErrBadHeader) {
				t.Fatalf("cut at %d of %d: %v", cut, len(b), err)
			}
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			back, err := ParseHeader(b)
			if err == nil && sameHeader(h, back) {
				t.Fatalf("bit %d flipped and nothing changed", bit)
			}
			if err == nil && !bytes.Equal(back.Append(nil), b) {
				t.Fatalf("bit %d flipped: a second encoding", bit)
			}
			if err != nil && !errors.Is(err, ErrBadHeader) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrCritical) {
				t.Fatalf("bit %d flipped: %v is not an error of the package", bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	})
}

func TestBadHeaders(t *testing.T) {
	object := func(size uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 32), size) }
	with := func(tlvs ...TLV) func(*Header) { return func(h *Header) { h.TLVs = tlvs } }
	byteAt := func(i int, v byte) func([]byte) []byte {
		return func(b []byte) []byte { b[i] = v; return b }
	}
	tests := []struct {
		name   string
		change func(*Header)
		damage func([]byte) []byte
		want   error
	}{
		{"as it should be", nil, nil, nil},
		{"version 0", nil, byteAt(0, 0), ErrBadHeader},
		{"the next version", nil, byteAt(0, 2), ErrVersion},
		{"the next version, shorter", nil, func([]byte) []byte { return []byte{2, 1} }, ErrVersion},
		{"the next version, too large", nil, func([]byte) []byte { return append([]byte{2}, make([]byte, MaxHeader)...) }, ErrBadHeader},
		{"no kind", nil, byteAt(1, 0), ErrBadHeader},
		{"a later kind", nil, byteAt(1, 3), ErrVersion},
		{"the zero byte set", nil, byteAt(3, 1), ErrBadHeader},
		{"one byte", nil, func([]byte) []byte { return []byte{1} }, ErrBadHeader},
		{"nothing", nil, func([]byte) []byte { return nil }, ErrBadHeader},
		{"made before 1970", func(h *Header) { h.Created = -1 }, nil, ErrBadHeader},
		{"it ends before it begins", func(h *Header) { h.NotAfter = h.Created - 1 }, nil, ErrBadHeader},
		{"it ends as it begins", func(h *Header) { h.NotAfter = h.Created }, nil, nil},
		{"an unknown entry", with(TLV{77, []byte("kept")}), nil, nil},
		{"an empty entry", with(TLV{77, nil}), nil, nil},
		{"an unknown critical entry", with(TLV{TagCritical | 77, nil}), nil, ErrCritical},
		{"the same entry twice", with(TLV{77, nil}, TLV{77, nil}), nil, ErrBadHeader},
		{"entries out of order", with(TLV{78, nil}, TLV{77, nil}), nil, ErrBadHeader},
		{"a critical entry, then a bad one", with(TLV{TagCritical | 77, nil}, TLV{77, nil}), nil, ErrBadHeader},
		{"a short generation", with(TLV{TagGeneration, make([]byte, 7)}), nil, ErrBadHeader},
		{"a long generation", with(TLV{TagGeneration, make([]byte, 9)}), nil, ErrBadHeader},
		{"a short object", with(TLV{TagStream, make([]byte, 39)}), nil, ErrBadHeader},
		{"an object", with(TLV{TagStream, object(1)}), nil, nil},
		{"an object of nothing", with(TLV{TagStream, object(0)}), nil, ErrBadHeader},
		{"an object beyond 63 bits", with(TLV{TagStream, object(1 << 63)}), nil, ErrBadHeader},
		{"as large as may be", with(TLV{77, make([]byte, MaxHeader-headerFixed-4)}), nil, nil},
		{"a byte too large", with(TLV{77, make([]byte, MaxHeader-headerFixed-3)}), nil, ErrBadHeader},
		{"half an entry", nil, func(b []byte) []byte { b[len(b)-1] = 3; return append(b, 0, 77, 0) }, ErrBadHeader},
		{"an entry beyond the end", nil, func(b []byte) []byte { b[len(b)-1] = 4; return append(b, 0, 77, 0, 1) }, ErrBadHeader},
		{"a TLV length of more", nil, func(b []byte) []byte { b[len(b)-1] = 1; return b }, ErrBadHeader},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Header{What: WhatTask, Created: 1000, NotAfter: 2000}
			if tt.change != nil {
				tt.change(&h)
			}
			b := h.Append(nil)
			if tt.damage != nil {
				b = tt.damage(b)
			}
			if _, err := ParseHeader(b); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// SetObject replaces and keeps the order of the entries.
func TestSetObject(t *testing.T) {
	h := Header{What: WhatTask, TLVs: []TLV{{TagGeneration, make([]byte, 8)}, {TagCritical | 900, nil}}}
	h.SetObject([32]byte{1}, 10)
	h.SetObject([32]byte{2}, 20)
	tags := []uint16{}
	for _, v := range h.TLVs {
		tags = append(tags, v.Tag)
	}
	if want := []uint16{TagGeneration, TagStream, TagCritical | 900}; !slices.Equal(tags, want) {
		t.Errorf("tags %x, want %x", tags, want)
	}
	if name, size, ok := h.Object(); size != 20 || name != [32]byte{2} || !ok {
		t.Errorf("object %x %d %v", name, size, ok)
	}
}

// Sequences are ordered by boot, then by counter.
func TestSeqCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) Seq {
			return Seq{rapid.Uint64Range(0, 3).Draw(t, name+" boot"), rapid.Uint64Range(0, 3).Draw(t, name+" counter")}
		}
		a, b := draw("a"), draw("b")
		if got, want := a.Compare(b), cmp.Or(cmp.Compare(a.Boot, b.Boot), cmp.Compare(a.Counter, b.Counter)); got != want {
			t.Fatalf("%v and %v: %d, want %d", a, b, got, want)
		}
	})
}
