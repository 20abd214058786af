package identity

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/balefire/balefire/proto"
)

// sealStream splits and seals a whole body.
func sealStream(tb testing.TB, s *StreamSealer, body []byte) [][]byte {
	tb.Helper()
	var chunks [][]byte
	for i := uint64(0); ; i++ {
		n := min(len(body), proto.ChunkSize)
		last := n == len(body)
		chunk, err := s.SealChunk(nil, i, last, body[:n])
		if err != nil {
			tb.Fatal(err)
		}
		chunks = append(chunks, chunk)
		if body = body[n:]; last {
			return chunks
		}
	}
}

func openStream(o *StreamOpener, chunks [][]byte) ([]byte, error) {
	var body []byte
	var err error
	for i, chunk := range chunks {
		if body, err = o.OpenChunk(body, uint64(i), i == len(chunks)-1, chunk); err != nil {
			return nil, err
		}
	}
	return body, nil
}

func streamFixture(tb testing.TB, key [32]byte, suite, what byte) (*StreamSealer, *StreamOpener) {
	tb.Helper()
	s, err := NewStreamSealer(key, suite, what)
	if err != nil {
		tb.Fatal(err)
	}
	o, err := NewStreamOpener(key, suite, what)
	if err != nil {
		tb.Fatal(err)
	}
	return s, o
}

// A streamed body comes out unchanged, and its sealed size is known beforehand.
func TestStreamComesBackAsItWas(t *testing.T) {
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		s, o := streamFixture(t, [32]byte{1}, suite, proto.WhatTask)
		for _, size := range []int{0, 1, proto.ChunkSize - 1, proto.ChunkSize, proto.ChunkSize + 1, 2 * proto.ChunkSize, 3*proto.ChunkSize + 7} {
			body := randomBytes(size)
			chunks := sealStream(t, s, body)
			if got := int64(len(bytes.Join(chunks, nil))); got != SealedSize(int64(size)) {
				t.Errorf("%d bytes: sealed size %d, want %d", size, got, SealedSize(int64(size)))
			}
			if plain, err := PlainSize(SealedSize(int64(size))); err != nil || plain != int64(size) {
				t.Errorf("%d bytes: plain size %d, %v", size, plain, err)
			}
			if got, err := openStream(o, chunks); err != nil || !bytes.Equal(got, body) {
				t.Errorf("suite %d, %d bytes: changed, %v", suite, size, err)
			}
		}
	}
}

// I9: a chunk that was changed, dropped, added, moved or taken from another body is
// detected.
func TestChangedStreamsAreRefused(t *testing.T) {
	s, o := streamFixture(t, [32]byte{1}, SuiteX25519AES, proto.WhatTask)
	body := randomBytes(3*proto.ChunkSize + 100)
	good := func() [][]byte { return sealStream(t, s, body) }
	other := func(key [32]byte, suite, what byte) [][]byte {
		s, _ := streamFixture(t, key, suite, what)
		return sealStream(t, s, body)
	}
	tests := []struct {
		name   string
		change func(c [][]byte) [][]byte
	}{
		{"a bit", func(c [][]byte) [][]byte { c[1][77] ^= 4; return c }},
		{"a bit of the tag", func(c [][]byte) [][]byte { c[3][len(c[3])-1] ^= 1; return c }},
		{"cut after a chunk", func(c [][]byte) [][]byte { return c[:3] }},
		{"only the first", func(c [][]byte) [][]byte { return c[:1] }},
		{"without the first", func(c [][]byte) [][]byte { return c[1:] }},
		{"without the second", func(c [][]byte) [][]byte { return append(c[:1], c[2:]...) }},
		{"two swapped", func(c [][]byte) [][]byte { c[0], c[1] = c[1], c[0]; return c }},
		{"the last twice", func(c [][]byte) [][]byte { return append(c, c[3]) }},
		{"the first at the end", func(c [][]byte) [][]byte { return append(c, c[0]) }},
		{"a chunk cut short", func(c [][]byte) [][]byte { c[1] = c[1][:100]; return c }},
		{"the last cut short", func(c [][]byte) [][]byte { c[3] = c[3][:20]; return c }},
		{"the last without a tag", func(c [][]byte) [][]byte { c[3] = c[3][:15]; return c }},
		{"an empty chunk at the end", func(c [][]byte) [][]byte { return append(c, make([]byte, tagSize)) }},
		{"a chunk too long", func(c [][]byte) [][]byte { c[0] = append(c[0], 0); return c }},
		{"a nil chunk", func(c [][]byte) [][]byte { c[0] = nil; return c }},
		{"of another key", func([][]byte) [][]byte { return other([32]byte{2}, SuiteX25519AES, proto.WhatTask) }},
		{"of another suite", func([][]byte) [][]byte { return other([32]byte{1}, SuiteX25519ChaCha, proto.WhatTask) }},
		{"of another suite with the same cipher", func([][]byte) [][]byte { return other([32]byte{1}, SuiteHybridAES, proto.WhatTask) }},
		{"of a result", func([][]byte) [][]byte { return other([32]byte{1}, SuiteX25519AES, proto.WhatResult) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := openStream(o, tt.change(good())); !errors.Is(err, ErrStream) {
				t.Errorf("err = %v, want ErrStream", err)
			}
		})
	}
	dst := []byte("before")
	if got, err := o.OpenChunk(dst, 0, true, make([]byte, 50)); err == nil || string(got) != "before" {
		t.Errorf("after an error dst is %q, want it unchanged", got)
	}
}

// There is only one way to split a body.
func TestStreamChunksHaveOneSize(t *testing.T) {
	s, _ := streamFixture(t, [32]byte{1}, SuiteX25519AES, proto.WhatTask)
	for _, tt := range []struct {
		i    uint64
		last bool
		size int
	}{{0, false, 0}, {0, false, 100}, {0, false, proto.ChunkSize + 1}, {0, true, proto.ChunkSize + 1}, {1, true, 0}} {
		if _, err := s.SealChunk(nil, tt.i, tt.last, make([]byte, tt.size)); !errors.Is(err, ErrStream) {
			t.Errorf("chunk %d, last %v, %d bytes: %v", tt.i, tt.last, tt.size, err)
		}
	}
	for _, sealed := range []int64{-1 << 63, -1, 0, 15, SealedChunk + 1, SealedChunk + tagSize, 5*SealedChunk + 3, maxStream + 1, 1<<63 - 1} {
		if plain, err := PlainSize(sealed); !errors.Is(err, ErrStream) {
			t.Errorf("%d sealed bytes have %d plain ones: %v", sealed, plain, err)
		}
	}
	for _, suite := range []byte{0, 4, 255} {
		if _, err := NewStreamSealer([32]byte{}, suite, proto.WhatTask); !errors.Is(err, ErrSuite) {
			t.Errorf("suite %d: %v", suite, err)
		}
		if _, err := NewStreamOpener([32]byte{}, suite, proto.WhatTask); !errors.Is(err, ErrSuite) {
			t.Errorf("suite %d: %v", suite, err)
		}
	}
}

func BenchmarkSealChunk(b *testing.B) {
	for suite := SuiteX25519AES; suite <= SuiteX25519ChaCha; suite++ {
		b.Run(fmt.Sprint("suite ", suite), func(b *testing.B) {
			s, _ := streamFixture(b, [32]byte{1}, suite, proto.WhatTask)
			plain, dst := make([]byte, proto.ChunkSize), make([]byte, 0, SealedChunk)
			b.SetBytes(proto.ChunkSize)
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); i++ {
				s.SealChunk(dst, i, false, plain)
			}
		})
	}
}
