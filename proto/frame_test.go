package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// allocated returns the number of bytes that f allocated. Tests that use it must not run in
// parallel.
func allocated(f func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	f()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}

// bounded fails t if f allocates more than the limit of every decoder: 4 MiB
// plus eight times its input.
func bounded(t *testing.T, input int, f func()) {
	t.Helper()
	if n := allocated(f); n > uint64(4<<20+8*input) {
		t.Errorf("%d bytes of input allocated %d bytes", input, n)
	}
}

// raw returns a frame around b.
func raw(b []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(b))), b...)
}

// ping returns a message identified by i.
func ping(i int) *Message {
	return &Message{Id: fmt.Sprint("m", i), Type: TypePing, Timestamp: int64(i), Payload: []byte{byte(i), 1, 2}}
}

// frames returns n frames, the offset of each, and the end of the last.
func frames(t testing.TB, n int) (b []byte, borders []int) {
	t.Helper()
	for i := range n {
		var err error
		borders = append(borders, len(b))
		if b, err = AppendFrame(b, ping(i)); err != nil {
			t.Fatal(err)
		}
	}
	return b, append(borders, len(b))
}

// drain reads messages until an error.
func drain(r *Reader) (got []*Message, err error) {
	for {
		m := new(Message)
		if err = r.Next(m); err != nil {
			return got, err
		}
		got = append(got, m)
	}
}

// Lengths at and around every limit, in the shortest and in longer forms (bad
// input: frame layer; S54).
func TestLengths(t *testing.T) {
	const limit = 1000
	type row struct {
		name   string
		length []byte
		want   error // nil: the frame is accepted
	}
	var rows []row
	add := func(n uint64, want error) {
		rows = append(rows, row{fmt.Sprintf("length %d", n), binary.AppendUvarint(nil, n), want})
	}
	add(0, ErrBadFrame)
	for _, n := range []uint64{1, 2, 127, 128, 129, 255, 256, limit - 1, limit} {
		add(n, nil)
	}
	for shift := 10; shift < 64; shift++ {
		add(1<<shift-1+limit, ErrFrameTooLarge)
		add(1<<shift+limit, ErrFrameTooLarge)
	}
	add(limit+1, ErrFrameTooLarge)
	add(math.MaxUint64, ErrFrameTooLarge)
	for _, n := range []uint64{0, 1, 127, 128, limit, limit + 1} {
		for zeros := 1; zeros <= 4; zeros++ {
			b := binary.AppendUvarint(nil, n)
			b[len(b)-1] |= 0x80
			for range zeros - 1 {
				b = append(b, 0x80)
			}
			rows = append(rows, row{fmt.Sprintf("length %d with %d bytes too many", n, zeros), append(b, 0), ErrBadFrame})
		}
	}
	for _, last := range []byte{2, 3, 0x7f, 0x80, 0x81, 0xff} {
		b := append(bytes.Repeat([]byte{0xff}, 9), last)
		rows = append(rows, row{fmt.Sprintf("ten bytes, the last %#x", last), b, ErrBadFrame})
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			in := append(slices.Clone(tt.length), make([]byte, limit+1)...)
			r := NewReader(bytes.NewReader(in), limit)
			b, err := r.NextRaw()
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if n, _ := binary.Uvarint(tt.length); tt.want == nil && len(b) != int(n) {
				t.Fatalf("%d bytes, want %d", len(b), n)
			}
			if _, again := r.NextRaw(); tt.want != nil && again != err {
				t.Errorf("the next call returns %v, want %v again", again, err)
			}
		})
	}
}

// The stream is cut at every byte: io.EOF at a frame boundary, io.ErrUnexpectedEOF inside a
// frame, and the frames before the cut are read (bad input: half close).
func TestCutAtEveryByte(t *testing.T) {
	b, borders := frames(t, 12)
	for cut := range len(b) + 1 {
		got, err := drain(NewReader(bytes.NewReader(b[:cut]), MaxFrame))
		want := io.ErrUnexpectedEOF
		if slices.Contains(borders, cut) {
			want = io.EOF
		}
		whole := 0
		for whole+1 < len(borders) && borders[whole+1] <= cut {
			whole++
		}
		if err != want || len(got) != whole {
			t.Fatalf("cut at %d: %d messages and %v, want %d and %v", cut, len(got), err, whole, want)
		}
	}
}

