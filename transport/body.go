package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
)

// bodyWindow is how many chunks of a body may be unacknowledged, besides one.
const bodyWindow = 16

// A BodySource has the chunks of an object, each with its path to the root.
type BodySource interface {
	Chunk(i int, dst, path []byte) (chunk, way []byte, err error)
}

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

// bodyTransfers sends and receives streamed bodies.
type bodyTransfers struct {
	cfg   Config
	group *taskGroup
	peers *peerTable
	flows flows
}

// An outgoing is a body being sent to a peer.
type outgoing struct {
	stream *stream
	body   BodySource
	object bodies.Manifest
	have   []byte // the chunks that the receiver had, see bodies.Incoming.Have
	had    int    // how many they are
	flow   *flow
	sent   int64 // bytes, used by write and at the end

	mu    sync.Mutex
	freed int64 // of the bytes sent, those no longer counted as unacknowledged
	acked int   // chunks that are durable at the receiver
	err   error
	wake  chan struct{}
}

// SendBody sends p the chunks that it lacks of the object that is the body of an offer, and
// returns nil once all are durable there. A refusal is a CodeError; any other error means:
// try again. At most two bodies are sent to a peer at once, others wait; no more than a
// chunk is in memory.
func (t *Transport) SendBody(ctx context.Context, p proto.PeerID, offer *proto.Offer, body BodySource) error {
	err := t.bodies.send(ctx, p, offer, body)
	if err != nil {
		return fmt.Errorf("send body to %s: %w", p.Short(), err)
	}
	return nil
}

func (bt *bodyTransfers) send(ctx context.Context, p proto.PeerID, offer *proto.Offer, body BodySource) error {
	h, object, err := bodyOf(offer)
	if err != nil {
		return err
	}
	c := bt.peers.best(p)
	if c == nil {
		return ErrNotConnected
	}
	bt.peers.mu.Lock()
	slots := bt.peers.get(p).bodies
	bt.peers.mu.Unlock()
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.gone:
		return ErrNotConnected
	}
	s, err := openStream(ctx, c, streamChunk, proto.MaxFrame, bt.cfg.Timing)
	if err != nil {
		return err
	}
	defer s.unblock(ctx)()
	s.idleTimeout = bt.cfg.Timing.Ack
	have, err := s.offer(offer, &object)
	if err == nil && have != nil {
		had := countBits(have)
		f := bt.flows.begin(h, p, true, object.Size, sealedBytes(&object, had))
		defer f.end()
		o := &outgoing{stream: s, body: body, object: object, have: have, had: had, flow: f, acked: had, wake: make(chan struct{}, 1)}
		err = o.run(ctx)
	}
	if err != nil {
		s.Reset()
		return err
	}
	return s.Close()
}

// bodyOf returns the header and the manifest of an offer, which must belong together. The header
// of a mail is made of its letter.
func bodyOf(o *proto.Offer) (h proto.Header, object bodies.Manifest, err error) {
	if o.OfMail() {
		_, l, err := o.Mail()
		if err != nil {
			return h, object, err
		}
		object, err = objectOf(o, l.Object.Name)
		if plain, _ := proto.PlainSize(object.Size); err == nil && !l.Object.Packed && uint64(plain) != l.Object.Size {
			err = fmt.Errorf("%w: %d bytes, the letter says %d", bodies.ErrManifest, plain, l.Object.Size)
		}
		return l.BodyHeader(object.Size), object, err
	}
	h, err = proto.ParseHeader(o.GetEnvelope().GetHeader())
	if err != nil {
		return h, object, err
	}
	name, size, ok := h.Object()
	if !ok {
		return h, object, errors.New("the envelope has no streamed body")
	}
	object, err = objectOf(o, name)
	if err == nil && object.Size != size {
		err = fmt.Errorf("%w: %d bytes, the header says %d", bodies.ErrManifest, object.Size, size)
	}
	return h, object, err
}

// objectOf returns the manifest of an offer, which must have the name. Every node makes chunks of
// one size: of smaller ones an object could have very many.
func objectOf(o *proto.Offer, name bodies.Name) (bodies.Manifest, error) {
	m, err := bodies.CheckManifest(o.GetManifest(), name)
	if err == nil && m.Chunk != proto.ChunkSize {
		err = fmt.Errorf("%w: chunks of %d bytes", bodies.ErrManifest, m.Chunk)
	}
	return m, err
}

