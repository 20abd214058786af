package mailbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// Limits of what the programs of one peer have at the boxes of this node, and of this node at
// those of one peer.
const (
	maxRemoteReaders = 256              // sessions
	maxOpens         = 1024             // messages about sessions that were not looked at yet
	remoteGrace      = 15 * time.Second // a session without a path to its reader goes on for so long
)

// readerServer serves readers on other nodes at the boxes of this one. It keeps nothing: their
// sessions are in the exchange with each peer.
type readerServer struct {
	boot      uint64 // of this start
	clock     clock.Clock
	log       *slog.Logger
	fail      func(point string) error
	book      *addressbook.Book
	ledger    *ledgerOpener
	admission *admission
	exchanges *exchanges
	messages  *messages
}

// remoteReaders are the sessions of the programs of one peer at the boxes of this node. They
// outlive a link by remoteGrace.
type remoteReaders struct {
	mu       sync.Mutex
	opens    []*proto.Open // in order, not looked at yet
	arrived  chan struct{} // something was added to opens, or stream is another one
	sessions map[uint64]*remoteReader
	stream   *transport.MailStream // on which deliveries were sent last
}

// A remoteReader is a session of a program of a peer. Its goroutine sends what is leased to
// it. The fields are guarded by the mu of the remoteReaders.
type remoteReader struct {
	number  uint64
	place   place
	sub     string
	session *mail.Session

	credit    int
	room      int           // bytes that may be on their way behind received, at most remoteWindow
	received  uint64        // newest delivery that has come
	flight    []sentMail    // behind it
	changed   chan struct{} // room or received is another one
	end       proto.ReadEnd // as the reader asked for
	interrupt func()        // ends the wait for mail and for room; nil: it has no goroutine
	since     time.Duration // monotonic time since when it has none
}

// A sentMail is a delivery on its way.
type sentMail struct {
	number uint64
	size   int
}

// change notes what an Open says of its session.
func (x *remoteReader) change(o *proto.Open, boot uint64) (more int) {
	if o.GetBoot() == boot {
		x.received = max(x.received, o.GetReceived())
	}
	for len(x.flight) > 0 && x.flight[0].number <= x.received {
		x.flight = x.flight[1:]
	}
	more = max(int(o.GetCredit())-x.credit, 0)
	x.credit, x.room = x.credit+more, int(min(o.GetRoom(), remoteWindow))
	signal(x.changed)
	return more
}

// fits returns how many of the first deliveries may be sent now in one message.
func (x *remoteReader) fits(given []mail.Delivery) (n int) {
	left, size := x.room, 0
	for _, s := range x.flight {
		left -= s.size
	}
	for ; n < min(len(given), proto.MaxBundle); n++ {
		if size += len(given[n].Letter); size > min(left, proto.MaxLetters) {
			break
		}
	}
	return n
}

// receiveOpen takes an Open of a peer.
func (x *exchange) receiveOpen(o *proto.Open) error {
	r := &x.readers
	r.mu.Lock()
	full := len(r.opens) >= maxOpens
	if !full {
		r.opens = append(r.opens, o)
	}
	r.mu.Unlock()
	if full {
		return fmt.Errorf("%w: %d messages about sessions were not looked at", ErrTooManyBundles, maxOpens)
	}
	signal(r.arrived)
	return nil
}

// signal puts one into a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take returns what was not looked at yet, and when deliveries are lost.
func (r *remoteReaders) take() ([]*proto.Open, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	opens := r.opens
	r.opens = nil
	if r.stream == nil {
		return opens, nil
	}
	return opens, r.stream.Done()
}

// serve serves the sessions of a peer at the boxes of this node until the link ends.
func (v *readerServer) serve(ctx context.Context, l *transport.Link, r *remoteReaders) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	r.lose() // the stream of the last link
	for _, x := range r.waiting() {
		v.tell(ctx, l, &proto.Opened{Session: x, Code: proto.CodeBusy})
	}
	for {
		opens, lost := r.take()
		for _, o := range opens {
			v.takeOpen(ctx, l, r, o, &serving)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.arrived:
		case <-lost:
			r.lose()
		}
	}
}

