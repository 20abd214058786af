package transport

import (
	"context"
	"fmt"
	"sync"

	"github.com/balefire/balefire/proto"
)

// ackMailAfter is the most messages that a receiver takes from a mail stream before it
// acknowledges them. If nothing more has arrived, it does so at once.
const ackMailAfter = 64

// mailOf returns the intake of the mail streams of n.
func mailOf(n *peerState) *intake { return &n.mail }

// serveMail receives a peer's mail stream. Nothing is read ahead: while the receiver
// blocks, so does the sender.
func (ls *links) serveMail(ctx context.Context, s *stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	release, err := ls.acquireIntake(ctx, s, mailOf, cancel)
	if err != nil {
		return err
	}
	defer release()
	defer s.unblock(ctx)()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { // nobody else notices while the receiver blocks
		select {
		case <-s.conn.gone:
			cancel()
		case <-ctx.Done():
		}
	})
	first := uint64(1) // of the messages that are not acknowledged
	for number := first; ; number++ {
		if err := ls.receiveMail(ctx, s); err != nil {
			return err
		}
		if s.rd.Buffered() > 0 && number-first+1 < ackMailAfter {
			continue
		}
		if err := s.sendAck(&proto.Ack{From: first, UpTo: number}); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
		first = number + 1
	}
}

// receiveMail reads a message and passes it on. One of a newer node is dropped: its sender
// repeats what is not answered.
func (ls *links) receiveMail(ctx context.Context, s *stream) error {
	m := new(proto.Message)
	if err := s.next(m); err != nil {
		return err
	}
	switch {
	case unknown(m.GetType()):
		return nil
	case placeOf(m.GetType()).stream != streamMail:
		return fmt.Errorf("%w: message type %d on a mail stream", ErrProtocol, m.GetType())
	}
	if err := ls.cfg.Mail(ctx, s.conn.peer, m); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}
