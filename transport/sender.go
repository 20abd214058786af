package transport

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// A sender is the sending side of a stream: the frames queued for its writer and the
// numbered ones in flight.
type sender struct {
	conn   *conn
	stream *stream

	mu      sync.Mutex
	win     *window
	out     []byte        // encoded frames queued for the writer
	posts   posts         // those in out
	writing posts         // those that are being written
	rests   time.Duration // by the monotonic clock: until then answers to posts may be on their way
	dirty   chan struct{} // out is not empty
	room    chan struct{} // the window opened, or the writer took out
	closing bool          // no more messages are accepted
	done    chan struct{}
	err     error // set before done is closed
}

// posts are posted messages that are not written yet.
type posts struct {
	since time.Duration // when the first one was queued, by the monotonic clock; 0: there is none
	bytes int
}

func newSender(c *conn, s *stream) sender {
	return sender{
		conn: c, stream: s, win: newWindow(),
		dirty: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// Done is closed when the stream has closed.
func (s *sender) Done() <-chan struct{} { return s.done }

// closed reports whether the stream has closed.
func (s *sender) closed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// down is the error of a stream that has closed.
func (s *sender) down() error { return fmt.Errorf("%w: %w", ErrLinkDown, s.err) }

// waitOpen returns when the window has room and the writer is not far behind.
func (s *sender) waitOpen(ctx context.Context) error {
	for {
		s.mu.Lock()
		ok, ended := !s.closing && s.win.open() && len(s.out) < minBytes, s.err != nil
		s.mu.Unlock()
		if ended {
			return s.down()
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.done:
		case <-s.room:
		}
	}
}

// appendFrame queues m for the writer and returns its size. The caller holds mu.
func (s *sender) appendFrame(m *proto.Message) (size int, err error) {
	before := len(s.out)
	out, err := proto.AppendFrame(s.out, m)
	if err != nil {
		return 0, err
	}
	s.out = out
	notify(s.dirty)
	return len(out) - before, nil
}

// writeAll writes what is queued, as much at once as possible, until stop is closed. It
// calls wrote after each write.
func (s *sender) writeAll(stop <-chan struct{}, write func([]byte) error, wrote func()) error {
	var spare []byte
	for {
		select {
		case <-stop:
			return nil
		case <-s.dirty:
		}
		s.mu.Lock()
		buf := s.out
		s.out, s.writing, s.posts = spare[:0], s.posts, posts{}
		s.mu.Unlock()
		notify(s.room)
		if err := write(buf); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		s.wrotePosts()
		wrote()
		if spare = buf; cap(buf) > minBytes {
			spare = nil
		}
	}
}

// endLocked records why the stream closes; the first reason counts. The caller holds mu.
func (s *sender) endLocked(err error) {
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}
