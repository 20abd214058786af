package mailbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

const (
	maxAnswers  = 4096             // messages of one peer that have no answer yet
	maxSettled  = 2 << 20          // bytes of the answers to its settlements among them, about
	maxWriting  = 4 << 20          // bytes of the bundles of one peer that are being written
	answerTime  = 30 * time.Second // a bundle that the peer has taken is sent again without an answer for so long
	answerCheck = 10 * time.Second
)

// ErrTooManyBundles closes the stream of a peer that does not take its answers: it sends
// again.
var ErrTooManyBundles = errors.New("mailbox: too many messages without an answer")

// An exchange is what one peer sends to this node, and reads at the two. It outlives a link.
type exchange struct {
	mu       sync.Mutex
	arrivals []arrival     // in order, without an answer
	settled  int           // bytes of the answers to settlements among them
	arrived  chan struct{} // something was added

	// Of Receive.
	writing []writing
	bytes   int // of their letters

	offers  chan bodyOffer
	parts   chan *proto.BoxPart // of boxes that are handed over to the peer
	taking  sync.Mutex          // held while a part of the peer is taken
	readers remoteReaders       // at the boxes of this node
	home    remoteHome          // what programs of this node read there
}

// An arrival is a message of a peer that is answered. When the stream on which it came has
// closed, the peer expects no answer.
type arrival struct {
	wait   func(context.Context) (proto.MessageType, proto.Body, error) // returns the answer when what it tells is on disk
	closed <-chan struct{}
	size   int // bytes of the answer, if it is to settlements
}

// A writing is what a message brought, on its way to the disk.
type writing struct {
	done func() bool
	wait func(context.Context) error
	size int // bytes
}

// exchange returns that with a peer.
func (b *Boxes) exchange(p proto.PeerID) *exchange {
	b.peers.Lock()
	defer b.peers.Unlock()
	x := b.exchanges[p]
	if x == nil {
		x = &exchange{
			arrived: make(chan struct{}, 1), offers: make(chan bodyOffer, maxOffers), parts: make(chan *proto.BoxPart), readers: remoteReaders{arrived: make(chan struct{}, 1), sessions: map[uint64]*remoteReader{}},
			home: remoteHome{peer: p, name: func() string { return b.parts.Book.NameOf(p) }, number: func() uint64 { return b.numbers.Add(1) }, now: b.cfg.Clock.Boot, due: make(chan struct{}, 1), sessions: map[uint64]*remoteSession{}, ended: map[uint64]*proto.Open{}, settles: map[uint64]*remoteSettle{}},
		}
		b.exchanges[p] = x
	}
	return x
}

// allExchanges returns those with all peers.
func (b *Boxes) allExchanges() []*exchange {
	b.peers.Lock()
	defer b.peers.Unlock()
	return slices.Collect(maps.Values(b.exchanges))
}

// Linked sends a connected peer the mail that waits for its boxes, what programs read here and
// there, and the answers to its own, as long as there is a path to it. Calls for one peer do
// not overlap.
func (b *Boxes) Linked(ctx context.Context, l *transport.Link) error {
	x := b.exchange(l.Peer())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.sendAnswers(ctx, l, x) })
	g.Go(func() error { return b.sendMail(ctx, l) })
	g.Go(func() error { return b.sendBodies(ctx, l.Peer()) })
	for range bodySenders {
		g.Go(func() error { return b.sendOffers(ctx, l.Peer(), x) })
	}
	g.Go(func() error { return b.serveReaders(ctx, l, &x.readers) })
	g.Go(func() error { return b.sendReads(ctx, l, &x.home) })
	g.Go(func() error { return b.sendParts(ctx, l, x) })
	return g.Wait()
}

// RetryNow sends again at once what a peer stopped with code.
func (b *Boxes) RetryNow(ctx context.Context, peer proto.PeerID, code proto.Code) {
	if k := b.ledger.broker(); k != nil {
		_ = k.RetryNow(ctx, peer, code) // a broker that has stopped sends at the next start
	}
}

// sendMail sends what waits in the spools for a peer.
func (b *Boxes) sendMail(ctx context.Context, l *transport.Link) error {
	k, err := b.ledger.wait(ctx)
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
	streams.Go(func() { b.watchAnswers(ctx, lane, &newest) })
	var last *transport.MailStream
	for {
		bundle, err := lane.Next(ctx, chain.MaxBundleBytes)
		if err != nil {
			return ignoreStop(ctx, err)
		}
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
			continue
		}
		frames, _ := stream.Progress()
		newest.Store(&sentBundle{bundle.GetNumber(), stream, frames})
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
	stream *transport.MailStream
	frame  uint64 // the stream's number of it, or of a later message
}

// taken reports whether the peer has received the bundle.
func (s *sentBundle) taken() bool {
	_, taken := s.stream.Progress()
	return taken >= s.frame
}

