package mailbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

const (
	maxAnswers  = 4096             // bundles of one peer that have no answer yet
	answerTime  = 30 * time.Second // a bundle without an answer for so long is sent again
	answerCheck = 10 * time.Second
)

// ErrTooManyBundles closes the stream of a peer that does not take its answers: it sends
// again.
var ErrTooManyBundles = errors.New("mailbox: too many bundles without an answer")

// An exchange is the mail between this node and one connected peer.
type exchange struct {
	mu       sync.Mutex
	arrivals []*mail.Arrival // bundles of the peer, in order, that it has no answer to
	arrived  chan struct{}   // something was added
	sent     int             // bundles to the peer that have no answer
	since    time.Duration   // monotonic time of the last bundle or answer
}

// exchange returns that with a peer.
func (b *Boxes) exchange(p proto.PeerID) *exchange {
	b.peers.Lock()
	defer b.peers.Unlock()
	x := b.exchanges[p]
	if x == nil {
		x = &exchange{arrived: make(chan struct{}, 1)}
		b.exchanges[p] = x
	}
	return x
}

// Linked sends a connected peer the mail that waits for its boxes, and the answers to its
// own, as long as there is a path to it.
func (b *Boxes) Linked(ctx context.Context, l *transport.Link) error {
	x := b.exchange(l.Peer())
	defer func() {
		b.peers.Lock()
		delete(b.exchanges, l.Peer()) // it sends again what has no answer
		b.peers.Unlock()
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.sendAnswers(ctx, l, x) })
	g.Go(func() error { return b.sendMail(ctx, l, x) })
	return g.Wait()
}

// sendMail sends what waits in the spools for a peer.
func (b *Boxes) sendMail(ctx context.Context, l *transport.Link, x *exchange) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ready:
	}
	lane, err := b.broker.Load().Lane(ctx, l.Peer())
	if err != nil {
		return ignoreStop(ctx, err)
	}
	defer func() { _ = lane.Reset(context.WithoutCancel(ctx)) }() // a broker that has stopped does not mind
	if err := lane.Resume(ctx); err != nil {
		return ignoreStop(ctx, err)
	}
	var streams errgroup.Group
	defer streams.Wait()
	streams.Go(func() error { return b.watchAnswers(ctx, lane, x) })
	var last *transport.MailStream
	for {
		bundle, err := lane.Next(ctx, chain.MaxBundleBytes)
		if err != nil {
			return ignoreStop(ctx, err)
		}
		x.note(1, b.cfg.Clock.Mono())
		stream, err := b.post(ctx, l, proto.TypeBundle, bundle)
		switch {
		case errors.Is(err, transport.ErrNoMail):
			<-ctx.Done() // its mail waits until it has a newer version
			return ctx.Err()
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			b.cfg.Logger.Debug("a bundle of mail could not be sent", "to", l.Peer(), "why", err)
			if err := lane.Reset(ctx); err != nil {
				return ignoreStop(ctx, err)
			}
		case stream != last:
			last = stream
			streams.Go(func() error {
				select {
				case <-stream.Done():
					return lane.Reset(context.WithoutCancel(ctx))
				case <-ctx.Done():
					return nil
				}
			})
		}
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

// watchAnswers sends bundles again that have no answer for too long.
func (b *Boxes) watchAnswers(ctx context.Context, lane *mail.Lane, x *exchange) error {
	tick := time.NewTicker(answerCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		x.mu.Lock()
		late := x.sent > 0 && b.cfg.Clock.Mono()-x.since > answerTime
		if late {
			x.sent = 0
		}
		x.mu.Unlock()
		if late {
			if err := lane.Reset(ctx); err != nil {
				return nil
			}
		}
	}
}

// note counts a bundle that was sent, or with -1 an answer.
func (x *exchange) note(n int, now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent, x.since = max(x.sent+n, 0), now
}

// post sends a message about mail.
func (b *Boxes) post(ctx context.Context, l *transport.Link, t proto.MessageType, body proto.Body) (*transport.MailStream, error) {
	payload, err := proto.Encode(nil, body)
	if err != nil {
		return nil, err
	}
	stream, err := l.Mail(ctx)
	if err != nil {
		return nil, err
	}
	return stream, stream.Send(ctx, &proto.Message{Type: t, Payload: payload, Timestamp: b.cfg.Clock.Now().UnixNano()})
}

// sendAnswers answers the bundles of a peer, in order, when what they brought is on disk.
func (b *Boxes) sendAnswers(ctx context.Context, l *transport.Link, x *exchange) error {
	for {
		x.mu.Lock()
		all := x.arrivals
		x.arrivals = nil
		x.mu.Unlock()
		for _, a := range all {
			answer, err := a.Wait(ctx)
			if err == nil {
				_, err = b.post(ctx, l, proto.TypeBundled, answer)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				b.cfg.Logger.Debug("a bundle of mail was not answered", "from", l.Peer(), "why", err) // it comes again
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-x.arrived:
		}
	}
}

// Receive takes a message about mail of a peer: see [transport.MailReceiver].
func (b *Boxes) Receive(ctx context.Context, from proto.PeerID, m *proto.Message) error {
	switch m.GetType() {
	case proto.TypeBundle:
		bundle := new(proto.Bundle)
		if err := proto.DecodeKnown(m.GetPayload(), bundle); err != nil {
			return err
		}
		return b.receiveBundle(ctx, from, bundle)
	case proto.TypeBundled:
		answer := new(proto.Bundled)
		if err := proto.DecodeKnown(m.GetPayload(), answer); err != nil {
			return err
		}
		return b.receiveAnswer(ctx, from, answer)
	}
	return nil // of a newer version
}

func (b *Boxes) receiveBundle(ctx context.Context, from proto.PeerID, bundle *proto.Bundle) error {
	k, err := b.open()
	if err != nil {
		return err
	}
	admit, err := b.admit(ctx, k, from)
	if err != nil {
		return err
	}
	a, err := k.Arrive(from, bundle, admit)
	if err != nil {
		return err
	}
	x := b.exchange(from)
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.arrivals) >= maxAnswers {
		return ErrTooManyBundles
	}
	x.arrivals = append(x.arrivals, a)
	select {
	case x.arrived <- struct{}{}:
	default:
	}
	return nil
}

func (b *Boxes) receiveAnswer(ctx context.Context, from proto.PeerID, answer *proto.Bundled) error {
	k := b.broker.Load()
	if k == nil {
		return nil // to an earlier start
	}
	lane, err := k.Lane(ctx, from)
	if err != nil {
		return err
	}
	b.exchange(from).note(-1, b.cfg.Clock.Mono())
	return lane.Answer(ctx, answer)
}
