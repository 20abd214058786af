package transport

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/balefire/balefire/proto"
)

// bodyWindow is how many bytes of a streamed body may be unacknowledged, besides one
// chunk.
const bodyWindow = 4 << 20

// A CodeError is a refusal of a streamed body. A [BodySink] returns one to state a
// reason.
type CodeError struct {
	Code   proto.Code
	Detail string
	State  proto.TaskState // with STALE: the task's state at its home; 0: unknown there
}

func (e *CodeError) Error() string {
	return fmt.Sprintf("transport: the body was refused: %s: %s", e.Code, e.Detail)
}

// Refusal returns the refusal in the form used in an Ack.
func (e *CodeError) Refusal() *proto.Refusal {
	return &proto.Refusal{Code: e.Code, Detail: e.Detail, State: e.State}
}

// An outgoing is a streamed body being sent to a peer.
type outgoing struct {
	stream *stream
	body   io.ReaderAt
	size   int64
	piece  int64 // bytes of a chunk
	flow   *flow

	mu    sync.Mutex
	acked int64 // durable at the receiver
	err   error
	wake  chan struct{}
}

// SendBody streams the sealed body of an offer to p and returns nil once it is durable
// there. It resumes where an earlier attempt stopped. A refusal is a CodeError; any other
// error means: try again. At most two bodies are sent to a peer at once, others wait; no
// more than a chunk is in memory.
func (t *Transport) SendBody(ctx context.Context, p proto.PeerID, offer *proto.Offer, body io.ReaderAt, size int64) error {
	err := t.sendBody(ctx, p, offer, body, size)
	if err != nil {
		return fmt.Errorf("send body to %s: %w", p.Short(), err)
	}
	return nil
}

func (t *Transport) sendBody(ctx context.Context, p proto.PeerID, offer *proto.Offer, body io.ReaderAt, size int64) error {
	h, announced, piece, err := bodyOf(offer)
	if err != nil || announced != size {
		return fmt.Errorf("%d bytes, its envelope says %d: %w", size, announced, err)
	}
	c := t.best(p)
	if c == nil {
		return ErrNotConnected
	}
	t.mu.Lock()
	slots := t.peer(p).bodies
	t.mu.Unlock()
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.gone:
		return ErrNotConnected
	}
	s, err := openStream(ctx, c, streamChunk, proto.MaxControl, t.cfg.Timing)
	if err != nil {
		return err
	}
	defer s.unblock(ctx)()
	s.idleTimeout = t.cfg.Timing.Ack
	offset, err := s.offer(offer, size)
	if err == nil && offset < size {
		f := t.reach.flows.begin(h, p, true, size, offset)
		defer f.end()
		o := &outgoing{stream: s, body: body, size: size, piece: piece, flow: f, acked: offset, wake: make(chan struct{}, 1)}
		err = o.run(ctx)
	}
	if err != nil {
		s.Reset()
		return err
	}
	return s.Close()
}

// bodyOf returns the header of an offered body, its sealed size and its chunk size.
func bodyOf(o *proto.Offer) (h proto.Header, size, piece int64, err error) {
	h, err = proto.ParseHeader(o.GetEnvelope().GetHeader())
	if err != nil {
		return h, 0, 0, err
	}
	total, chunk, ok := h.Stream()
	if !ok {
		return h, 0, 0, errors.New("the envelope has no streamed body")
	}
	return h, int64(total), int64(chunk), nil
}

// offer sends the envelope and returns the offset to send from.
func (s *stream) offer(offer *proto.Offer, size int64) (offset int64, err error) {
	b, err := proto.Encode(nil, offer)
	if err != nil {
		return 0, err
	}
	if err := s.send(&proto.Message{Type: proto.TypeOffer, Payload: b}); err != nil {
		return 0, err
	}
	if b, err = s.expect(proto.TypeOffered); err != nil {
		return 0, err
	}
	var r proto.OfferReply
	if err := proto.DecodeKnown(b, &r); err != nil {
		return 0, err
	}
	if r.GetCode() != proto.CodeOK {
		return 0, &CodeError{r.GetCode(), r.GetDetail(), r.GetState()}
	}
	if r.GetOffset() > uint64(size) {
		return 0, fmt.Errorf("%w: asked to go on at byte %d of %d", ErrProtocol, r.GetOffset(), size)
	}
	return int64(r.GetOffset()), nil
}

// run sends chunks until all bytes are durable at the receiver.
func (o *outgoing) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		o.readAcks()
		cancel()
	})
	err := o.write(ctx)
	if err != nil && ctx.Err() == nil {
		o.stream.Reset() // readAcks would wait for an answer
	}
	wg.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.acked == o.size:
		return nil
	case o.err != nil && !errors.Is(o.err, io.EOF):
		return o.err
	}
	return fmt.Errorf("at byte %d of %d: %w", o.acked, o.size, errors.Join(err, o.err))
}

// write sends chunks as the window permits.
func (o *outgoing) write(ctx context.Context) error {
	buf := make([]byte, o.piece)
	for at := o.waitFor(ctx, 0); at < o.size; {
		if o.waitFor(ctx, at-bodyWindow) < at-bodyWindow {
			return context.Cause(ctx)
		}
		n := min(o.piece-at%o.piece, o.size-at)
		if _, err := o.body.ReadAt(buf[:n], at); err != nil && !(err == io.EOF && at+n == o.size) {
			return fmt.Errorf("read the body: %w", err)
		}
		sum := sha256.Sum256(buf[:n])
		b, err := proto.Encode(nil, &proto.Chunk{Offset: uint64(at), Data: buf[:n], Sha256: sum[:]})
		if err != nil {
			return err
		}
		if err := o.stream.send(&proto.Message{Type: proto.TypeChunk, Payload: b}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		at += n
	}
	return nil
}

// waitFor returns how much is acknowledged: at least least bytes, unless ctx is done.
func (o *outgoing) waitFor(ctx context.Context, least int64) int64 {
	for {
		o.mu.Lock()
		acked := o.acked
		o.mu.Unlock()
		if acked >= least || ctx.Err() != nil {
			return acked
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
		}
	}
}

// readAcks reads acknowledgments until the last one or an error.
func (o *outgoing) readAcks() {
	o.stream.idleTimeout = o.stream.timing.Frame
	c := o.stream.conn
	mark := c.clock.Mono()
	c.pendingAcks.addBody(mark, 1)
	defer func() { c.pendingAcks.addBody(c.clock.Mono(), -1) }()
	for {
		offset, err := o.next()
		now := c.clock.Mono()
		o.mu.Lock()
		switch {
		case err != nil:
			o.err = err
		case offset < o.acked || offset > o.size:
			o.err = fmt.Errorf("%w: byte %d acknowledged after %d", ErrProtocol, offset, o.acked)
		default:
			c.meter.addBytes(int(offset-o.acked), now-mark)
			o.acked, mark = offset, now
			o.flow.advance(offset)
			c.pendingAcks.addBody(now, 0)
		}
		over := o.err != nil || o.acked == o.size
		o.mu.Unlock()
		notify(o.wake)
		if over {
			return
		}
	}
}

func (o *outgoing) next() (int64, error) {
	b, err := o.stream.expect(proto.TypeChunked)
	if err != nil {
		return 0, err
	}
	var r proto.ChunkReply
	if err := proto.DecodeKnown(b, &r); err != nil {
		return 0, err
	}
	if r.GetCode() != proto.CodeOK {
		return 0, &CodeError{Code: r.GetCode(), Detail: r.GetDetail()}
	}
	return int64(min(r.GetOffset(), 1<<62)), nil
}