// watchAnswers sends bundles again that have no answer long after the peer has taken them:
// the answer was lost with a stream of the peer. However slow the path or the peer is, a
// bundle on its way is not sent again.
func (b *Boxes) watchAnswers(ctx context.Context, lane *mail.Lane, newest *atomic.Pointer[sentBundle]) {
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
		now := b.cfg.Clock.Mono()
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
			select {
			case <-mark.stream.Done():
				mark = nil // all of the stream is sent again
			default:
			}
		}
	}
}

// post sends a message about mail.
func (b *Boxes) post(ctx context.Context, l *transport.Link, t proto.MessageType, body proto.Body) (*transport.MailStream, error) {
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
	return stream, stream.Send(ctx, &proto.Message{Type: t, Payload: payload, Timestamp: b.cfg.Clock.Now().UnixNano()})
}

// sendAnswers answers the messages of a peer, in order, when what they brought is on disk.
// Those without an answer at the end of the link are answered on the next one.
func (b *Boxes) sendAnswers(ctx context.Context, l *transport.Link, x *exchange) error {
	for {
		x.mu.Lock()
		all := x.arrivals
		x.mu.Unlock()
		for _, a := range all {
			if err := b.answer(ctx, l, a); err != nil {
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
func (b *Boxes) answer(ctx context.Context, l *transport.Link, a arrival) error {
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
			_, err = b.post(ctx, l, typ, answer)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			b.cfg.Logger.Debug("a message about mail was not answered", "from", l.Peer(), "why", err)
		}
		if !errors.Is(err, transport.ErrLinkDown) {
			return ctx.Err() // it comes again
		}
		err = nil
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
	case proto.TypeOpen:
		o := new(proto.Open)
		if err := decode(m, o); err != nil {
			return err
		}
		return b.exchange(from).receiveOpen(o)
	case proto.TypeSettle:
		s := new(proto.Settle)
		if err := decode(m, s); err != nil {
			return err
		}
		return b.receiveSettle(ctx, from, s)
	case proto.TypeBoxPart:
		p := new(proto.BoxPart)
		if err := decode(m, p); err != nil {
			return err
		}
		return b.receivePart(ctx, from, p)
	case proto.TypeBoxTaken:
		a := new(proto.BoxTaken)
		if err := decode(m, a); err != nil {
			return err
		}
		b.receiveTaken(from, a)
		return nil
	}
	return b.exchange(from).home.receive(m)
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

func (b *Boxes) receiveBundle(ctx context.Context, from proto.PeerID, bundle *proto.Bundle) error {
	x := b.exchange(from)
	if x.isFull() {
		return ErrTooManyBundles
	}
	if err := b.cfg.Fail(PointReceive); err != nil {
		return err
	}
	a, err := b.arrive(ctx, from, bundle)
	if err != nil {
		return err
	}
	x.add(arrival{wait: func(ctx context.Context) (proto.MessageType, proto.Body, error) {
		answer, err := a.Wait(ctx)
		if err == nil {
			err = b.cfg.Fail(PointReceived)
		}
		return proto.TypeBundled, answer, err
	}, closed: ctx.Done()})
	return x.wait(ctx, writing{a.IsWritten, func(ctx context.Context) error {
		_, err := a.Wait(ctx)
		return err
	}, a.Size()})
}

// arrive hands a bundle to the broker. A node that never had a box makes no ledger for it.
func (b *Boxes) arrive(ctx context.Context, from proto.PeerID, bundle *proto.Bundle) (*mail.Arrival, error) {
	k := b.ledger.broker()
	home, generation, away := b.places.awayFrom(bundle.GetBox())
	switch {
	case k == nil && away:
		return mail.Redirect(from, bundle, b.cfg.Clock.Now(), home, generation)
	case k == nil:
		return mail.Refuse(from, bundle, b.cfg.Clock.Now())
	case away:
		return k.Redirect(from, bundle, home, generation)
	}
	admit, err := b.admission.from(ctx, k, from)
	if err != nil {
		return nil, err
	}
	return k.Arrive(from, bundle, admit)
}

func (x *exchange) isFull() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.arrivals) >= maxAnswers || x.settled >= maxSettled
}

func (x *exchange) add(a arrival) {
	x.mu.Lock()
	x.arrivals, x.settled = append(x.arrivals, a), x.settled+a.size
	x.mu.Unlock()
	signal(x.arrived)
}

// wait delays a peer that sends faster than the disk writes.
func (x *exchange) wait(ctx context.Context, w writing) error {
	x.writing, x.bytes = append(x.writing, w), x.bytes+w.size
	for len(x.writing) > 0 && (x.bytes > maxWriting || x.writing[0].done()) {
		first := x.writing[0]
		if err := first.wait(ctx); err != nil {
			return err
		}
		x.writing, x.bytes = x.writing[1:], x.bytes-first.size
	}
	return nil
}

func (b *Boxes) receiveAnswer(ctx context.Context, from proto.PeerID, answer *proto.Bundled) error {
	k := b.ledger.broker()
	if k == nil {
		return nil // to an earlier start
	}
	lane, err := k.Lane(ctx, from)
	if err != nil {
		return err
	}
	if err := b.cfg.Fail(PointAnswer); err != nil {
		return err
	}
	return lane.Answer(ctx, answer)
}