// The stream arrives in two pieces, split at every byte, and byte by byte: the result
// is the same.
func TestSplitAtEveryByte(t *testing.T) {
	b, _ := frames(t, 12)
	check := func(name string, in io.Reader) {
		t.Helper()
		got, err := drain(NewReader(in, MaxFrame))
		if err != io.EOF || len(got) != 12 {
			t.Fatalf("%s: %d messages, %v", name, len(got), err)
		}
		for i, m := range got {
			if !pb.Equal(m, ping(i)) {
				t.Fatalf("%s: message %d is %v", name, i, m)
			}
		}
	}
	for cut := range len(b) + 1 {
		check(fmt.Sprint("split at ", cut), io.MultiReader(bytes.NewReader(b[:cut]), bytes.NewReader(b[cut:])))
	}
	check("byte by byte", iotest.OneByteReader(bytes.NewReader(b)))
	check("halves", iotest.HalfReader(bytes.NewReader(b)))
	check("data with its end", iotest.DataErrReader(bytes.NewReader(b)))
}

// Frames around the size of the buffer and far above it are read correctly, in
// any order of sizes.
func TestSizesAroundTheBuffer(t *testing.T) {
	sizes := []int{1, readBuffer - 4, readBuffer - 1, readBuffer, readBuffer + 1, 7, 2*readBuffer + 1, MaxFrame, 1, MaxFrame - 1}
	var in []byte
	for i, n := range sizes {
		in = append(in, raw(bytes.Repeat([]byte{byte(i + 1)}, n))...)
	}
	for _, src := range []io.Reader{bytes.NewReader(in), iotest.HalfReader(bytes.NewReader(in))} {
		r := NewReader(src, MaxFrame)
		for i, n := range sizes {
			b, err := r.NextRaw()
			if err != nil || len(b) != n || bytes.Count(b, []byte{byte(i + 1)}) != n {
				t.Fatalf("frame %d: %d bytes, %v", i, len(b), err)
			}
		}
		if _, err := r.NextRaw(); err != io.EOF {
			t.Fatal(err)
		}
	}
}

// A length alone allocates no memory: a peer that announces a large frame and sends little
// costs only the bytes sent and one buffer (S54, I15).
func TestLengthAloneCostsNoMemory(t *testing.T) {
	in := binary.AppendUvarint(nil, 1<<30)
	in = append(in, make([]byte, 100)...)
	r := NewReader(bytes.NewReader(in), math.MaxInt)
	n := allocated(func() {
		if _, err := r.NextRaw(); err != io.ErrUnexpectedEOF {
			t.Errorf("%v, want an unexpected EOF", err)
		}
	})
	if n > 4*readBuffer {
		t.Errorf("allocated %d bytes", n)
	}
}

// A reader waits for a peer that sends a byte a second, and a deadline of the stream
// is returned unchanged (bad input: slow-loris).
func TestSlowPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := frames(t, 1)
		pr, pw := io.Pipe()
		go func() {
			for i := range b {
				time.Sleep(time.Second)
				pw.Write(b[i : i+1])
			}
			pw.CloseWithError(os.ErrDeadlineExceeded)
		}()
		r := NewReader(pr, MaxFrame)
		var m Message
		if err := r.Next(&m); err != nil || !pb.Equal(&m, ping(0)) {
			t.Fatal(err)
		}
		if err := r.Next(&m); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v, want the deadline", err)
		}
	})
}

