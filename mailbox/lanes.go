package mailbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

const (
	answerTime  = 30 * time.Second // a bundle that the peer has taken is sent again without an answer for so long
	answerCheck = 10 * time.Second
)

// lanes sends the mail that waits for other nodes, and takes theirs. It keeps nothing: what was
// sent and has no answer is in the lane of the broker.
type lanes struct {
	clock     clock.Clock
	log       *slog.Logger
	fail      func(point string) error
	ledger    *ledgerOpener
	places    *places
	bodies    *letterBodies
	admission *admission
	exchanges *exchanges
	messages  *messages
}

// send sends what waits in the spools for a peer.
func (s *lanes) send(ctx context.Context, l *transport.Link) error {
	k, err := s.ledger.wait(ctx)
	if err != nil {
		return err
	}
	lane, err := k.Lane(ctx, l.Peer())
	if err != nil {
		return ignoreStop(ctx, err)
	}
	defer func() { _ = lane.Reset(context.WithoutCancel(ctx)) }() // a broker that has stopped does not mind
	if err := lane.Resume(ctx); err != nil {
		return ignoreStop(ctx, err)
	}
	var streams sync.WaitGroup
	defer streams.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var newest atomic.Pointer[sentBundle]
	streams.Go(func() { s.watchAnswers(ctx, lane, &newest) })
	var last *transport.MailStream
	for {
		bundle, err := lane.Next(ctx)
		if err != nil {
			return ignoreStop(ctx, err)
		}
		stream, err := s.messages.send(ctx, l, proto.TypeBundle, bundle)
		switch {
		case errors.Is(err, transport.ErrNoMail):
			<-ctx.Done() // its mail waits until it has a newer version
			return ctx.Err()
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			s.log.Debug("a bundle of mail could not be sent", "to", l.Peer(), "why", err)
			if err := lane.Reset(ctx); err != nil {
				return ignoreStop(ctx, err)
			}
			continue
		}
		frames, _ := stream.Progress()
		newest.Store(&sentBundle{bundle.GetNumber(), onStream{stream, frames}})
		if stream != last {
			last = stream
			streams.Go(func() { resetAfter(ctx, stream, lane) })
		}
	}
}

// resetAfter sends again what has no answer when a stream closes.
func resetAfter(ctx context.Context, stream *transport.MailStream, lane *mail.Lane) {
	select {
	case <-stream.Done():
		_ = lane.Reset(ctx) // at the end of ctx it is done anyway
	case <-ctx.Done():
	}
}

// ignoreStop waits for the end of ctx after the broker has stopped: the node ends.
func ignoreStop(ctx context.Context, err error) error {
	if errors.Is(err, mail.ErrStopped) || errors.Is(err, mail.ErrUnknown) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// A sentBundle is a bundle on its way to a peer.
type sentBundle struct {
	number uint64
	onStream
}

// watchAnswers sends bundles again that have no answer long after the peer has taken them:
// the answer was lost with a stream of the peer. However slow the path or the peer is, a
// bundle on its way is not sent again.
func (s *lanes) watchAnswers(ctx context.Context, lane *mail.Lane, newest *atomic.Pointer[sentBundle]) {
	tick := time.NewTicker(answerCheck)
	defer tick.Stop()
	var mark *sentBundle    // no answer may be missing to it and those before it
	var since time.Duration // monotonic time when it was found to be taken; 0: it was not
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.clock.Mono()
		switch {
		case mark == nil:
			mark, since = newest.Swap(nil), 0
		case since == 0 && mark.taken():
			since = max(now, 1)
		case since > 0 && now-since >= answerTime:
			if late, err := lane.Unanswered(ctx, mark.number); err != nil || late && lane.Reset(ctx) != nil {
				return
			}
			mark = nil
		}
		if mark != nil {
			if mark.lost() {
				mark = nil // all of the stream is sent again
			}
		}
	}
}

func (s *lanes) receiveBundle(ctx context.Context, from proto.PeerID, bundle *proto.Bundle) error {
	x := s.exchanges.with(from)
	if x.isFull() {
		return ErrTooManyBundles
	}
	if err := s.fail(PointReceive); err != nil {
		return err
	}
	a, err := s.arrive(ctx, from, bundle)
	if err != nil {
		return err
	}
	x.add(arrival{wait: func(ctx context.Context) (proto.MessageType, proto.Body, error) {
		answer, err := a.Wait(ctx)
		if err == nil {
			err = s.fail(PointReceived)
		}
		return proto.TypeBundled, answer, err
	}, closed: ctx.Done()})
	return x.wait(ctx, writing{a.IsWritten, func(ctx context.Context) error {
		_, err := a.Wait(ctx)
		return err
	}, a.Size()})
}

// arrive hands a bundle to the broker. A node that never had a box makes no ledger for it.
func (s *lanes) arrive(ctx context.Context, from proto.PeerID, bundle *proto.Bundle) (*mail.Arrival, error) {
	k := s.ledger.broker()
	home, generation, away := s.places.awayFrom(bundle.GetBox())
	switch {
	case k == nil && away:
		return mail.Redirect(from, bundle, s.clock.Now(), home, generation)
	case k == nil:
		return mail.Refuse(from, bundle, s.clock.Now())
	case away:
		return k.Redirect(from, bundle, home, generation)
	}
	admit, err := s.admission.from(ctx, k, from)
	if err != nil {
		return nil, err
	}
	return k.Arrive(from, bundle, admit)
}

func (s *lanes) receiveAnswer(ctx context.Context, from proto.PeerID, answer *proto.Bundled) error {
	k := s.ledger.broker()
	if k == nil {
		return nil // to an earlier start
	}
	lane, err := k.Lane(ctx, from)
	if err != nil {
		return err
	}
	if err := s.fail(PointAnswer); err != nil {
		return err
	}
	return lane.Answer(ctx, answer)
}

// sendBodies sends a peer the bodies that it lacks.
func (s *lanes) sendBodies(ctx context.Context, peer proto.PeerID) error {
	k, err := s.ledger.wait(ctx)
	if err != nil {
		return err
	}
	lane, err := k.Lane(ctx, peer)
	if err != nil {
		return ignoreStop(ctx, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	for range bodySenders {
		g.Go(func() error {
			for {
				x, err := lane.NextBody(ctx)
				if err == nil {
					err = lane.SentBody(context.WithoutCancel(ctx), x, s.bodies.send(ctx, peer, x))
				}
				if err != nil {
					return ignoreStop(ctx, err)
				}
			}
		})
	}
	return g.Wait()
}

// bodySenders is how many bodies of mail are sent to one peer at once.
const bodySenders = 2
