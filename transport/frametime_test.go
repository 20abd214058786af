package transport

import (
	"bytes"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A slowReader returns some bytes at a time, each after a moment, until its deadline.
type slowReader struct {
	network.Stream

	data     []byte
	size     int
	each     time.Duration
	deadline time.Time
}

func (r *slowReader) SetReadDeadline(t time.Time) error { r.deadline = t; return nil }

func (r *slowReader) Read(p []byte) (int, error) {
	time.Sleep(r.each)
	if !r.deadline.IsZero() && time.Now().After(r.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, r.data[:min(r.size, len(r.data))])
	r.data = r.data[n:]
	return n, nil
}

// The time of a frame begins when its reading begins, also if its first bytes came with the end
// of the one before it: a stream that never runs dry is not slow.
func TestFramesThatComeWithoutAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const frames = 100
		one, err := proto.AppendFrame(nil, &proto.Message{Type: proto.TypeChunk, Payload: make([]byte, 1000)})
		if err != nil {
			t.Fatal(err)
		}
		r := &slowReader{data: append([]byte{}, bytes.Repeat(one, frames)...), size: len(one) - 10, each: time.Second}
		s := newStream(r, r, &conn{clock: clock.Runtime()}, 1<<20, Timing{Frame: 5 * time.Second})
		for n := range frames {
			var m proto.Message
			if err := s.next(&m); err != nil {
				t.Fatalf("frame %d: %v", n, err)
			}
		}
	})
}

// What is sent on a link that has ended is not counted to be on its way.
func TestEndedLinkTakesNoFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &conn{clock: clock.Runtime()}
		l := newLink(c, newStream(&slowReader{}, nil, c, 1<<10, Timing{}), Config{Clock: clock.Runtime()})
		l.end(io.ErrUnexpectedEOF)
		if err := l.queue(&proto.Message{Type: proto.TypeData}); err == nil || c.inflight.Load() != 0 || c.work.frames.Load() != 0 {
			t.Errorf("%v, %d frames on their way", err, c.inflight.Load())
		}
	})
}
