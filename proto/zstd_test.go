package proto

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// text returns n bytes that compress.
func text(n int) []byte {
	return []byte(strings.Repeat("the beacon on the next hill answers; ", n/37+1)[:n])
}

// frame compresses b with options that other zstd encoders may use.
func frame(t testing.TB, b []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// streamed compresses b as a stream, which does not state its size.
func streamed(t testing.TB, b []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, append(opts, zstd.WithEncoderConcurrency(1))...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, struct{ io.Reader }{bytes.NewReader(b)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// skippable returns a frame that a decoder skips.
func skippable(n int) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{0x50, 0x2a, 0x4d, 0x18}, uint32(n))
	return append(b, make([]byte, n)...)
}

// zeros returns a frame of n zero bytes, in blocks that repeat one byte: the densest
// possible bomb. It states its size if sized, otherwise a window of 128 KiB.
func zeros(n int, sized bool) []byte {
	b := []byte{0x28, 0xb5, 0x2f, 0xfd}
	if sized {
		b = append(b, 0xe0) // single segment, eight bytes of size
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	} else {
		b = append(b, 0x00, 7<<3)
	}
	for n > 0 {
		size := min(n, 128<<10)
		n -= size
		head := uint32(size)<<3 | 1<<1
		if n == 0 {
			head |= 1
		}
		b = append(b, byte(head), byte(head>>8), byte(head>>16), 0)
	}
	return b
}

// windowed returns a frame of one byte that requires a window of 2^log bytes.
func windowed(log int) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, byte(log-10) << 3, 0x09, 0x00, 0x00, 'x'}
}

// windowedSized returns the same frame with its size stated.
func windowedSized(log int) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0x80, byte(log-10) << 3, 1, 0, 0, 0, 0x09, 0x00, 0x00, 'x'}
}

// Compressible input is compressed and decompresses to the same bytes; other input is left
// uncompressed.
func TestCompress(t *testing.T) {
	half := append(noise(4<<10), text(4<<10)...)
	tests := []struct {
		name string
		src  []byte
		ok   bool
	}{
		{"nothing", nil, false},
		{"255 bytes of text", text(255), false},
		{"256 bytes of text", text(256), true},
		{"1 KiB of text", text(1 << 10), true},
		{"256 KiB of text", text(MaxInlineBody), true},
		{"1 MiB of text", text(1 << 20), true},
		{"256 bytes of noise", noise(256), false},
		{"1 KiB of noise", noise(1 << 10), false},
		{"256 KiB of noise", noise(MaxInlineBody), false},
		{"half noise, half text", half, true},
		{"noise twice over", append(noise(32<<10), noise(32<<10)...), true},
		{"a frame once more", frame(t, noise(8<<10)), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dst := []byte("kept")
			out, ok := Compress(dst, tt.src)
			if ok != tt.ok || !bytes.HasPrefix(out, dst) || !ok && len(out) != len(dst) {
				t.Fatalf("%d bytes, %v, want %v", len(out), ok, tt.ok)
			}
			if !ok {
				return
			}
			back, err := Decompress(out[len(dst):], len(tt.src))
			if err != nil || !bytes.Equal(back, tt.src) {
				t.Errorf("%d bytes came back: %v", len(back), err)
			}
			if _, err := Decompress(out[len(dst):], len(tt.src)-1); !errors.Is(err, ErrInflated) {
				t.Errorf("one byte less allowed: %v, want %v", err, ErrInflated)
			}
		})
	}
}

// Compressed input decompresses to the same bytes, and never to more than the limit.
func TestCompressRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "word")
		src := slices.Concat(bytes.Repeat(word, rapid.IntRange(1, 400).Draw(t, "times")), rapid.SliceOf(rapid.Byte()).Draw(t, "tail"))
		out, ok := Compress(nil, src)
		if !ok {
			return
		}
		if len(out) > len(src)-len(src)/16 {
			t.Fatalf("%d bytes became %d, want at least 1/16 less", len(src), len(out))
		}
		back, err := Decompress(out, len(src))
		if err != nil || !bytes.Equal(back, src) {
			t.Fatalf("%d of %d bytes came back: %v", len(back), len(src), err)
		}
		d, err := NewDecompressor(bytes.NewReader(out), int64(len(src)))
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if err := iotest.TestReader(d, src); err != nil {
			t.Fatal(err)
		}
	})
}

