package transport

import (
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/network"
)

// A stuckStream gives no answer to a reset, as one of a path that is dead.
type stuckStream struct {
	network.Stream
	until chan struct{}
}

func (s stuckStream) Reset() error { <-s.until; return nil }

// Whoever has a link move, which the transport does with its books locked, does not
// wait for what ending the stream takes.
func TestALinkMovesWithoutWaitingForItsPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		raw := stuckStream{until: make(chan struct{})}
		l := newLink(&conn{}, newStream(raw, nil, nil, 1<<10, Timing{}), Config{})
		moved := make(chan struct{})
		go func() {
			l.move()
			close(moved)
		}()
		synctest.Wait()
		select {
		case <-moved:
		default:
			t.Error("it waits for the stream")
		}
		select {
		case <-l.Done():
		default:
			t.Error("the link goes on")
		}
		close(raw.until)
	})
}
