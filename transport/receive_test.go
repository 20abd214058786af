package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// An endedStream still returns what has arrived before it ended, and takes nothing more.
type endedStream struct {
	network.Stream
	data  io.Reader
	reset chan struct{}
	once  sync.Once
}

func (s *endedStream) Read(p []byte) (int, error) {
	if n, _ := s.data.Read(p); n > 0 {
		return n, nil
	}
	<-s.reset
	return 0, network.ErrReset
}

func (*endedStream) SetReadDeadline(time.Time) error { return nil }

func (*endedStream) SetWriteDeadline(time.Time) error { return nil }

func (*endedStream) Write([]byte) (int, error) { return 0, network.ErrReset }

func (s *endedStream) Reset() error {
	s.once.Do(func() { close(s.reset) })
	return nil
}

// receiveFrames receives these frames from a stream that has ended when the first group has been
// made durable, and returns why receiving stopped.
func receiveFrames(t *testing.T, frames []byte) error {
	t.Helper()
	met, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	recv, durable := newTestReceiver(), make(chan struct{})
	recv.receive = func(context.Context, proto.PeerID, []*proto.Message) (Answer, error) {
		<-durable
		return Answer{}, nil
	}
	raw := &endedStream{data: bytes.NewReader(frames), reset: make(chan struct{})}
	ls := &links{recv: recv, met: met}
	done := make(chan error)
	go func() {
		done <- ls.receiveFrames(t.Context(), newStream(raw, raw, &conn{clock: clock.Runtime()}, proto.MaxFrame, Timing{}), place.onTaskStream)
	}()
	synctest.Wait() // everything was read, or there is no room for it
	close(durable)
	return <-done
}

// A stream ends although the frames that were read ahead of its receiver fill the buffer: the
// next one of the peer waits for that.
func TestStreamEndsBehindAFullBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := frame(t, proto.TypeData, []byte("x"))
		if err := receiveFrames(t, bytes.Repeat(one, 3*proto.MaxGroup)); !errors.Is(err, network.ErrReset) {
			t.Errorf("%v, want %v", err, network.ErrReset)
		}
	})
}

// An invalid frame that was read counts, although the stream has ended before what came before
// the frame was acknowledged.
func TestBadFrameOfAnEndedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := receiveFrames(t, append(frame(t, proto.TypeData, []byte("x")), 0)); !isOffense(err) {
			t.Errorf("%v, want an offense", err)
		}
	})
}
