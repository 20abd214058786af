package receive

import (
	"bytes"
	"context"
	"errors"

	"github.com/balefire/balefire/proto"
)

// A selfLink is the link of a node to itself: it receives what it sends, with every
// check that a peer's messages undergo.
type selfLink struct {
	*Receiver
	out     chan []*proto.Message
	answers chan *proto.Ack
	number  uint64
}

// ServeSelf delivers tasks addressed to this node, without the network, until ctx is done.
func (r *Receiver) ServeSelf(ctx context.Context) error {
	l := &selfLink{Receiver: r, out: make(chan []*proto.Message, 4), answers: make(chan *proto.Ack, 4)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	received := make(chan error, 1)
	go func() { received <- l.deliver(ctx); cancel() }()
	err := r.Outbox.Serve(ctx, l)
	cancel()
	err = errors.Join(<-received, err)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (l *selfLink) deliver(ctx context.Context) error {
	for {
		var msgs []*proto.Message
		select {
		case <-ctx.Done():
			return nil
		case msgs = <-l.out:
		}
		a, err := l.Receive(ctx, l.Keys.Peer(), msgs)
		if err != nil {
			return err
		}
		ack := l.ack(msgs, a.Refusals)
		ack.Time, ack.Signature = a.Time, a.Signature
		if ack.UpTo < ack.From {
			continue // only marks
		}
		select {
		case <-ctx.Done():
			return nil
		case l.answers <- ack:
		}
	}
}

// ack numbers the frames as a stream would: marks are not counted.
func (l *selfLink) ack(msgs []*proto.Message, refusals []*proto.Refusal) *proto.Ack {
	a := &proto.Ack{From: l.number + 1}
	for i, m := range msgs {
		if m.GetType() == proto.TypeMark {
			continue
		}
		l.number++
		for _, r := range refusals {
			if r.Number == uint64(i) {
				a.Refusals = append(a.Refusals, &proto.Refusal{Number: l.number, Code: r.Code, Detail: r.Detail, State: r.State, RetryAfterMs: r.RetryAfterMs})
			}
		}
	}
	a.UpTo = l.number
	return a
}

// Peer returns this node.
func (l *selfLink) Peer() proto.PeerID { return l.Keys.Peer() }

// Send delivers messages in groups that one Ack can answer.
func (l *selfLink) Send(ctx context.Context, msgs []*proto.Message) error {
	for len(msgs) > 0 {
		part := msgs[:min(len(msgs), proto.MaxGroup)]
		msgs = msgs[len(part):]
		for _, m := range part {
			m.Payload = bytes.Clone(m.Payload) // the sender reuses its memory
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l.out <- part:
		}
	}
	return nil
}

// Answers returns the next answer.
func (l *selfLink) Answers(ctx context.Context) (*proto.Ack, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-l.answers:
		return a, nil
	}
}
