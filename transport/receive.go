package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/balefire/balefire/proto"
)

// ErrProtocol is returned for a message that no node sends in that place.
var ErrProtocol = errors.New("transport: protocol violation")

// serveTasks serves a peer's task stream.
func (ls *links) serveTasks(ctx context.Context, s *stream) error {
	return ls.serveFrames(ctx, s, tasksOf, place.onTaskStream)
}

// serveLeases serves a peer's lease stream.
func (ls *links) serveLeases(ctx context.Context, s *stream) error {
	return ls.serveFrames(ctx, s, leasesOf, place.onLeaseStream)
}

// serveFrames serves a peer's stream for the types that belong there.
func (ls *links) serveFrames(ctx context.Context, s *stream, of func(*peerState) *intake, belongs func(place) bool) error {
	// Reset blocks on a dead relayed path; receiving is released only after it
	release, err := ls.acquireIntake(ctx, s, of, func() { ls.group.start(func(context.Context) { s.Reset() }) })
	if err != nil {
		return err
	}
	defer release()
	ls.chooser.follow(s.conn)
	return ls.receiveFrames(ctx, s, belongs)
}

// receiveFrames receives the frames of s until it ends. One goroutine reads ahead of the other.
func (ls *links) receiveFrames(ctx context.Context, s *stream, belongs func(place) bool) error {
	q := newGroupBuffer()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { q.close(readFrames(ctx, s, q, belongs)) })
	err := ls.receiveGroups(ctx, s, q)
	cancel() // the reader may be waiting for room
	s.Reset()
	wg.Wait()
	if isOffense(q.err) && !errors.Is(q.err, errSlow) { // a connection that was lost seems slow
		return q.err
	}
	return err
}

// receiveGroups makes each group of q durable and acknowledges it. It never returns nil.
func (ls *links) receiveGroups(ctx context.Context, s *stream, q *groupBuffer) (err error) {
	var group, known []*proto.Message
	for number := uint64(1); ; {
		if group, err = q.take(ctx, group[:0]); err != nil {
			return err
		}
		known = knownOf(known[:0], group)
		var a Answer
		if len(known) > 0 {
			if a, err = ls.recv.Receive(ctx, s.conn.peer, known); err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			if a.Offense != nil {
				ls.rates.offend(s.conn.peer, "task", a.Offense)
			}
		}
		ack, err := ackFor(number, group, a)
		if err != nil {
			return err
		}
		ls.met.received.Add(float64(len(group)))
		if ack.GetUpTo() >= number {
			number = ack.GetUpTo() + 1
			if err := s.sendAck(ack); err != nil {
				return fmt.Errorf("acknowledge: %w", err)
			}
		}
		clear(group)
	}
}

// readFrames puts frames into q until the stream closes. It never returns nil.
func readFrames(ctx context.Context, s *stream, q *groupBuffer, belongs func(place) bool) error {
	for {
		m := new(proto.Message)
		if err := s.next(m); err != nil {
			return err
		}
		if !belongs(placeOf(m.GetType())) {
			return fmt.Errorf("%w: message type %d on %s", ErrProtocol, m.GetType(), s.Protocol())
		}
		if err := q.put(ctx, m, len(m.GetPayload())); err != nil {
			return err
		}
	}
}

// knownOf appends to dst the messages of group whose types are known.
func knownOf(dst, group []*proto.Message) []*proto.Message {
	for _, m := range group {
		if !unknown(m.GetType()) {
			dst = append(dst, m)
		}
	}
	return dst
}

// ackFor returns the Ack of a group whose first numbered frame has this number. a refers
// to the known messages by index; unknown ones are refused here, so that their sender
// keeps them for a newer node. Without a numbered frame, UpTo is number-1.
func ackFor(number uint64, group []*proto.Message, a Answer) (*proto.Ack, error) {
	ack := &proto.Ack{From: number, Time: a.Time, Signature: a.Signature}
	refusals := slices.SortedFunc(slices.Values(a.Refusals), func(x, y *proto.Refusal) int {
		return cmp.Compare(x.GetNumber(), y.GetNumber())
	})
	index := uint64(0) // among the known messages
	for _, m := range group {
		var r *proto.Refusal
		if unknown(m.GetType()) {
			r = &proto.Refusal{Code: proto.CodeUnknownVersion, Detail: fmt.Sprintf("message type %d", m.GetType())}
		} else {
			if len(refusals) > 0 && refusals[0].GetNumber() == index {
				r, refusals = refusals[0], refusals[1:]
			}
			index++
		}
		if !placeOf(m.GetType()).numbered {
			continue
		}
		if r != nil {
			r.Number, r.Detail = number, proto.Clip(r.GetDetail(), maxReason)
			ack.Refusals = append(ack.Refusals, r)
		}
		number++
	}
	if len(refusals) > 0 {
		return nil, fmt.Errorf("transport: the receiver refused message %d of %d", refusals[0].GetNumber(), index)
	}
	ack.UpTo = number - 1
	return ack, nil
}

func (s *stream) sendAck(a *proto.Ack) error {
	b, err := proto.Encode(nil, a)
	if err != nil {
		return err
	}
	return s.send(&proto.Message{Type: proto.TypeAck, Payload: b})
}

// normalEnd reports whether a stream closed normally.
func normalEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, context.Canceled)
}
