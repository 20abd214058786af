package transport

import (
	"context"
	"sync"

	"github.com/balefire/balefire/proto"
)

// maxGroupBytes bounds what is buffered for one peer's next group, besides one frame.
const maxGroupBytes = 4 << 20

// A groupBuffer collects a peer's frames while the previous group is being made durable:
// one reader puts, one worker takes everything.
type groupBuffer struct {
	mu    sync.Mutex
	msgs  []bufferedFrame
	bytes int
	err   error         // the reader's; set before ready is signaled
	ready chan struct{} // frames are buffered, or the reader has finished
	room  chan struct{} // there is room again
}

type bufferedFrame struct {
	msg   *proto.Message
	bytes int
}

func newGroupBuffer() *groupBuffer {
	return &groupBuffer{ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put adds m, and blocks while a full group is buffered.
func (q *groupBuffer) put(ctx context.Context, m *proto.Message, bytes int) error {
	for {
		q.mu.Lock()
		if len(q.msgs) < proto.MaxGroup && q.bytes < maxGroupBytes {
			q.msgs = append(q.msgs, bufferedFrame{m, bytes})
			q.bytes += bytes
			q.mu.Unlock()
			notify(q.ready)
			return nil
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-q.room:
		}
	}
}

// close records that nothing more will be put, and why.
func (q *groupBuffer) close(err error) {
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	notify(q.ready)
}

// take waits for frames and appends all buffered ones to dst. After close it returns what
// is left, then the reader's error.
func (q *groupBuffer) take(ctx context.Context, dst []*proto.Message) ([]*proto.Message, error) {
	for {
		q.mu.Lock()
		msgs, err := q.msgs, q.err
		for i, m := range msgs {
			dst = append(dst, m.msg)
			msgs[i].msg = nil
		}
		q.msgs, q.bytes = msgs[:0], 0
		q.mu.Unlock()
		if len(dst) > 0 {
			notify(q.room)
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
		select {
		case <-ctx.Done():
			return dst, context.Cause(ctx)
		case <-q.ready:
		}
	}
}
