package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
)

// Bodies receives streamed bodies.
type Bodies interface {
	// Offer decides about a body given its envelope and the manifest that its header
	// names. It returns the sink for the chunks that are missing in the reply; nil if the
	// reply has a code or states that the body is complete.
	Offer(ctx context.Context, from proto.PeerID, o *proto.Offer, object *bodies.Manifest) (BodySink, *proto.OfferReply)
}

// A BodySink receives the chunks of one object. Its methods are called by one goroutine.
type BodySink interface {
	// Put checks a chunk and adds it.
	Put(i int, chunk, path []byte) error
	// Sync makes what was added durable.
	Sync() error
	// End is the last call. whole: every chunk was added and synced, and the body is
	// complete. Otherwise what is durable is kept for the next attempt.
	End(whole bool) error
}

// Chunks are made durable, and acknowledged, after this many or this much time, so
// that a slow link does not lose a day's work.
const (
	syncChunks = 4
	syncEvery  = 2 * time.Second
)

// An incoming is a streamed body being received.
type incoming struct {
	stream  *stream
	sink    BodySink
	release func() // releases the peer's slot
	flow    *flow
	object  *bodies.Manifest
	have    []byte // chunks that were added
	at      int    // how many they are
	synced  int    // of them, durable
	last    time.Duration
}

// serve receives one streamed body.
func (bt *bodyTransfers) serve(ctx context.Context, s *stream) error {
	s.idleTimeout = writeTimeout
	b, err := s.expect(proto.TypeOffer)
	if err != nil {
		return err
	}
	offer := new(proto.Offer)
	if err := proto.DecodeKnown(b, offer); err != nil {
		return err
	}
	h, object, err := bodyOf(offer)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrProtocol, err), s.sendOfferReply(&proto.OfferReply{Code: proto.CodeBadForm, Detail: proto.Clip(err.Error(), maxReason)}))
	}
	bt.endPrevious(ctx, s, object.Name())
	release, ok := bt.takeBody(s, object.Name())
	if !ok {
		return s.refuse(&proto.OfferReply{Code: proto.CodeBusy, Detail: "two bodies are already being received"})
	}
	defer release()
	sink, reply := bt.cfg.Bodies.Offer(ctx, s.conn.peer, offer, &object)
	if sink == nil || reply.GetCode() != proto.CodeOK {
		return s.refuse(reply)
	}
	s.idleTimeout = bt.cfg.Timing.Frame
	had := countBits(reply.GetHave())
	f := bt.flows.begin(h, s.conn.peer, false, object.Size, sealedBytes(&object, had))
	defer f.end()
	i := &incoming{stream: s, sink: sink, release: release, flow: f, object: &object, have: slices.Clone(reply.GetHave()), at: had, synced: had, last: s.conn.clock.Mono()}
	if err := s.sendOfferReply(reply); err != nil {
		return errors.Join(err, sink.End(false))
	}
	return i.run()
}

// A bodyStream is a stream on which a body comes, or is offered.
type bodyStream struct {
	stream *stream
	name   bodies.Name
	ended  chan struct{} // closed when the next one may begin
}

// takeBody counts a body that comes on s until it is released, at most maxBodies of a peer at
// once.
func (bt *bodyTransfers) takeBody(s *stream, name bodies.Name) (release func(), ok bool) {
	bt.peers.mu.Lock()
	defer bt.peers.mu.Unlock()
	n := bt.peers.get(s.conn.peer)
	if len(n.receiving) >= maxBodies {
		return nil, false
	}
	ended := make(chan struct{})
	n.receiving = append(n.receiving, bodyStream{s, name, ended})
	return sync.OnceFunc(func() {
		bt.peers.mu.Lock()
		defer bt.peers.mu.Unlock()
		n.receiving = slices.DeleteFunc(n.receiving, func(b bodyStream) bool { return b.stream == s })
		close(ended)
	}), true
}

// endPrevious ends the stream on which the same body comes from the peer of s over another
// connection, and waits for that, for a limited time: the peer has given up the connection,
// which this node may not know for half a minute.
func (bt *bodyTransfers) endPrevious(ctx context.Context, s *stream, name bodies.Name) {
	bt.peers.mu.Lock()
	all := bt.peers.get(s.conn.peer).receiving
	i := slices.IndexFunc(all, func(b bodyStream) bool { return b.name == name && b.stream.conn != s.conn })
	if i < 0 {
		bt.peers.mu.Unlock()
		return
	}
	previous := all[i]
	bt.peers.mu.Unlock()
	bt.group.start(func(context.Context) { previous.stream.Reset() }) // it blocks on a dead relayed path
	ctx, cancel := context.WithTimeout(ctx, bt.cfg.Timing.Hello)
	defer cancel()
	select {
	case <-previous.ended:
	case <-s.conn.gone:
	case <-ctx.Done():
	}
}