// waiting returns the sessions that wait for their reader.
func (r *remoteReaders) waiting() (all []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, x := range r.sessions {
		if x.interrupt == nil {
			all = append(all, n)
		}
	}
	return all
}

// lose ends the goroutines of all sessions: what they sent last may be lost.
func (r *remoteReaders) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream = nil
	r.interrupt()
}

// interrupt ends the goroutines of all sessions. The caller holds mu.
func (r *remoteReaders) interrupt() {
	for _, x := range r.sessions {
		if x.interrupt != nil {
			x.interrupt()
		}
	}
}

// tell sends an answer about a session, unless ctx ends. If it is lost, the peer asks again.
func (v *readerServer) tell(ctx context.Context, l *transport.Link, o *proto.Opened) {
	if _, err := v.messages.send(ctx, l, proto.TypeOpened, o); err != nil && ctx.Err() == nil {
		v.log.Debug("a reader of mail was not answered", "peer", l.Peer(), "why", err)
	}
}

// takeOpen does what an Open asks for.
func (v *readerServer) takeOpen(ctx context.Context, l *transport.Link, r *remoteReaders, o *proto.Open, serving *sync.WaitGroup) {
	answer := &proto.Opened{Session: o.GetSession()}
	waiting, interrupt := context.WithCancel(ctx)
	r.mu.Lock()
	x := r.sessions[o.GetSession()]
	switch {
	case x == nil && o.GetEnd() != proto.ReadGoesOn:
		r.mu.Unlock()
		interrupt()
		answer.Ended = true
		v.tell(ctx, l, answer)
		return
	case x == nil:
		r.mu.Unlock()
		var why refused
		if x, why = v.begin(ctx, l.Peer(), r, o); x == nil {
			interrupt()
			why.tell(answer)
			v.tell(ctx, l, answer)
			return
		}
		r.mu.Lock()
		x.interrupt = interrupt
		r.sessions[x.number] = x
		r.mu.Unlock()
	case x.interrupt != nil:
		more := x.change(o, v.boot)
		if o.GetEnd() != proto.ReadGoesOn {
			x.end = o.GetEnd()
			x.interrupt()
		}
		r.mu.Unlock()
		interrupt()
		if more > 0 {
			_ = x.session.AddCredit(ctx, more) // a broker that has ended ends the session
		}
		return
	default:
		more := x.change(o, v.boot)
		x.flight, x.interrupt, x.end = nil, interrupt, o.GetEnd()
		received := x.received
		r.mu.Unlock()
		answer.Resumed = true
		_ = x.session.Resume(ctx, received) // a broker that has ended ends the session
		_ = x.session.AddCredit(ctx, more)
		if o.GetEnd() != proto.ReadGoesOn {
			interrupt()
		}
	}
	v.tell(ctx, l, answer)
	serving.Go(func() {
		defer interrupt()
		v.serveOne(ctx, waiting, l, r, x)
	})
}

// A refused is why a peer may not read or settle; the zero value: it may.
type refused struct {
	code       proto.Code
	detail     string
	home       proto.PeerID // of MOVED
	generation uint64
}

// tell puts the reason into an answer.
func (f refused) tell(o *proto.Opened) {
	o.Code, o.Detail = f.code, cutReason(f.detail)
	if f.code == proto.CodeMoved {
		o.Home, o.Generation = f.home[:], f.generation
	}
}

