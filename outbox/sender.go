package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A Link is an open task stream to one peer.
type Link interface {
	// Peer returns the authenticated peer.
	Peer() proto.PeerID
	// Send sends messages in order and returns once they are on their way. It blocks
	// while too many messages are unanswered. DATA, RESULT and CANCEL messages are
	// numbered from 1 on each link; MARK messages are not numbered. It may keep msgs, but
	// the memory of the payloads is reused once it has returned.
	Send(ctx context.Context, msgs []*proto.Message) error
	// Answers returns the next acknowledgement, in the order of arrival.
	Answers(ctx context.Context) (*proto.Ack, error)
}

// Sizes and times of a peerSender.
const (
	maxSendBatch    = 64                     // entries, so that an urgent one waits for few others
	maxActiveBodies = 2                      // streamed bodies being sent at once
	maxQueuedBodies = 16                     // streamed bodies waiting to be sent
	bodyRetryDelay  = time.Second            // delay of a body when that queue is full
	maxQueuedAcks   = 64                     // acknowledgements waiting to be written together
	markEvery       = 256                    // settled tasks between two marks
	idleMarkDelay   = 100 * time.Millisecond // idle time after which a mark is due
	pollEvery       = 5 * time.Second        // longest wait before the schedule is checked again
	retrySpread     = 500 * time.Millisecond // window over which retries are spread when a link comes up
)

// A peerSender sends the entries of one peer over one link.
type peerSender struct {
	o     *Outbox
	link  Link
	peer  proto.PeerID
	group string
	items []backlog.Item
	acks  chan *proto.Ack
	wake  chan struct{} // wakes the sender

	mu            sync.Mutex
	inflight      []sentEntry    // sent and unanswered, in the order of their numbers
	first         uint64         // number of inflight[0]
	bodies        []backlog.Item // waiting for their streamed body to be sent
	bodySent      []backlog.Item // streamed body has been sent
	arrivedBodies map[backlog.Key]bool
	activeBodies  int // bodies being sent
	settled       int // tasks settled since the last mark
}

// A sentEntry is an entry that was sent and has not been answered.
type sentEntry struct {
	item   backlog.Item
	rec    *proto.Record // as it was when sent
	cached *submitted    // whose record it is; nil: it was read back
}

// edit returns an edit of f, with its record unless that is still used elsewhere.
func (f *sentEntry) edit() backlog.Edit {
	ed := backlog.Edit{Key: f.item.Key, Version: f.item.Version}
	if f.cached == nil || f.cached.answered.Load() {
		ed.Record = f.rec
	}
	return ed
}

// Serve sends the entries for link.Peer() until the link or ctx ends, and returns
// why. Unanswered entries wait for the next link.
func (o *Outbox) Serve(ctx context.Context, link Link) error {
	p := link.Peer()
	if err := o.linkUp(ctx, p); err != nil {
		return err
	}
	defer o.linkDown(p)
	ps := &peerSender{
		o: o, link: link, peer: p, group: string(p[:]), first: 1,
		acks: make(chan *proto.Ack, maxQueuedAcks), wake: make(chan struct{}, 1), arrivedBodies: map[backlog.Key]bool{},
	}
	defer ps.release()
	o.backlog.MakeDue(ps.group, func(backlog.Key) time.Duration { return jitter() })
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ps.receiveAcks(ctx) })
	g.Go(func() error { return ps.processAcks(ctx) })
	g.Go(func() error { return ps.send(ctx, g) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("outbox: link to %s: %w", p.Short(), err)
	}
	return nil
}

