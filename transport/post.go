package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// ErrPostFull is returned for a message that does not fit in the write queue: the path is
// too slow.
var ErrPostFull = errors.New("transport: the write queue is full")

// maxPosted is how many bytes may be queued on a link when another message is posted.
const maxPosted = 4 << 20

// Bounds of what is posted.
const (
	smallPost = 4 << 10         // of a message that shares a stream with those that are urgent
	aroundIt  = 1 << 10         // more than a message has around its content
	postDelay = time.Second     // a link is behind if a message waits for longer
	postRest  = 2 * time.Second // it stays so after one has waited that long: the answer takes a while
)

// Post queues ownership messages on the current link to p and does not wait. They are not
// numbered and never acknowledged: the sender repeats what is lost or does not fit. Large
// ones stay in order, and so do the others, which do not wait for them where the peer serves
// lease streams. The error identifies the first message that was not queued; without a link
// it is [ErrNotConnected].
func (t *Transport) Post(p proto.PeerID, msgs ...*proto.Message) error {
	l := t.linkTo(p)
	if l == nil {
		return ErrNotConnected
	}
	for _, m := range msgs {
		at := placeOf(m.GetType())
		if !at.posted {
			return fmt.Errorf("%w: a message of type %s cannot be posted", ErrProtocol, m.GetType())
		}
		if err := l.laneFor(at.urgent || len(m.GetPayload()) <= smallPost).post(m); err != nil {
			return fmt.Errorf("post %s to %s: %w", m.GetType(), p.Short(), err)
		}
	}
	return nil
}

// Behind reports whether messages with so many bytes of content wait for long on the link to p, and another
// one, or a copy of one, would only wait behind them.
func (t *Transport) Behind(p proto.PeerID, bytes int) bool {
	l := t.linkTo(p)
	return l != nil && l.laneFor(bytes <= smallPost-aroundIt).behind()
}

// linkTo returns the current link to p; nil: none.
func (t *Transport) linkTo(p proto.PeerID) *Link {
	t.peers.mu.Lock()
	defer t.peers.mu.Unlock()
	if n := t.peers.byID[p]; n != nil {
		return n.link
	}
	return nil
}

// laneFor returns the stream of small or of large messages.
func (l *Link) laneFor(small bool) *sender {
	if small && l.leases != nil {
		return l.leases
	}
	return &l.sender
}

// post queues m unless the write queue is full.
func (s *sender) post(m *proto.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.down()
	case s.closing:
		return fmt.Errorf("%w: %w", ErrLinkDown, errMoved)
	case len(s.out) >= maxPosted:
		return ErrPostFull
	}
	size, err := s.appendFrame(m)
	if err == nil {
		s.posts.since, s.posts.bytes = cmp.Or(s.posts.since, max(s.conn.clock.Mono(), 1)), s.posts.bytes+size
	}
	return err
}

// behind reports whether posted messages wait for long.
func (s *sender) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, since := s.conn.clock.Mono(), cmp.Or(s.writing.since, s.posts.since)
	return since > 0 && now-since > postDelay || now < s.rests
}

// wrotePosts notes that what was being written is.
func (s *sender) wrotePosts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.conn.clock.Mono(); s.writing.since > 0 && now-s.writing.since > postDelay {
		s.rests = now + postRest
	}
	s.writing = posts{}
}

// runLeases writes the lease stream of the link until it closes or ctx is done, and returns
// why. Nothing is received on it.
func (l *Link) runLeases(ctx context.Context) error {
	s := l.leases
	defer s.stream.unblock(ctx)()
	var wg sync.WaitGroup
	ended := make(chan struct{})
	var err error
	wg.Go(func() {
		err = s.writeAll(ended, s.stream.write, func() {})
		s.stream.Reset()
	})
	received := s.stream.next(new(proto.Message))
	close(ended)
	s.stream.Reset()
	wg.Wait()
	err = cmp.Or(err, received, fmt.Errorf("%w: a message on its own lease stream", ErrProtocol))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(err)
	return err
}