// begin begins a session of a program of a peer.
func (v *readerServer) begin(ctx context.Context, from proto.PeerID, r *remoteReaders, o *proto.Open) (*remoteReader, refused) {
	p, k, why := v.admission.readableBy(ctx, from, o.GetBox())
	if why.code != proto.CodeOK {
		return nil, why
	}
	if why := v.makeRoom(ctx, r); why.code != proto.CodeOK {
		return nil, why
	}
	x := &remoteReader{number: o.GetSession(), place: p, sub: o.GetSubscription(), changed: make(chan struct{}, 1)}
	x.change(o, 0)
	var err error
	x.session, err = k.Read(ctx, mail.Reading{Box: p.name, Subscription: x.sub, Reader: v.readerOf(from, o.GetReader()), Priority: int(o.GetPriority()), Credit: x.credit})
	var held *box.HeldError
	switch {
	case err == nil:
		return x, refused{}
	case errors.Is(err, box.ErrNotFound):
		return nil, refused{code: proto.CodeNoHandler, detail: "there is no such subscription"}
	case errors.As(err, &held):
		return nil, refused{code: proto.CodeHeld, detail: fmt.Sprintf("it has one reader at a time, and %q reads it", held.Reader)}
	case errors.Is(err, box.ErrTooManySessions):
		return nil, refused{code: proto.CodeFull, detail: fmt.Sprintf("it has %d readers, the limit", box.MaxSessions)}
	}
	return nil, refused{code: proto.CodeDraining, detail: "the node is stopping"}
}

// makeRoom ends the sessions that wait for their reader, if there are too many.
func (v *readerServer) makeRoom(ctx context.Context, r *remoteReaders) refused {
	if r.count() >= maxRemoteReaders {
		v.endWaiting(ctx, r, math.MaxInt64)
	}
	if r.count() >= maxRemoteReaders {
		return refused{code: proto.CodeFull, detail: fmt.Sprintf("the node has %d sessions here, the limit", maxRemoteReaders)}
	}
	return refused{}
}

func (r *remoteReaders) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sessions)
}

// endWaiting ends the sessions that have waited for their reader since a time or longer: it
// broke off.
func (v *readerServer) endWaiting(ctx context.Context, r *remoteReaders, since time.Duration) {
	r.mu.Lock()
	var over []*remoteReader
	for n, x := range r.sessions {
		if x.interrupt == nil && x.since <= since {
			over = append(over, x)
			delete(r.sessions, n)
		}
	}
	r.mu.Unlock()
	for _, x := range over {
		_ = x.session.Close(ctx, true) // a broker that has ended does not mind
	}
}

// endLostReaders ends the sessions of readers that are gone, until ctx is done.
func (v *readerServer) endLostReaders(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		since := v.clock.Mono() - remoteGrace
		for _, x := range v.exchanges.list() {
			v.endWaiting(ctx, &x.readers, since)
		}
	}
}

// readerOf returns the name of a session of a peer: what it says, and which peer it is.
func (v *readerServer) readerOf(from proto.PeerID, reader string) string {
	peer := "@" + v.book.NameOf(from)
	peer = peer[:min(len(peer), box.MaxReader)]
	return strings.ToValidUTF8(reader[:min(len(reader), box.MaxReader-len(peer))], "") + peer
}

var errUnallowed = errors.New("mailbox: the peer may not read the box any more")

// serveOne sends what is leased to a session, until it ends or the link does.
func (v *readerServer) serveOne(ctx, waiting context.Context, l *transport.Link, r *remoteReaders, x *remoteReader) {
	for {
		given, err := x.session.Next(waiting, proto.MaxBundle)
		if err == nil {
			err = v.deliver(ctx, waiting, l, r, x, given)
		}
		if err == nil {
			continue
		}
		r.mu.Lock()
		end := x.end
		r.mu.Unlock()
		switch {
		case ctx.Err() != nil, end == proto.ReadGoesOn && waiting.Err() != nil, errors.Is(err, mail.ErrStopped), errors.Is(err, mail.ErrUnknown):
			r.mu.Lock()
			x.interrupt, x.since = nil, v.clock.Mono()
			r.mu.Unlock()
			v.tell(ctx, l, &proto.Opened{Session: x.number, Code: proto.CodeBusy})
		default:
			v.end(ctx, l, r, x, end, err)
		}
		return
	}
}