// A zipCase is bytes that are inflated whole to at most 64 KiB and as a stream to
// at most 1 MiB.
type zipCase struct {
	name   string
	b      []byte
	whole  error // nil: they are accepted
	stream error
}

// zipCases returns the compression family.
func zipCases(t testing.TB) []zipCase {
	good := frame(t, text(10_000))
	big := frame(t, text(60_000))
	bare := frame(t, text(10_000), zstd.WithEncoderCRC(false))
	flip := func(b []byte, at int) []byte {
		b = slices.Clone(b)
		b[(at+len(b))%len(b)] ^= 0x10
		return b
	}
	nested := frame(t, zeros(8<<20, true))
	lie := zeros(1000, true)
	binary.LittleEndian.PutUint64(lie[5:], 60_000)
	short := zeros(60_000, true)
	binary.LittleEndian.PutUint64(short[5:], 1000)
	dict := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x23, 7, 0, 0, 0, 1, 0x09, 0x00, 0x00, 'x'}
	cases := []zipCase{
		{"a frame", good, nil, nil},
		{"a frame without a checksum", bare, nil, nil},
		{"a frame that does not state its size", streamed(t, text(300_000)), ErrCompressed, nil},
		{"nothing", nil, ErrCompressed, nil},
		{"text", text(1000), ErrCompressed, ErrCompressed},
		{"the magic number alone", good[:4], ErrCompressed, ErrCompressed},
		{"a bad magic number", flip(good, 0), ErrCompressed, ErrCompressed},
		{"the reserved bit", flip(append([]byte(nil), flip(good, 4)...), 4), nil, nil},
		{"a bad checksum", flip(good, -1), ErrCompressed, ErrCompressed},
		{"no checksum where one is due", good[:len(good)-4], ErrCompressed, ErrCompressed},
		{"half a checksum", good[:len(good)-2], ErrCompressed, ErrCompressed},
		{"a byte behind the frame", append(slices.Clone(good), 0), ErrCompressed, ErrCompressed},
		{"two frames", slices.Concat(good, good), ErrCompressed, nil},
		{"a hundred frames", bytes.Repeat(big, 100), ErrCompressed, ErrInflated},
		{"a frame and an empty one", slices.Concat(good, frame(t, nil, zstd.WithZeroFrames(true))), ErrCompressed, nil},
		{"a frame to skip", skippable(100), ErrCompressed, nil},
		{"a frame to skip before the frame", slices.Concat(skippable(100), good), ErrCompressed, nil},
		{"a frame to skip behind the frame", slices.Concat(good, skippable(0)), ErrCompressed, nil},
		{"ten thousand frames to skip", bytes.Repeat(skippable(0), 10_000), ErrCompressed, nil},
		{"a frame to skip of 4 GiB", skippable(100)[:4:4], ErrCompressed, ErrCompressed},
		{"a dictionary", dict, ErrCompressed, ErrCompressed},
		{"a frame in a frame: only the outer is inflated", nested, nil, nil},
		{"a block of the reserved kind", append(slices.Clone(windowed(20)[:6]), 0x0f, 0, 0, 0), ErrCompressed, ErrCompressed},
		{"a block above 128 KiB", append(slices.Clone(windowed(20)[:6]), 0x01, 0, 0x20, 0), ErrCompressed, ErrInflated},
		{"it states more than it holds", lie, ErrCompressed, ErrCompressed},
		{"it holds more than it states", short, ErrCompressed, ErrInflated},
		{"it states 2^63 bytes", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x01, 0, 0), ErrInflated, ErrInflated},
		{"it states 2^64-1 bytes", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0}, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 0, 0), ErrInflated, ErrInflated},
	}
	for _, ratio := range []int{10, 100, 1000, 10_000, 32_755} {
		n := 4 * ratio * 100
		cases = append(cases,
			zipCase{fmt.Sprintf("%d bytes at a ratio of %d", n, ratio), zeros(n, true), bomb(n, 64<<10), bomb(n, 1<<20)},
			zipCase{fmt.Sprintf("%d bytes at a ratio of %d, size unsaid", n, ratio), zeros(n, false), ErrCompressed, bomb(n, 1<<20)})
	}
	cases = append(cases, zipCase{"1 GiB of zeros", zeros(1<<30, true), ErrInflated, ErrInflated},
		zipCase{"1 GiB of zeros, size unsaid", zeros(1<<30, false), ErrCompressed, ErrInflated})
	for log := 20; log <= 31; log++ {
		var want error
		if 1<<log > maxWindow {
			want = ErrInflated
		}
		cases = append(cases,
			zipCase{fmt.Sprintf("a window of 2^%d bytes", log), windowed(log), ErrCompressed, want},
			zipCase{fmt.Sprintf("a window of 2^%d bytes, with stated size", log), windowedSized(log), want, want})
	}
	return cases
}