// sealedBytes returns about how many bytes n chunks have: the last one may be shorter.
func sealedBytes(m *bodies.Manifest, n int) int64 {
	return min(int64(n)*int64(m.ChunkSize(0)), m.Size)
}

func hasBit(b []byte, i int) bool { return b[i/8]>>(i%8)&1 == 1 }

func countBits(b []byte) (n int) {
	for _, c := range b {
		n += bits.OnesCount8(c)
	}
	return n
}

// checkHave checks which chunks the other side says it has: some are missing, and there is
// no bit behind the last chunk.
func checkHave(have []byte, chunks int) error {
	if len(have) != (chunks+7)/8 || chunks%8 != 0 && have[len(have)-1]>>(chunks%8) != 0 || countBits(have) == chunks {
		return fmt.Errorf("%w: %d bytes for %d chunks", ErrProtocol, len(have), chunks)
	}
	return nil
}

// offer sends the envelope and returns which chunks the receiver has; nil if it has all.
func (s *stream) offer(offer *proto.Offer, object *bodies.Manifest) (have []byte, err error) {
	b, err := proto.Encode(nil, offer)
	if err != nil {
		return nil, err
	}
	if err := s.send(&proto.Message{Type: proto.TypeOffer, Payload: b}); err != nil {
		return nil, err
	}
	if b, err = s.expect(proto.TypeOffered); err != nil {
		return nil, err
	}
	var r proto.OfferReply
	if err := proto.DecodeKnown(b, &r); err != nil {
		return nil, err
	}
	if r.GetCode() != proto.CodeOK {
		return nil, &CodeError{r.GetCode(), r.GetDetail(), r.GetState()}
	}
	if len(r.GetHave()) == 0 {
		return nil, nil
	}
	return r.GetHave(), checkHave(r.GetHave(), object.Chunks())
}

// run sends chunks until all are durable at the receiver.
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
	o.stream.conn.work.chunks.Add(o.freed - o.sent)
	switch {
	case o.acked == o.object.Chunks():
		return nil
	case o.err != nil && !errors.Is(o.err, io.EOF):
		return errors.Join(o.err, err)
	}
	return fmt.Errorf("with %d of %d chunks: %w", o.acked, o.object.Chunks(), errors.Join(err, o.err))
}

// write sends the missing chunks as the window permits.
func (o *outgoing) write(ctx context.Context) error {
	buf, path := make([]byte, o.object.ChunkSize(0)), []byte(nil)
	sent := o.had
	for i := range o.object.Chunks() {
		if hasBit(o.have, i) {
			continue
		}
		if !o.waitFor(ctx, sent-bodyWindow) {
			return context.Cause(ctx)
		}
		chunk, way, err := o.body.Chunk(i, buf, path[:0])
		if err != nil {
			return err
		}
		path = way
		b, err := proto.Encode(nil, &proto.Chunk{Index: uint32(i), Data: chunk, Path: way})
		if err != nil {
			return err
		}
		if err := o.stream.send(&proto.Message{Type: proto.TypeChunk, Payload: b}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		o.stream.conn.work.chunks.Add(int64(len(chunk)))
		o.sent += int64(len(chunk))
		sent++
	}
	return nil
}

// waitFor waits until least chunks are acknowledged, and reports whether they are.
func (o *outgoing) waitFor(ctx context.Context, least int) bool {
	for {
		o.mu.Lock()
		acked := o.acked
		o.mu.Unlock()
		if acked >= least || ctx.Err() != nil {
			return acked >= least
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
	c.pendingAcks.addSend(mark, 1)
	defer func() { c.pendingAcks.addSend(c.clock.Mono(), -1) }()
	for {
		n, err := o.next()
		now := c.clock.Mono()
		o.mu.Lock()
		switch {
		case err != nil:
			o.err = err
		case n < o.acked || n > o.object.Chunks():
			o.err = fmt.Errorf("%w: %d chunks acknowledged after %d", ErrProtocol, n, o.acked)
		default:
			at := sealedBytes(&o.object, n)
			acked := at - sealedBytes(&o.object, o.acked)
			c.addAcked(int(acked), now-mark, c.unacked() >= loadBytes)
			c.work.chunks.Add(-acked)
			o.freed += acked
			o.acked, mark = n, now
			o.flow.advance(at)
			c.pendingAcks.addSend(now, 0)
		}
		over := o.err != nil || o.acked == o.object.Chunks()
		o.mu.Unlock()
		notify(o.wake)
		if over {
			return
		}
	}
}

func (o *outgoing) next() (durable int, err error) {
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
	return int(r.GetDurable()), nil
}
