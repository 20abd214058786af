package transport

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/network"

	"github.com/balefire/balefire/clock"
)

// A stuckStream blocks in Reset, like a stream on a dead path.
type stuckStream struct {
	network.Stream
	until chan struct{}
}

func (s stuckStream) Reset() error { <-s.until; return nil }

// Moving a link, which the transport does while holding its lock, does not wait for the
// stream to close.
func TestLinkMovesWithoutWaitingForDeadPath(t *testing.T) {
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
			t.Error("the link stays open")
		}
		close(raw.until)
	})
}

// The next task stream of a peer does not wait for the previous one to close.
func TestNewTaskStreamDoesNotWaitForDeadPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &links{group: newTaskGroup(), peers: newPeerTable(clock.System())}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go tr.group.run(ctx, func() {})
		raw := stuckStream{until: make(chan struct{})}
		first, next := newStream(raw, nil, &conn{}, 1<<10, Timing{}), newStream(raw, nil, &conn{}, 1<<10, Timing{})
		acquire := func(s *stream) (func(), error) {
			return tr.acquireIntake(ctx, s, tasksOf, func() { tr.group.start(func(context.Context) { s.Reset() }) })
		}
		release, err := acquire(first)
		if err != nil {
			t.Fatal(err)
		}
		turned := make(chan struct{})
		go func() {
			defer close(turned)
			if _, err := acquire(next); err != nil {
				t.Error(err)
			}
		}()
		came := func() bool {
			synctest.Wait()
			select {
			case <-turned:
				return true
			default:
				return false
			}
		}
		if came() {
			t.Error("two are received at once")
		}
		if release(); !came() {
			t.Error("it waits for the stream")
		}
		close(raw.until)
		<-turned
	})
}