func (s *stream) sendOfferReply(r *proto.OfferReply) error {
	r.Detail = proto.Clip(r.GetDetail(), maxReason)
	b, err := proto.Encode(nil, r)
	if err != nil {
		return err
	}
	return s.send(&proto.Message{Type: proto.TypeOffered, Payload: b})
}

// refuse closes a stream with a reply after which nothing is sent.
func (s *stream) refuse(r *proto.OfferReply) error {
	if err := s.sendOfferReply(r); err != nil {
		return err
	}
	return s.finish()
}

// finish waits, for a limited time, until the other side has read everything and closes.
// What it still sends is discarded.
func (s *stream) finish() error {
	s.CloseWrite()
	if err := s.SetReadDeadline(time.Now().Add(s.timing.Hello)); err != nil {
		return err
	}
	for {
		if _, err := s.rd.NextRaw(); err != nil {
			return nil
		}
	}
}

// run adds chunk after chunk and acknowledges what is durable.
func (i *incoming) run() error {
	var err error
	for err == nil && i.at < i.object.Chunks() {
		err = i.takeChunk()
	}
	err = errors.Join(err, i.sink.End(err == nil))
	i.release() // before the other side sees the end and starts the next one
	if told := i.sendResult(err); told != nil {
		return errors.Join(err, told)
	}
	return errors.Join(err, i.stream.finish())
}

func (i *incoming) takeChunk() error {
	b, err := i.stream.expect(proto.TypeChunk)
	if err != nil {
		return err
	}
	var c proto.Chunk
	if err := proto.DecodeKnown(b, &c); err != nil {
		return err
	}
	if err := i.add(&c); err != nil {
		return err
	}
	now, all := i.stream.conn.clock.Mono(), i.at == i.object.Chunks()
	if !all && i.at-i.synced < syncChunks && now-i.last < syncEvery {
		return nil
	}
	if err := i.sink.Sync(); err != nil {
		return fmt.Errorf("store the body: %w", err)
	}
	i.last, i.synced = now, i.at
	i.flow.advance(sealedBytes(i.object, i.synced))
	if all {
		return nil // acknowledged when the body is complete
	}
	return i.reply(&proto.ChunkReply{Durable: uint32(i.synced)})
}

// add adds a chunk that is missing and belongs to the object.
func (i *incoming) add(c *proto.Chunk) error {
	at := int(c.GetIndex())
	if at >= i.object.Chunks() || hasBit(i.have, at) {
		return fmt.Errorf("%w: chunk %d was not asked for", ErrProtocol, at)
	}
	err := i.sink.Put(at, c.GetData(), c.GetPath())
	switch {
	case errors.Is(err, bodies.ErrChunk):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case err != nil:
		return fmt.Errorf("store the body: %w", err)
	}
	i.have[at/8] |= 1 << (at % 8)
	i.at++
	return nil
}

// sendResult sends the result of the body, if the other side can still receive it.
func (i *incoming) sendResult(err error) error {
	r := &proto.ChunkReply{Durable: uint32(i.synced)}
	refused, ok := errors.AsType[*CodeError](err)
	switch {
	case ok:
		r.Code, r.Detail = cmp.Or(refused.Code, proto.CodeInternal), proto.Clip(refused.Detail, maxReason)
	case errors.Is(err, errSlow): // no attempt is spent: the path may be slow
		r.Code, r.Detail = proto.CodeBusy, "the body came too slowly"
	case isOffense(err):
		r.Code, r.Detail = proto.CodeBadForm, proto.Clip(err.Error(), maxReason)
	case err != nil:
		r.Code, r.Detail = proto.CodeInternal, "the body could not be stored"
	}
	return i.reply(r)
}

func (i *incoming) reply(r *proto.ChunkReply) error {
	b, err := proto.Encode(nil, r)
	if err != nil {
		return err
	}
	return i.stream.send(&proto.Message{Type: proto.TypeChunked, Payload: b})
}