// bomb returns the error for n bytes where max are allowed.
func bomb(n, max int) error {
	if n > max {
		return ErrInflated
	}
	return nil
}

// Malicious compressed input is inflated within the limit or refused with an error
// that states the reason, in bounded memory (bad input: compression; S54).
func TestBadCompression(t *testing.T) {
	cases := zipCases(t)
	if len(cases) < 40 {
		t.Errorf("%d cases, want at least 40", len(cases))
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			bounded(t, len(tt.b), func() {
				if _, err := Decompress(tt.b, 64<<10); !errors.Is(err, tt.whole) {
					t.Errorf("whole: %v, want %v", err, tt.whole)
				}
			})
			bounded(t, len(tt.b)+maxWindow, func() {
				n, err := inflate(bytes.NewReader(tt.b), 1<<20)
				if !errors.Is(err, tt.stream) || n > 1<<20 {
					t.Errorf("stream: %d bytes, %v, want %v", n, err, tt.stream)
				}
			})
		})
	}
}

// A stated size that the blocks cannot have allocates no memory, whatever the limit is.
func TestStatedSizeAloneCostsNoMemory(t *testing.T) {
	b := zeros(1000, true)
	binary.LittleEndian.PutUint64(b[5:], 64<<20)
	bounded(t, len(b), func() {
		if _, err := Decompress(b, 64<<20); !errors.Is(err, ErrCompressed) {
			t.Errorf("%v, want %v", err, ErrCompressed)
		}
	})
}

// inflate reads r until EOF or an error.
func inflate(r io.Reader, max int64) (n int64, err error) {
	d, err := NewDecompressor(r, max)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return io.Copy(io.Discard, d)
}

// A frame that is truncated anywhere is refused, whole and as a stream; one with a
// flipped bit is refused too, or its content is unchanged.
func TestDamagedFrame(t *testing.T) {
	src := text(2000)
	good, ok := Compress(nil, src)
	if !ok {
		t.Fatal("text does not compress")
	}
	for cut := range len(good) {
		if _, err := Decompress(good[:cut], len(src)); !errors.Is(err, ErrCompressed) {
			t.Errorf("cut at %d: %v, want %v", cut, err, ErrCompressed)
		}
		if _, err := inflate(bytes.NewReader(good[:cut]), 1<<20); cut > 0 && !errors.Is(err, ErrCompressed) {
			t.Errorf("stream cut at %d: %v, want %v", cut, err, ErrCompressed)
		}
	}
	for bit := range 8 * len(good) {
		b := slices.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		out, err := Decompress(b, len(src))
		if err == nil && !bytes.Equal(out, src) {
			t.Errorf("bit %d flipped: different content without an error", bit)
		}
		if err != nil && !errors.Is(err, ErrCompressed) && !errors.Is(err, ErrInflated) {
			t.Errorf("bit %d flipped: %v is not an error of the package", bit, err)
		}
	}
}

