package proto

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"

	pb "google.golang.org/protobuf/proto"
)

// ErrFrameTooLarge is returned for a frame above the limit of its stream, before any byte
// of it is read or allocated.
var ErrFrameTooLarge = errors.New("proto: frame too large")

// ErrBadFrame is returned for an invalid length: zero, longer than needed, or beyond 64
// bits.
var ErrBadFrame = errors.New("proto: bad frame")

// readBuffer is the size of a Reader's buffer, in bytes.
const readBuffer = 64 << 10

// A Reader splits a stream into frames: the length as an unsigned varint in its shortest
// form, then that many bytes, at least one. It must be used by one goroutine.
type Reader struct {
	r    *bufio.Reader
	max  int
	big  []byte // a frame that does not fit into the buffer of r
	skip int    // bytes of the last frame, still in the buffer of r
	err  error  // set once the position in the stream is lost
}

// NewReader returns a Reader of r that rejects frames of more than max bytes.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, readBuffer), max: max}
}

// Next reads the next frame into m. The error is that of [Reader.NextRaw], after which the
// stream is unusable, or that of [DecodeKnown], after which the next frame can be read.
func (r *Reader) Next(m *Message) error {
	b, err := r.NextRaw()
	if err != nil {
		return err
	}
	return DecodeKnown(b, m)
}

// NextRaw returns the bytes of the next frame, valid until the next call. At the end of the
// stream it returns io.EOF between two frames, io.ErrUnexpectedEOF inside one. Errors are
// sticky.
func (r *Reader) NextRaw() ([]byte, error) {
	r.discard()
	if r.err != nil {
		return nil, r.err
	}
	n, err := r.length()
	if err != nil {
		r.err = err
		return nil, err
	}
	b, err := r.body(n)
	if err != nil {
		r.err = unexpectedEOF(err)
		return nil, r.err
	}
	return b, nil
}

// Buffered returns how many bytes can be read without waiting for the stream.
func (r *Reader) Buffered() int { return r.r.Buffered() - r.skip }

// discard releases the last frame's bytes in the buffer.
func (r *Reader) discard() {
	r.r.Discard(r.skip)
	r.skip = 0
}

// length reads the length before a frame and checks it against the limit.
func (r *Reader) length() (int, error) {
	var n uint64
	for shift := 0; ; shift += 7 {
		c, err := r.r.ReadByte()
		switch {
		case err != nil && shift == 0:
			return 0, err
		case err != nil:
			return 0, unexpectedEOF(err)
		case shift == 63 && c > 1:
			return 0, fmt.Errorf("%w: its length is beyond 64 bits", ErrBadFrame)
		case shift > 0 && c == 0:
			return 0, fmt.Errorf("%w: its length is not in the shortest form", ErrBadFrame)
		}
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			break
		}
	}
	if n == 0 {
		return 0, fmt.Errorf("%w: it is empty", ErrBadFrame)
	}
	if n > uint64(max(r.max, 0)) {
		return 0, fmt.Errorf("%w: %d bytes, the limit is %d", ErrFrameTooLarge, n, r.max)
	}
	return int(n), nil
}

// body reads n bytes. A frame that does not fit into the buffer is allocated as it arrives,
// so that a length alone costs no memory.
func (r *Reader) body(n int) ([]byte, error) {
	if n <= readBuffer {
		b, err := r.r.Peek(n)
		if err != nil {
			return nil, err
		}
		r.skip = n
		return b, nil
	}
	r.big = r.big[:0]
	for len(r.big) < n {
		at := len(r.big)
		step := min(n-at, max(at, readBuffer))
		r.big = slices.Grow(r.big, step)[:at+step]
		if _, err := io.ReadFull(r.r, r.big[at:]); err != nil {
			return nil, err
		}
	}
	return r.big, nil
}

// unexpectedEOF converts the end of the stream inside a frame.
func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// AppendFrame appends m as a frame to dst. It returns dst and ErrFrameTooLarge, ErrBadFrame
// (m is empty) or an error of [Encode] for what a receiver would reject.
func AppendFrame(dst []byte, m *Message) ([]byte, error) {
	size := pb.Size(m)
	if size == 0 {
		return dst, fmt.Errorf("%w: the message is empty", ErrBadFrame)
	}
	if size > MaxFrame {
		return dst, fmt.Errorf("%w: %d bytes, the limit is %d", ErrFrameTooLarge, size, MaxFrame)
	}
	out := slices.Grow(dst, uvarintSize(size)+size)
	out, err := appendChecked(binary.AppendUvarint(out, uint64(size)), m, pb.MarshalOptions{UseCachedSize: true})
	if err != nil {
		return dst, err
	}
	return out, nil
}

// uvarintSize returns the length of n as an unsigned varint.
func uvarintSize(n int) int { return (bits.Len(uint(n|1)) + 6) / 7 }
