package transport

import (
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// ErrPostFull is returned for a message that does not fit in the write queue: the path is
// too slow.
var ErrPostFull = errors.New("transport: the write queue is full")

// maxPosted is how many bytes may be queued on a link when another message is posted.
const maxPosted = 4 << 20

// Post queues ownership messages on the current link to p, in order, and does not wait.
// They are not numbered and never acknowledged: the sender repeats what is lost or does
// not fit. The error identifies the first message that was not queued; without a link it
// is [ErrNotConnected].
func (t *Transport) Post(p proto.PeerID, msgs ...*proto.Message) error {
	t.peers.mu.Lock()
	var l *Link
	if n := t.peers.byID[p]; n != nil {
		l = n.link
	}
	t.peers.mu.Unlock()
	if l == nil {
		return ErrNotConnected
	}
	for _, m := range msgs {
		if !placeOf(m.GetType()).posted {
			return fmt.Errorf("%w: a message of type %s cannot be posted", ErrProtocol, m.GetType())
		}
		if err := l.post(m); err != nil {
			return fmt.Errorf("post %s to %s: %w", m.GetType(), p.Short(), err)
		}
	}
	return nil
}

// post queues m unless the write queue is full.
func (l *Link) post(m *proto.Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.down()
	case l.closing:
		return fmt.Errorf("%w: %w", ErrLinkDown, errMoved)
	case len(l.out) >= maxPosted:
		return ErrPostFull
	}
	_, err := l.appendFrame(m)
	return err
}