// end ends a session as its reader asked for, or because of an error.
func (v *readerServer) end(ctx context.Context, l *transport.Link, r *remoteReaders, x *remoteReader, end proto.ReadEnd, err error) {
	answer := &proto.Opened{Session: x.number, Ended: true}
	switch {
	case end == proto.ReadLeave:
		v.leave(ctx, l, r, x)
	case end != proto.ReadGoesOn:
		_ = x.session.Close(ctx, end == proto.ReadAbandon) // a broker that has ended does not mind
	default:
		_ = x.session.Close(ctx, false)
		_, _, why := v.admission.readableBy(ctx, l.Peer(), x.place.name)
		if why.code == proto.CodeOK && errors.Is(err, mail.ErrGone) {
			why = refused{code: proto.CodeNoHandler, detail: "it was removed"}
		} else if why.code == proto.CodeOK {
			why = refused{code: proto.CodeInternal, detail: err.Error()}
		}
		answer.Ended = false
		why.tell(answer)
	}
	r.mu.Lock()
	delete(r.sessions, x.number)
	r.mu.Unlock()
	v.tell(ctx, l, answer)
}

// leave sends what is there now, and leaves the session: what was sent stays leased.
func (v *readerServer) leave(ctx context.Context, l *transport.Link, r *remoteReaders, x *remoteReader) {
	ended, end := context.WithCancel(ctx)
	end()
	_ = x.session.AddCredit(ctx, 0) // what was there before is leased when it returns
	if given, _ := x.session.Next(ended, proto.MaxBundle); len(given) > 0 {
		_ = v.deliver(ctx, ended, l, r, x, given) // what is lost lapses
	}
	_ = x.session.Leave(ctx)
}

// deliver sends mails that are leased to a session. While there is no room it waits; if
// that ends, or the peer may not read any more, it gives back those that were not sent.
func (v *readerServer) deliver(ctx, waiting context.Context, l *transport.Link, r *remoteReaders, x *remoteReader, given []mail.Delivery) error {
	for len(given) > 0 {
		err := error(nil)
		if _, _, why := v.admission.readableBy(ctx, l.Peer(), x.place.name); why.code != proto.CodeOK {
			err = errUnallowed
		}
		r.mu.Lock()
		n := x.fits(given)
		for _, d := range given[:n] {
			x.flight = append(x.flight, sentMail{d.Handle.N, len(d.Letter)})
		}
		r.mu.Unlock()
		if err == nil && n == 0 {
			select {
			case <-x.changed:
				continue
			case <-waiting.Done():
				err = waiting.Err()
			}
		}
		if err != nil {
			return errors.Join(err, v.giveBack(ctx, x, given))
		}
		if err := v.fail(PointLeased); err != nil {
			return err
		}
		stream, err := v.messages.send(ctx, l, proto.TypeDeliver, x.deliver(given[:n]))
		if err != nil {
			r.lose() // those that were sent may be lost, too
			return waiting.Err()
		}
		if given = given[n:]; r.sentOn(stream) {
			signal(r.arrived)
		}
	}
	return nil
}

// sentOn notes the stream on which deliveries were sent, and reports whether it is another
// one. With the one before, which nobody has missed yet, deliveries may be lost.
func (r *remoteReaders) sentOn(s *transport.MailStream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	other := r.stream != s
	if other && r.stream != nil {
		r.interrupt()
	}
	r.stream = s
	return other
}

// giveBack gives back, for nothing, mails that were not sent.
func (v *readerServer) giveBack(ctx context.Context, x *remoteReader, given []mail.Delivery) error {
	_, err := v.ledger.broker().Settle(context.WithoutCancel(ctx), x.place.name, x.sub, returned(given))
	return err
}

// deliver returns the message for deliveries.
func (x *remoteReader) deliver(given []mail.Delivery) *proto.Deliver {
	m := &proto.Deliver{Session: x.number, Boot: given[0].Handle.Boot}
	for _, d := range given {
		one := &proto.Delivery{Seq: d.Handle.Seq, Number: d.Handle.N, Attempt: uint32(d.Attempt), Redelivered: d.Redelivered, LeaseMs: uint32(min(d.Lease.Milliseconds(), math.MaxUint32))}
		if !d.From.IsZero() {
			one.Origin = d.From[:]
		}
		m.Deliveries = append(m.Deliveries, one)
		m.Letters = append(m.Letters, d.Letter...)
	}
	return m
}