// An error of the underlying stream is not reported as damage.
func TestDecompressorPassesErrorsOn(t *testing.T) {
	good := streamed(t, noise(300_000))
	for _, cut := range []int{0, 1, 5, 100, len(good) / 2, len(good) - 1} {
		r := io.MultiReader(bytes.NewReader(good[:cut]), iotest.ErrReader(os.ErrDeadlineExceeded))
		if _, err := inflate(r, 1<<20); !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ErrCompressed) {
			t.Errorf("cut at %d: %v, want the deadline", cut, err)
		}
	}
}

// The coders belong to no synctest bubble and start no goroutines: they may first be used
// in a bubble and then outside of it.
func TestCodersCrossBubbles(t *testing.T) {
	e, d := newEncoder(), newDecoder()
	use := func(t *testing.T) {
		b := e.EncodeAll(text(1000), nil)
		if _, err := d.DecodeAll(b, make([]byte, 0, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := inflate(bytes.NewReader(b), 1000); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			use(t)
			synctest.Wait()
		})
		use(t)
	}
}

// The sample keeps short random bodies from the coder, but no compressible ones.
func TestSampleOfShortBodies(t *testing.T) {
	noisy := 0
	for i := range 1000 {
		b := make([]byte, minCompress+i*(maxSampled-minCompress)/1000)
		rand.NewChaCha8([32]byte{2, byte(i), byte(i >> 8)}).Read(b)
		if looksRandom(b) {
			noisy++
		}
	}
	if noisy < 950 {
		t.Errorf("%d of 1000 random bodies look random", noisy)
	}
	for _, n := range []int{minCompress, minCompress + 1, 1 << 10, 1100, 2 << 10, maxSampled} {
		half := noise(n / 2)
		for name, b := range map[string][]byte{
			"text": text(n), "zeros": make([]byte, n),
			"base64":             []byte(base64.StdEncoding.EncodeToString(noise(n)))[:n],
			"hex":                []byte(hex.EncodeToString(noise(n)))[:n],
			"noise behind text":  append(text(n/4), noise(3*n/4)...),
			"text behind noise":  append(noise(n/2), text(n/2)...),
			"noise said twice":   append(slices.Clone(half), half...),
			"numbers of 8 bytes": numbers(n),
		} {
			tried := encoder.EncodeAll(b, nil)
			pays := len(tried) <= len(b)-len(b)/16
			if _, ok := Compress(nil, b); ok != pays {
				t.Errorf("%s, %d bytes: compressed: %v, compressed size %d", name, len(b), ok, len(tried))
			}
		}
	}
}

// numbers returns n bytes of counters, in eight bytes each.
func numbers(n int) (b []byte) {
	for i := uint64(0); len(b) < n; i += 977 {
		b = binary.LittleEndian.AppendUint64(b, i)
	}
	return b[:n]
}

func BenchmarkCompressNoise1K(b *testing.B)   { benchmarkCompress(b, noise(1<<10)) }
func BenchmarkCompressNoise256K(b *testing.B) { benchmarkCompress(b, noise(MaxInlineBody)) }
func BenchmarkCompressText1K(b *testing.B)    { benchmarkCompress(b, text(1<<10)) }

func benchmarkCompress(b *testing.B, src []byte) {
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	buf := make([]byte, 0, 2*len(src)+64)
	for b.Loop() {
		Compress(buf, src)
	}
}

func BenchmarkDecompressText1K(b *testing.B) {
	in, ok := Compress(nil, text(1<<10))
	if !ok {
		b.Fatal("text does not compress")
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decompress(in, 1<<10); err != nil {
			b.Fatal(err)
		}
	}
}
