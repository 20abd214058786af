package mailbox

import (
	"context"
	"errors"
	"log/slog"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// messages sends messages about mail to connected peers, among them the answers to theirs. It
// keeps nothing: what has no answer is in the exchange.
type messages struct {
	clock clock.Clock
	log   *slog.Logger
}

// onStream is where a message is that was queued on a stream.
type onStream struct {
	stream interface { // a [transport.MailStream]
		Progress() (sent, received uint64)
		Done() <-chan struct{}
	}
	frame uint64 // the stream's number of it, or of a later message
}

// taken reports whether the peer has received the message.
func (s *onStream) taken() bool {
	_, taken := s.stream.Progress()
	return taken >= s.frame
}

// lost reports whether the stream has closed: if the peer did not receive the message, it never will.
func (s *onStream) lost() bool {
	select {
	case <-s.stream.Done():
		return true
	default:
		return false
	}
}

// send sends a message about mail.
func (m *messages) send(ctx context.Context, l *transport.Link, t proto.MessageType, body proto.Body) (*transport.MailStream, error) {
	payload, err := proto.Encode(nil, body)
	if err != nil {
		return nil, err
	}
	stream, err := l.Mail(ctx)
	if errors.Is(err, transport.ErrLinkDown) {
		<-ctx.Done() // it ends with the link
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return stream, stream.Send(ctx, &proto.Message{Type: t, Payload: payload, Timestamp: m.clock.Now().UnixNano()})
}

// sendAnswers answers the messages of a peer, in order, when what they brought is on disk.
// Those without an answer at the end of the link are answered on the next one.
func (m *messages) sendAnswers(ctx context.Context, l *transport.Link, x *exchange) error {
	for {
		x.mu.Lock()
		all := x.arrivals
		x.mu.Unlock()
		for _, a := range all {
			if err := m.answer(ctx, l, a); err != nil {
				return err
			}
			x.mu.Lock()
			x.settled -= x.arrivals[0].size
			x.arrivals[0] = arrival{}
			x.arrivals = x.arrivals[1:]
			x.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-x.arrived:
		}
	}
}

// answer answers a message. The error is that of ctx.
func (m *messages) answer(ctx context.Context, l *transport.Link, a arrival) error {
	typ, answer, err := a.wait(ctx)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.closed:
			return nil
		default:
		}
		if err == nil {
			_, err = m.send(ctx, l, typ, answer)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			m.log.Debug("a message about mail was not answered", "from", l.Peer(), "why", err)
		}
		if !errors.Is(err, transport.ErrLinkDown) {
			return ctx.Err() // it comes again
		}
		err = nil
	}
}

// decode decodes and checks a message.
func decode(m *proto.Message, body interface {
	proto.Body
	Check() error
},
) error {
	if err := proto.DecodeKnown(m.GetPayload(), body); err != nil {
		return err
	}
	return body.Check()
}
