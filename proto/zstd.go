package proto

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

// ErrInflated is returned for compressed bytes that would decompress to more than allowed
// or need too large a window. Nothing of that size was allocated.
var ErrInflated = errors.New("proto: too large when inflated")

// ErrCompressed is returned for bytes that are not exactly one zstd frame.
var ErrCompressed = errors.New("proto: bad compressed data")

const (
	minCompress = 256     // bytes; compressing a smaller body does not pay
	maxWindow   = 8 << 20 // bytes, when decompressing data from others
)

// The coders are created at init and have one unit for each core in use, at most four. They
// start no goroutine.
var (
	encoder = newEncoder()
	decoder = newDecoder()
)

func zstdCoders() int { return min(runtime.GOMAXPROCS(0), 4) }

func newEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(zstdCoders()),
		zstd.WithWindowSize(MaxInlineBody),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // an option is out of range
	}
	e.EncodeAll([]byte{0}, nil) // its units are created on first use
	return e
}

func newDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(zstdCoders()),
		zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // an option is out of range
	}
	return d
}

// Compress appends src to dst as one zstd frame that states its size. ok is false,
// and out is dst, when that does not pay: src is short or would save less than a
// sixteenth. What cannot be compressed is given up at some 9 GB/s where it is
// long; where it is short a look at a sample of it saves most tries.
func Compress(dst, src []byte) (out []byte, ok bool) {
	if len(src) < minCompress || len(src) <= maxSampled && looksRandom(src) {
		return dst, false
	}
	out = encoder.EncodeAll(src, dst)
	if n := len(out) - len(dst); n > len(src)-len(src)/16 {
		return dst, false
	}
	return out, true
}

const (
	maxSampled  = 4 << 10 // bytes; in more, a repetition may hide from a look
	runs        = 8       // of runLength bytes each are looked at
	runLength   = minCompress / runs
	randomKinds = 150 // of 256 bytes of noise about 162 differ, with a deviation of 5
	anchor      = 8   // bytes that occur once in noise
)

// looksRandom reports whether src, which is at least minCompress long, looks like
// noise: runs of bytes out of all of it take about as many different values, and
// neither its end nor its middle was there before. Text, numbers, and what is noise
// for no more than three quarters, take fewer.
func looksRandom(src []byte) bool {
	var seen [256]bool
	kinds := 0
	for i := range runs {
		if i == runs/2 && kinds < randomKinds/2 {
			return false // half of them are enough to recognize text
		}
		from := i * (len(src) - runLength) / (runs - 1)
		for _, c := range src[from : from+runLength] {
			if !seen[c] {
				seen[c] = true
				kinds++
			}
		}
	}
	return kinds >= randomKinds && !repeats(src, len(src)-anchor) && !repeats(src, len(src)/2)
}

// repeats reports whether the bytes at a place were there before.
func repeats(src []byte, at int) bool {
	return bytes.Contains(src[:at+anchor-1], src[at:at+anchor])
}

// Decompress decompresses the output of Compress to at most max bytes. It accepts exactly
// one frame that states its size and allocates no more than that.
func Decompress(src []byte, max int) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompressed, err)
	}
	switch {
	case h.Skippable || h.DictionaryID != 0 || !h.HasFCS:
		return nil, fmt.Errorf("%w: not a frame that states its size", ErrCompressed)
	case h.WindowSize > maxWindow:
		return nil, fmt.Errorf("%w: a window of %d bytes, the limit is %d", ErrInflated, h.WindowSize, maxWindow)
	case max < 0 || h.FrameContentSize > uint64(max):
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrInflated, h.FrameContentSize, max)
	}
	most, err := frameBound(src, h)
	if err != nil {
		return nil, err
	}
	if h.FrameContentSize > most {
		return nil, fmt.Errorf("%w: it states %d bytes and holds at most %d", ErrCompressed, h.FrameContentSize, most)
	}
	out, err := decoder.DecodeAll(src, make([]byte, 0, h.FrameContentSize))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompressed, err)
	}
	if uint64(len(out)) != h.FrameContentSize {
		return nil, fmt.Errorf("%w: %d bytes instead of the %d it states", ErrCompressed, len(out), h.FrameContentSize)
	}
	return out, nil
}

// frameBound scans the blocks of the frame in src, which must be all of src, and returns an
// upper bound of their decompressed size.
func frameBound(src []byte, h zstd.Header) (most uint64, err error) {
	const maxBlock = 128 << 10
	b := src[h.HeaderSize:]
	for last := false; !last; {
		if len(b) < 3 {
			return 0, fmt.Errorf("%w: it is cut short", ErrCompressed)
		}
		head := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
		kind, n := head>>1&3, int(head>>3)
		last = head&1 != 0
		length := n
		switch kind {
		case 0:
			most += uint64(n)
		case 1: // one byte, repeated
			most += uint64(n)
			length = 1
		case 2:
			most += maxBlock
		}
		if kind == 3 || n > maxBlock || length > len(b)-3 {
			return 0, fmt.Errorf("%w: a bad block", ErrCompressed)
		}
		b = b[3+length:]
	}
	if h.HasCheckSum && len(b) != 4 || !h.HasCheckSum && len(b) != 0 {
		return 0, fmt.Errorf("%w: %d bytes behind the last block", ErrCompressed, len(b))
	}
	return most, nil
}

// NewCompressor returns a writer that compresses to w, in the caller's goroutine. It must
// be closed.
func NewCompressor(w io.Writer) io.WriteCloser {
	e, err := zstd.NewWriter(w,
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(1<<20),
		zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // an option is out of range
	}
	return e
}

// A Decompressor decompresses a stream. It must be used by one goroutine.
type Decompressor struct {
	d    *zstd.Decoder
	src  source
	left int64 // bytes that may still be produced
	max  int64
	err  error
}

// A source records why the underlying reader failed, so that this is not reported as
// damage. It also hides the type of the reader: zstd would decompress a buffer as a whole.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// NewDecompressor returns a Decompressor of r that produces at most max bytes and then
// fails with ErrInflated. Its memory is bounded by the largest window.
func NewDecompressor(r io.Reader, max int64) (*Decompressor, error) {
	d := &Decompressor{src: source{r: r}, left: max, max: max}
	var err error
	d.d, err = zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1), // in the caller's goroutine
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecodeBuffersBelow(0))
	if err == nil {
		err = d.d.Reset(&d.src)
	}
	if err != nil {
		return nil, d.classify(err)
	}
	return d, nil
}

// Read implements io.Reader. Errors of the underlying reader are passed on; errors are
// sticky.
func (d *Decompressor) Read(p []byte) (int, error) {
	if d.err != nil || len(p) == 0 {
		return 0, d.err
	}
	if int64(len(p)) > d.left+1 {
		p = p[:d.left+1]
	}
	n, err := d.d.Read(p)
	d.err = d.classify(err)
	if int64(n) > d.left {
		n, d.err = int(d.left), fmt.Errorf("%w: more than %d bytes", ErrInflated, d.max)
	}
	d.left -= int64(n)
	return n, d.err
}

// Close releases the memory. It does not close the underlying reader.
func (d *Decompressor) Close() error {
	d.d.Close()
	return nil
}

// classify distinguishes the end, a failure of the underlying reader, too large, and
// damaged.
func (d *Decompressor) classify(err error) error {
	switch {
	case err == nil, err == io.EOF:
		return err
	case d.src.err != nil:
		return d.src.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fmt.Errorf("%w: %w", ErrInflated, err)
	}
	return fmt.Errorf("%w: %w", ErrCompressed, err)
}