// An error of the stream inside a frame is sticky: the next byte is not a frame boundary.
func TestErrorStays(t *testing.T) {
	b, borders := frames(t, 2)
	boom := errors.New("boom")
	for cut := 1; cut < borders[1]; cut++ {
		r := NewReader(io.MultiReader(bytes.NewReader(b[:cut]), iotest.ErrReader(boom), bytes.NewReader(b)), MaxFrame)
		for range 3 {
			if _, err := r.NextRaw(); err != boom {
				t.Fatalf("cut at %d: %v, want boom", cut, err)
			}
		}
	}
}

// A frame that is not a message is refused, and the stream continues after it.
func TestBadMessageDoesNotLoseTheStream(t *testing.T) {
	b := raw([]byte{0xff})
	b, err := AppendFrame(b, ping(1))
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(b), MaxFrame)
	var m Message
	if err := r.Next(&m); !errors.Is(err, ErrMalformed) {
		t.Errorf("%v, want %v", err, ErrMalformed)
	}
	if err := r.Next(&m); err != nil || !pb.Equal(&m, ping(1)) {
		t.Errorf("%v: %v", &m, err)
	}
}

// Streams that are read alternately do not affect each other, and neither do the
// bytes of a frame and the message decoded from them.
func TestInterleavedStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := new(bytes.Buffer), new(bytes.Buffer)
		ra, rb := NewReader(a, MaxFrame), NewReader(b, MaxFrame)
		na, nb := 0, 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			w, r, n := a, ra, &na
			if rapid.Bool().Draw(t, "second") {
				w, r, n = b, rb, &nb
				*n += 1000
			}
			f, err := AppendFrame(nil, ping(*n))
			if err != nil {
				t.Fatal(err)
			}
			w.Write(f)
			var m Message
			if err := r.Next(&m); err != nil || !pb.Equal(&m, ping(*n)) {
				t.Fatalf("%v: %v", &m, err)
			}
			*n++
		}
	})
}

// Buffered counts the bytes available after the returned frame.
func TestBuffered(t *testing.T) {
	b, borders := frames(t, 3)
	r := NewReader(bytes.NewReader(b), MaxFrame)
	if r.Buffered() != 0 {
		t.Errorf("%d bytes before the first read", r.Buffered())
	}
	for i := range 3 {
		if _, err := r.NextRaw(); err != nil {
			t.Fatal(err)
		}
		if got, want := r.Buffered(), len(b)-borders[i+1]; got != want {
			t.Errorf("%d bytes after frame %d, want %d", got, i, want)
		}
	}
}

// AppendFrame refuses an unencodable message, and returns the buffer unchanged.
func TestAppendFrameRefuses(t *testing.T) {
	tests := []struct {
		name string
		m    *Message
		want error
	}{
		{"nothing", &Message{}, ErrBadFrame},
		{"above the largest frame", &Message{Payload: make([]byte, MaxFrame)}, ErrFrameTooLarge},
		{"far above", &Message{Payload: make([]byte, 8*MaxFrame)}, ErrFrameTooLarge},
		{"a long signature", &Message{Signature: make([]byte, 65)}, ErrTooLong},
		{"text that is not UTF-8", &Message{Id: "\xff"}, ErrMalformed},
		{"seventeen hints", &Message{Metadata: hints(17)}, ErrTooMany},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := AppendFrame([]byte("kept"), tt.m)
			if !errors.Is(err, tt.want) || string(out) != "kept" {
				t.Errorf("%q, %v, want %v", out, err, tt.want)
			}
		})
	}
	full := &Message{Payload: make([]byte, MaxFrame-4)}
	f, err := AppendFrame(nil, full)
	if err != nil || len(f) != MaxFrame+3 {
		t.Fatalf("the largest frame: %d bytes, %v", len(f), err)
	}
	var m Message
	if err := NewReader(bytes.NewReader(f), MaxFrame).Next(&m); err != nil || !pb.Equal(&m, full) {
		t.Error(err)
	}
}

func hints(n int) map[string]string {
	m := make(map[string]string)
	for i := range n {
		m[fmt.Sprint(i)] = "v"
	}
	return m
}