// settleOps are what a reader on another node can do with a delivery.
var settleOps = map[proto.SettleVerb]box.Op{
	proto.SettleAck: box.Ack, proto.SettleNack: box.Nack, proto.SettleFinal: box.Final, proto.SettleExtend: box.Extend,
	proto.SettleDefer: box.Defer, proto.SettleBounce: box.Bounce, proto.SettleReturn: box.Return,
}

// receiveSettle takes what the programs of a peer did with deliveries.
func (v *readerServer) receiveSettle(ctx context.Context, from proto.PeerID, s *proto.Settle) error {
	x := v.exchanges.with(from)
	if x.isFull() {
		return ErrTooManyBundles
	}
	if err := v.fail(PointSettle); err != nil {
		return err
	}
	p, k, why := v.admission.readableBy(ctx, from, s.GetBox())
	if why.code != proto.CodeOK {
		x.add(settledAs(ctx, &proto.Settled{Ref: s.GetRef(), Code: why.code, Detail: cutReason(why.detail)}))
		return nil
	}
	what := make([]mail.Settlement, len(s.GetSettlements()))
	for i, y := range s.GetSettlements() {
		what[i] = mail.Settlement{
			Handle: box.Handle{Seq: y.GetSeq(), Boot: y.GetBoot(), N: y.GetDelivery()}, Op: settleOps[y.GetVerb()], Delay: time.Duration(y.GetDelayMs()) * time.Millisecond,
			Reason: ToldReason(y.GetReason()),
		}
	}
	settling, err := k.QueueSettle(p.name, s.GetSubscription(), what)
	if err != nil {
		return err
	}
	ref, extends, size := s.GetRef(), extensions(what), settleSize*len(what) // the rest is not kept until the peer takes its answer
	x.add(arrival{wait: func(ctx context.Context) (proto.MessageType, proto.Body, error) {
		settled, err := settling.Wait(ctx)
		if errors.Is(err, box.ErrNotFound) {
			return proto.TypeSettled, &proto.Settled{Ref: ref, Code: proto.CodeNoHandler, Detail: "there is no such subscription"}, nil
		}
		if err == nil {
			x.offerBodies(k, p, what, settled)
			err = v.fail(PointSettled)
		}
		return proto.TypeSettled, settledOf(ref, extends, settled), err
	}, closed: ctx.Done(), size: answerSize + settledSize*len(what)})
	return x.wait(ctx, writing{settling.IsDone, func(ctx context.Context) error {
		_, err := settling.Wait(ctx)
		if errors.Is(err, box.ErrNotFound) {
			return nil
		}
		return err
	}, size})
}

// What settlements need in memory, about, in bytes.
const (
	settleSize  = 512 // one that is being written
	settledSize = 32  // the answer to one
	answerSize  = 256 // a message with answers
)

// settledAs returns an answer that is known already.
func settledAs(ctx context.Context, s *proto.Settled) arrival {
	return arrival{wait: func(context.Context) (proto.MessageType, proto.Body, error) { return proto.TypeSettled, s, nil }, closed: ctx.Done(), size: answerSize}
}

// extensions returns which settlements extend a lease.
func extensions(what []mail.Settlement) []bool {
	extends := make([]bool, len(what))
	for i, w := range what {
		extends[i] = w.Op == box.Extend
	}
	return extends
}

// settledOf returns the answer to a Settle.
func settledOf(ref uint64, extends []bool, settled []mail.Settled) *proto.Settled {
	out := &proto.Settled{Ref: ref}
	for i, r := range settled {
		switch {
		case r.Code != proto.CodeOK:
			out.Unsettled = append(out.Unsettled, &proto.Unsettled{Index: uint32(i), Code: r.Code})
		case extends[i]:
			out.Extended = append(out.Extended, &proto.Extended{Index: uint32(i), LeaseMs: uint64(r.Lease.Milliseconds()), Inline: r.Inline})
		}
	}
	return out
}
