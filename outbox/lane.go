package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A Link is an open task stream to one peer.
type Link interface {
	// Peer is who is at the other end, authenticated.
	Peer() proto.PeerID
	// Send sends messages in order and returns once they are on their way; it
	// blocks while too much is unanswered. DATA, RESULT and CANCEL are numbered
	// from 1 on each link, a MARK is not.
	Send(ctx context.Context, msgs []*proto.Message) error
	// Answers returns the next acknowledgement, in the order in which they came.
	Answers(ctx context.Context) (*proto.Ack, error)
}

// Sizes and times of a lane.
const (
	takeAtOnce   = 64                     // entries, so that an urgent one waits for few others
	bodiesAtOnce = 2                      // streamed bodies under way
	bodiesKept   = 16                     // streamed bodies that wait in the lane for that
	bodyPause    = time.Second            // of one more than that
	acksKept     = 64                     // acknowledgements that wait to be written down together
	markEvery    = 256                    // settled tasks between two marks
	markQuiet    = 100 * time.Millisecond // of nothing to send, after which a mark is due
	lookEvery    = 5 * time.Second        // at most between two looks at the clock
	hurrySpread  = 500 * time.Millisecond // over which retries are spread when a link comes up
)

// A lane carries the entries of one peer over one link.
type lane struct {
	o     *Outbox
	link  Link
	peer  proto.PeerID
	group string
	items []backlog.Item
	acks  chan *proto.Ack
	kick  chan struct{} // something happened that the sender should look at

	mu      sync.Mutex
	flying  []flight       // sent and not answered, in the order of their numbers
	first   uint64         // number of flying[0]
	bodies  []backlog.Item // wait for their streamed body to be sent
	carried []backlog.Item // whose streamed body is on the other side
	arrived map[backlog.Key]bool
	busy    int // bodies under way
	moved   int // tasks settled since the last mark
}

// A flight is an entry that was sent.
type flight struct {
	item backlog.Item
	rec  *proto.Record // as it was then
}

// Serve carries what is there for link.Peer() until the link or ctx ends, and
// returns why. What was not answered by then waits for the next link.
func (o *Outbox) Serve(ctx context.Context, link Link) error {
	p := link.Peer()
	if err := o.linkUp(ctx, p); err != nil {
		return err
	}
	defer o.linkDown(p)
	l := &lane{
		o: o, link: link, peer: p, group: string(p[:]), first: 1,
		acks: make(chan *proto.Ack, acksKept), kick: make(chan struct{}, 1), arrived: map[backlog.Key]bool{},
	}
	defer l.release()
	o.backlog.Hurry(l.group, func(backlog.Key) time.Duration { return o.soon() })
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.listen(ctx) })
	g.Go(func() error { return l.answer(ctx) })
	g.Go(func() error { return l.send(ctx, g) })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("outbox: link to %s: %w", p.Short(), err)
	}
	return nil
}