// receiveAcks reads acknowledgements from the link.
func (ps *peerSender) receiveAcks(ctx context.Context) error {
	for {
		ack, err := ps.link.Answers(ctx)
		if err != nil {
			return err
		}
		select {
		case ps.acks <- ack:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends the due entries, most urgent first, and waits when there are none.
func (ps *peerSender) send(ctx context.Context, g *errgroup.Group) error {
	for {
		ps.startBodies(ctx, g)
		items := ps.nextItems()
		if len(items) == 0 {
			if err := ps.waitForWork(ctx); err != nil {
				return err
			}
			continue
		}
		if err := ps.sendItems(ctx, items); err != nil {
			return err
		}
		if err := ps.sendMark(ctx, markEvery); err != nil {
			return err
		}
	}
}

// sendItems sends the taken entries.
func (ps *peerSender) sendItems(ctx context.Context, items []backlog.Item) error {
	buf := ps.o.payloads.Get().(*[]byte)
	defer ps.o.payloads.Put(buf)
	msgs := ps.pack(items, buf)
	if *buf = (*buf)[:0]; cap(*buf) > maxKeptBuf {
		*buf = nil
	}
	if len(msgs) == 0 {
		return nil
	}
	return ps.link.Send(ctx, msgs)
}

// nextItems returns what to send next: entries whose body has arrived first.
func (ps *peerSender) nextItems() []backlog.Item {
	ps.mu.Lock()
	ps.items = append(ps.items[:0], ps.bodySent...)
	ps.bodySent = ps.bodySent[:0]
	ps.mu.Unlock()
	if len(ps.items) == 0 {
		ps.items = ps.o.backlog.Take(ps.items, ps.group, maxSendBatch)
	}
	return ps.items
}

// waitForWork waits until there may be something to send. An idle sender sends
// its mark.
func (ps *peerSender) waitForWork(ctx context.Context) error {
	wait := ps.o.cfg.Clock.Until(pollEvery)
	if next, ok := ps.o.backlog.Next(ps.group); ok {
		wait = min(wait, next)
	}
	ps.mu.Lock()
	quiet := ps.settled > 0
	ps.mu.Unlock()
	if quiet {
		wait = min(wait, idleMarkDelay)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ps.o.backlog.Wake(ps.group):
	case <-ps.wake:
	case <-t.C:
		return ps.sendMark(ctx, 1)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// sendMark sends the settled mark if at least least tasks were settled since the
// last one.
func (ps *peerSender) sendMark(ctx context.Context, least int) error {
	ps.mu.Lock()
	due := ps.settled >= least
	if due {
		ps.settled = 0
	}
	ps.mu.Unlock()
	if !due {
		return nil
	}
	m := ps.o.Mark(ps.peer)
	payload, err := proto.Encode(nil, &proto.Mark{Boot: m.Boot, Counter: m.Counter})
	if err != nil {
		return fmt.Errorf("encode the settled mark: %w", err)
	}
	return ps.link.Send(ctx, []*proto.Message{{Type: proto.TypeMark, Payload: payload}})
}

// startBodies sends waiting streamed bodies, a few at a time.
func (ps *peerSender) startBodies(ctx context.Context, g *errgroup.Group) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for ps.activeBodies < maxActiveBodies && len(ps.bodies) > 0 {
		it := ps.bodies[0]
		ps.bodies = ps.bodies[1:]
		ps.activeBodies++
		g.Go(func() error { return ps.sendBody(ctx, it) })
	}
}

// sendBody sends one streamed body. If it fails the entry waits for a retry; if
// the peer refuses it, that counts as an answer. The link stays open.
func (ps *peerSender) sendBody(ctx context.Context, it backlog.Item) error {
	st, err := ps.o.backlog.Read(it)
	if err == nil {
		err = ps.sendOffer(ctx, it, st)
	}
	ps.mu.Lock()
	ps.activeBodies--
	if err == nil {
		ps.bodySent = append(ps.bodySent, it)
		ps.arrivedBodies[it.Key] = true
	}
	ps.mu.Unlock()
	defer signal(ps.wake)
	if err == nil {
		return nil
	}
	if no, ok := errors.AsType[BodyRefusal](err); ok && no.Refusal().GetCode() != proto.CodeNeedBody {
		return ps.apply(ctx, []answeredEntry{{sentEntry: sentEntry{item: it, rec: st.Record}, refusal: no.Refusal()}})
	}
	ps.retryLater(it, "send its body: "+err.Error())
	return nil
}

// sendOffer offers the envelope of a streamed body and sends the body.
func (ps *peerSender) sendOffer(ctx context.Context, it backlog.Item, st *proto.Stored) error {
	env, err := ps.rewrapped(it, st)
	if err != nil {
		return err
	}
	return ps.o.cfg.Bodies.Send(ctx, ps.peer, &proto.Offer{Envelope: env, Type: messageType(it)}, st.Record.BodyBlob)
}

// queueBody queues the streamed body of an entry to be sent before the entry.
func (ps *peerSender) queueBody(it backlog.Item) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.arrivedBodies, it.Key)
	if len(ps.bodies) >= maxQueuedBodies {
		ps.o.backlog.Release(it.Key, bodyRetryDelay)
		return
	}
	ps.bodies = append(ps.bodies, it)
	signal(ps.wake)
}

// bodyArrived reports whether the peer has the streamed body of an entry.
func (ps *peerSender) bodyArrived(it backlog.Item) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.arrivedBodies[it.Key]
}

// retryLater schedules a retry after a failure that was not the peer's answer.
func (ps *peerSender) retryLater(it backlog.Item, why string) {
	o := ps.o
	n := o.note(it.Key, func(n *deliveryState) {
		n.tries++
		n.code, n.detail, n.at = 0, why, o.cfg.Clock.Now()
	})
	o.backlog.Release(it.Key, backoff(n.tries, rand.Float64()))
}

// release requeues unanswered entries when the link ends. The target may have
// received them; that is recorded before they can be taken again.
func (ps *peerSender) release() {
	ps.mu.Lock()
	inflight := ps.inflight
	idle := append(ps.bodies, ps.bodySent...)
	ps.inflight, ps.bodies, ps.bodySent = nil, nil, nil
	ps.mu.Unlock()
	for _, f := range inflight {
		ps.unanswered(f.item, "the link broke before the answer")
	}
	for _, it := range idle {
		ps.o.backlog.Release(it.Key, 0)
	}
	ps.o.backlog.WakeGroup(ps.group) // wakes the sender that has replaced this one
}

// unanswered requeues a sent entry whose answer is missing, so that the target
// may have it.
func (ps *peerSender) unanswered(it backlog.Item, why string) {
	ps.o.note(it.Key, func(n *deliveryState) { n.linkBroke, n.brokeAt = true, ps.o.cfg.Clock.Boot() })
	ps.retryLater(it, why)
}

// jitter returns a random delay for one of many entries that become due together.
func jitter() time.Duration { return rand.N(retrySpread) }

// RetryNow soon resends what p refused with one of these codes, instead of after
// a backoff, because p has announced that it accepts it now. This is only a hint:
// entries refused again wait as before.
func (o *Outbox) RetryNow(p proto.PeerID, codes ...proto.Code) {
	o.hints.put(p, codes, o.cfg.Clock.Boot())
	refused := o.deliveries.refusedAs(codes)
	o.backlog.MakeDue(string(p[:]), func(k backlog.Key) time.Duration {
		if !refused[k] {
			return -1
		}
		return jitter()
	})
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