// listen takes acknowledgements off the link.
func (l *lane) listen(ctx context.Context) error {
	for {
		ack, err := l.link.Answers(ctx)
		if err != nil {
			return err
		}
		select {
		case l.acks <- ack:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// send sends what is due, the most urgent first, and waits when nothing is.
func (l *lane) send(ctx context.Context, g *errgroup.Group) error {
	for {
		l.startBodies(ctx, g)
		items := l.take()
		if len(items) == 0 {
			if err := l.pause(ctx); err != nil {
				return err
			}
			continue
		}
		if msgs := l.pack(items); len(msgs) > 0 {
			if err := l.link.Send(ctx, msgs); err != nil {
				return err
			}
		}
		if err := l.mark(ctx, markEvery); err != nil {
			return err
		}
	}
}

// take returns what to send next: first what has its body on the other side.
func (l *lane) take() []backlog.Item {
	l.mu.Lock()
	l.items = append(l.items[:0], l.carried...)
	l.carried = l.carried[:0]
	l.mu.Unlock()
	if len(l.items) == 0 {
		l.items = l.o.backlog.Take(l.items, l.group, takeAtOnce)
	}
	return l.items
}

// pause waits until there may be something to send. A quiet lane sends its mark.
func (l *lane) pause(ctx context.Context) error {
	wait := lookEvery
	if next, ok := l.o.backlog.Next(l.group); ok {
		wait = min(wait, next)
	}
	l.mu.Lock()
	quiet := l.moved > 0
	l.mu.Unlock()
	if quiet {
		wait = min(wait, markQuiet)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-l.o.backlog.Wake(l.group):
	case <-l.kick:
	case <-t.C:
		return l.mark(ctx, 1)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// mark sends the settled mark when at least so many tasks were settled since the
// last one.
func (l *lane) mark(ctx context.Context, least int) error {
	l.mu.Lock()
	due := l.moved >= least
	if due {
		l.moved = 0
	}
	l.mu.Unlock()
	if !due {
		return nil
	}
	m := l.o.Mark(l.peer)
	payload, err := proto.Encode(nil, &proto.Mark{Boot: m.Boot, Counter: m.Counter})
	if err != nil {
		return fmt.Errorf("encode the settled mark: %w", err)
	}
	return l.link.Send(ctx, []*proto.Message{{Type: proto.TypeMark, Payload: payload}})
}

// startBodies sends the streamed bodies that wait, a few at a time.
func (l *lane) startBodies(ctx context.Context, g *errgroup.Group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy < bodiesAtOnce && len(l.bodies) > 0 {
		it := l.bodies[0]
		l.bodies = l.bodies[1:]
		l.busy++
		g.Go(func() error { return l.body(ctx, it) })
	}
}

// body sends one streamed body. When it fails the entry waits for another try,
// when the peer will not take it that is an answer; the link goes on.
func (l *lane) body(ctx context.Context, it backlog.Item) error {
	st, err := l.o.backlog.Read(it)
	if err == nil {
		err = l.offer(ctx, it, st)
	}
	l.mu.Lock()
	l.busy--
	if err == nil {
		l.carried = append(l.carried, it)
		l.arrived[it.Key] = true
	}
	l.mu.Unlock()
	defer signal(l.kick)
	if err == nil {
		return nil
	}
	if no, ok := errors.AsType[BodyRefusal](err); ok && no.Refusal().GetCode() != proto.CodeNeedBody {
		return l.follow(ctx, []answered{{flight: flight{it, st.Record}, refusal: no.Refusal()}})
	}
	l.failed(it, "send its body: "+err.Error())
	return nil
}

// offer shows the envelope of a streamed body and sends it.
func (l *lane) offer(ctx context.Context, it backlog.Item, st *proto.Stored) error {
	env, err := l.wrapped(it, st)
	if err != nil {
		return err
	}
	kind := proto.TypeData
	if it.Key.Part == backlog.PartResult {
		kind = proto.TypeResult
	}
	return l.o.cfg.Bodies.Send(ctx, l.peer, &proto.Offer{Envelope: env, Type: kind}, st.Record.BodyBlob)
}

// wantBody has the streamed body of an entry sent first.
func (l *lane) wantBody(it backlog.Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.arrived, it.Key)
	if len(l.bodies) >= bodiesKept {
		l.o.backlog.Release(it.Key, bodyPause)
		return
	}
	l.bodies = append(l.bodies, it)
	signal(l.kick)
}

// hasBody reports whether the streamed body of an entry is on the other side.
func (l *lane) hasBody(it backlog.Item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.arrived[it.Key]
}

// failed lets an entry wait after a failure that was not the peer's word.
func (l *lane) failed(it backlog.Item, why string) {
	o := l.o
	n := o.notes.update(it.Key, func(n *note) {
		n.tries++
		n.code, n.detail, n.at = 0, why, o.cfg.Clock.Now()
	})
	o.backlog.Release(it.Key, o.backoff(n.tries))
}

func (o *Outbox) backoff(tries int) time.Duration {
	return backoff(o.cfg.BaseBackoff, o.cfg.MaxBackoff, tries, o.cfg.Rand())
}

// release gives back what was not answered when the link ended. The target may
// have it, which is noted before anybody can take it again.
func (l *lane) release() {
	l.mu.Lock()
	flying := l.flying
	idle := append(l.bodies, l.carried...)
	l.flying, l.bodies, l.carried = nil, nil, nil
	l.mu.Unlock()
	o := l.o
	now, boot := o.cfg.Clock.Now(), o.cfg.Clock.Boot()
	for _, f := range flying {
		n := o.notes.update(f.item.Key, func(n *note) {
			n.tries++
			n.code, n.detail, n.at = 0, "the link broke before it was answered", now
			n.broke, n.since = true, boot
		})
		o.backlog.Release(f.item.Key, o.backoff(n.tries))
	}
	for _, it := range idle {
		o.backlog.Release(it.Key, 0)
	}
	o.backlog.Resume(l.group) // rings for a lane that has replaced this one
}

// soon returns the wait of one of many entries that become due together.
func (o *Outbox) soon() time.Duration { return time.Duration(o.cfg.Rand() * float64(hurrySpread)) }

// Hurry sends what p refused with one of these codes soon, instead of after a
// backoff, because p has said that it takes it now. It is a hint: what is refused
// again waits as before.
func (o *Outbox) Hurry(p proto.PeerID, codes ...proto.Code) {
	o.hints.put(p, codes, o.cfg.Clock.Boot())
	refused := o.notes.refusedAs(codes)
	o.backlog.Hurry(string(p[:]), func(k backlog.Key) time.Duration {
		if !refused[k] {
			return -1
		}
		return o.soon()
	})
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
