package mailbox

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

const (
	remoteWindow = 1 << 20          // bytes of the letters of a session that its program has not taken yet
	remoteRepeat = 30 * time.Second // sessions and settlements are told again, if an answer was lost
	maxSettles   = 16384            // settlements without an answer of one peer
	maxAwaited   = maxAnswers / 4   // Settles that wait for one peer's answer at a time: it ends the stream at maxAnswers
)

// A remoteHome is what programs of this node read at one peer, the home of the boxes.
//
//	program ─▶ session ─▶ due ─▶ OPEN   ──▶ remoteReader of the peer
//	        ◀── queue ◀───────── DELIVER ◀──┘
//	        ─▶ settle ─▶ due ─▶ SETTLE  ──▶ SETTLED
//
// Sessions and settlements without an answer outlive a link: they are told again on the next
// one.
type remoteHome struct {
	peer   proto.PeerID
	name   func() string        // of the peer
	number func() uint64        // returns another one for each session and each Settle
	now    func() time.Duration // that of the boot clock
	due    chan struct{}        // something is to be sent

	mu       sync.Mutex
	linked   bool
	sessions map[uint64]*remoteSession
	ended    map[uint64]*proto.Open   // of sessions that ended without a path, until the home knows it: at most maxRemoteReaders
	endedDue bool                     // they are to be told
	settles  map[uint64]*remoteSettle // without an answer, by ref
	order    list.List                // the same ones, the oldest first
	settling int                      // settlements in them
	awaited  int                      // of settles: those that were sent since they were last repeated
	held     bool                     // others are not sent before some of these are answered
}

// A remoteSession is a session of a program of this node at a box of a peer. The fields are
// guarded by the mu of its home. One goroutine takes the mail.
type remoteSession struct {
	home  *remoteHome
	open  *proto.Open   // as it is told next, without room, boot and received
	fixed bool          // its room does not grow again: it takes one batch
	ready chan struct{} // something was added to queue, or err was set

	due    bool // it is to be told
	told   bool // it was
	opened bool // the peer has answered
	left   bool // its program is gone: what comes is given back
	room   int  // as it was told, without what has come since

	boot, received uint64 // the newest delivery
	queue          []remoteDelivery
	queued         int   // bytes of the letters in it, if fixed of all that came
	err            error // why it has ended
}

// A remoteDelivery is a mail that the program has not taken yet.
type remoteDelivery struct {
	mail.Delivery
	until time.Duration // the end of its lease, by the boot clock
}

// A remoteSettle is what programs did with deliveries.
type remoteSettle struct {
	msg     *proto.Settle
	elem    *list.Element  // in the order of its home
	at      []int          // where the settlements of msg are in settled
	settled []mail.Settled // with what this node can answer itself
	due     bool           // it is to be sent
	sent    bool           // it was
	until   time.Duration  // by the boot clock: who waits for the answer gives up
	answer  *proto.Settled
	done    chan struct{} // closed when there is an answer
}

// A remoteError is what a peer says of a session or of settlements that it refuses.
type remoteError struct {
	home    *remoteHome
	code    proto.Code
	detail  string
	movedTo proto.PeerID // of MOVED
}

func (e *remoteError) Error() string {
	return fmt.Sprintf("%s refuses: %s: %s", e.home.name(), e.code.Name(), e.detail)
}

// errSessionEnded is the end of a session as it was asked for.
var errSessionEnded = errors.New("mailbox: the session has ended")

// receive takes a message of the peer.
func (h *remoteHome) receive(m *proto.Message) error {
	switch m.GetType() {
	case proto.TypeOpened:
		o := new(proto.Opened)
		if err := decode(m, o); err != nil {
			return err
		}
		h.receiveOpened(o)
	case proto.TypeDeliver:
		d := new(proto.Deliver)
		if err := decode(m, d); err != nil {
			return err
		}
		return h.receiveDeliver(d)
	case proto.TypeSettled:
		s := new(proto.Settled)
		if err := proto.DecodeKnown(m.GetPayload(), s); err != nil {
			return err
		}
		return h.receiveSettled(s)
	}
	return nil // of a newer version
}

// receiveOpened takes the answer to an Open.
func (h *remoteHome) receiveOpened(o *proto.Opened) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[o.GetSession()]
	switch {
	case s == nil && (o.GetEnded() || o.GetCode() != proto.CodeOK && o.GetCode() != proto.CodeBusy):
		delete(h.ended, o.GetSession())
	case s == nil:
		h.tellEnded(o.GetSession())
	case o.GetCode() == proto.CodeBusy:
		s.tell()
	case o.GetCode() != proto.CodeOK:
		e := &remoteError{home: h, code: o.GetCode(), detail: o.GetDetail()}
		copy(e.movedTo[:], o.GetHome())
		s.finish(e)
	case o.GetEnded():
		s.finish(errSessionEnded)
	case !o.GetResumed(): // what an earlier session had was given back
		s.opened, s.received, s.queue, s.queued = true, 0, nil, 0
	default:
		s.opened = true
	}
}

// tellEnded tells the home again of a session that has ended, which it does not know.
func (h *remoteHome) tellEnded(session uint64) {
	if h.ended[session] != nil {
		h.endedDue = true
		signal(h.due)
	}
}

// forget ends the session, of which the home cannot be told now.
func (s *remoteSession) forget(err error) {
	if s.told && len(s.home.ended) < maxRemoteReaders {
		o := s.message(s.open.GetEnd())
		if o.End == proto.ReadLeave { // without mail, and now without a reader
			o.End = proto.ReadReturn
		}
		s.home.ended[o.Session] = o
	}
	s.finish(err)
}

// finish ends the session.
func (s *remoteSession) finish(err error) {
	delete(s.home.sessions, s.open.GetSession())
	if s.err == nil {
		s.err = err
	}
	signal(s.ready)
}

// tell lets the home be told of the session.
func (s *remoteSession) tell() {
	s.due = true
	signal(s.home.due)
}

// errMuch is the offense of a home that sends more than a session has room for, or more than
// any session can have credit for. What a session has credit for now is known to its home alone:
// leases lapse there, and operators settle there, too.
var errMuch = fmt.Errorf("%w: more than the session has room for", proto.ErrBadMail)

// receiveDeliver takes deliveries. Those for a session that has ended were given back there.
func (h *remoteHome) receiveDeliver(d *proto.Deliver) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[d.GetSession()]
	if s == nil {
		h.tellEnded(d.GetSession())
		return nil
	}
	if s.boot != d.GetBoot() {
		s.boot, s.received = d.GetBoot(), 0
	}
	all, letters := d.GetDeliveries(), d.GetLetters()
	switch {
	case len(s.queue)+len(all) > proto.MaxCredit, s.queued+len(letters) > remoteWindow:
		return errMuch
	case all[0].GetNumber() <= s.received:
		return fmt.Errorf("%w: delivery %d after %d", proto.ErrBadMail, all[0].GetNumber(), s.received)
	}
	s.queued, s.room = s.queued+len(letters), s.room-len(letters)
	var back []mail.Settlement
	for _, x := range all {
		var letter []byte
		var err error
		if letter, letters, err = proto.CutLetter(letters); err == nil {
			_, err = proto.ParseLetter(letter)
		}
		if err != nil {
			return err
		}
		lease := time.Duration(x.GetLeaseMs()) * time.Millisecond
		one := mail.Delivery{
			Handle: box.Handle{Seq: x.GetSeq(), Boot: d.GetBoot(), N: x.GetNumber()}, From: h.peer, Letter: letter,
			Attempt: int(min(x.GetAttempt(), 1<<20)), Redelivered: x.GetRedelivered(), Lease: lease,
		}
		if len(x.GetOrigin()) > 0 {
			copy(one.From[:], x.GetOrigin())
		}
		s.received = x.GetNumber()
		if s.left {
			back = append(back, mail.Settlement{Handle: one.Handle, Op: box.Return})
			continue
		}
		s.queue = append(s.queue, remoteDelivery{one, h.now() + lease})
	}
	if len(back) > 0 {
		_, _ = h.add(s.open.GetBox(), s.open.GetSubscription(), back) // if there are too many, they lapse
	}
	signal(s.ready)
	return nil
}

// receiveSettled takes the answer to a Settle.
func (h *remoteHome) receiveSettled(a *proto.Settled) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.settles[a.GetRef()]
	if s == nil {
		return nil // it was repeated, and answered before
	}
	if err := a.Check(len(s.msg.GetSettlements())); err != nil {
		return err
	}
	h.finish(s, a)
	return nil
}

// finish notes the answer to a Settle.
func (h *remoteHome) finish(s *remoteSettle, a *proto.Settled) {
	h.drop(s)
	s.answer = a
	close(s.done)
}

func (h *remoteHome) drop(s *remoteSettle) {
	if h.settles[s.msg.GetRef()] == s {
		delete(h.settles, s.msg.GetRef())
		h.order.Remove(s.elem)
		h.settling -= len(s.msg.GetSettlements())
		if !s.due {
			h.awaited--
		}
		if h.held && h.awaited <= maxAwaited/2 {
			h.held = false
			signal(h.due)
		}
	}
}

// tellHome tells a peer of what programs of this node read there, until the link ends.
func (r *reads) tellHome(ctx context.Context, l *transport.Link, h *remoteHome) error {
	h.link(true)
	defer h.link(false)
	tick := time.NewTicker(remoteRepeat)
	defer tick.Stop()
	var lost <-chan struct{}
	for {
		for typ, body := range h.takeDue() {
			stream, err := r.messages.send(ctx, l, typ, body)
			switch {
			case proto.Malformed(err):
				h.fail(body, err)
				continue
			case errors.Is(err, transport.ErrNoMail):
				h.link(false) // nothing will be told on it
				<-ctx.Done()
				return ctx.Err()
			case err != nil && ctx.Err() == nil:
				h.repeat()
			case err == nil:
				lost = stream.Done()
			}
			if err != nil {
				break
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.due:
			continue
		case <-lost:
			lost = nil
		case <-tick.C:
		}
		h.repeat()
	}
}

// fail answers what cannot be sent: it would never be.
func (h *remoteHome) fail(m proto.Body, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := m.(type) {
	case *proto.Open:
		if s := h.sessions[m.GetSession()]; s != nil {
			s.finish(&remoteError{home: h, code: proto.CodeBadForm, detail: err.Error()})
		}
	case *proto.Settle:
		if s := h.settles[m.GetRef()]; s != nil {
			h.finish(s, &proto.Settled{Ref: m.GetRef(), Code: proto.CodeBadForm, Detail: err.Error()})
		}
	}
}

// link notes whether there is a path to the peer. Sessions that were ending have ended with it,
// unless they have mail that must stay leased.
func (h *remoteHome) link(up bool) {
	h.mu.Lock()
	h.linked = up
	for _, s := range h.sessions {
		if !up && s.open.GetEnd() != proto.ReadGoesOn && !s.leaves() {
			s.forget(h.unreachable())
		}
	}
	h.mu.Unlock()
	if up {
		h.repeat()
	}
}

// repeat lets everything be told that has no answer, or whose answer may be old.
func (h *remoteHome) repeat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.sessions {
		s.tell()
	}
	for n := range h.ended {
		h.tellEnded(n)
	}
	h.awaited = 0
	for _, s := range h.settles {
		s.due = true
		signal(h.due)
	}
}

// takeDue returns what is to be sent, in order.
func (h *remoteHome) takeDue() func(yield func(proto.MessageType, proto.Body) bool) {
	var out []proto.Body
	h.mu.Lock()
	for e := h.order.Front(); e != nil; e = e.Next() {
		s := e.Value.(*remoteSettle)
		if s.due && h.awaited >= maxAwaited {
			h.held = true
			break
		}
		if s.due {
			s.due, s.sent = false, true
			h.awaited++
			out = append(out, s.msg)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(h.sessions)) {
		if s := h.sessions[n]; s.due {
			if !s.told && s.open.GetEnd() != proto.ReadGoesOn { // it begins first
				out = append(out, s.message(proto.ReadGoesOn))
			}
			s.due, s.told = false, true
			out = append(out, s.message(s.open.GetEnd()))
		}
	}
	if h.endedDue {
		h.endedDue = false
		for _, n := range slices.Sorted(maps.Keys(h.ended)) {
			out = append(out, h.ended[n])
		}
	}
	h.mu.Unlock()
	return func(yield func(proto.MessageType, proto.Body) bool) {
		for _, m := range out {
			typ := proto.TypeOpen
			if _, ok := m.(*proto.Settle); ok {
				typ = proto.TypeSettle
			}
			if !yield(typ, m) {
				return
			}
		}
	}
}

// message returns what the home is told of the session now.
func (s *remoteSession) message(end proto.ReadEnd) *proto.Open {
	s.room = remoteWindow - s.queued
	o := s.open
	return &proto.Open{
		Session: o.GetSession(), Box: o.GetBox(), Subscription: o.GetSubscription(), Priority: o.GetPriority(), Credit: o.GetCredit(), Reader: o.GetReader(),
		End: end, Room: uint32(s.room), Boot: s.boot, Received: s.received,
	}
}

// begin begins a session of a program at a box of the peer. It returns at once: what the peer
// says is the error of NextInto.
func (h *remoteHome) begin(p place, sub string, l wire.LeaseMail) (*remoteSession, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sessions) >= maxRemoteReaders {
		return nil, fmt.Errorf("%w: this node has %d sessions at %s, the limit", wire.ErrFull, maxRemoteReaders, h.name())
	}
	s := &remoteSession{home: h, ready: make(chan struct{}, 1), open: &proto.Open{
		Session: h.number(), Box: p.name, Subscription: sub, Priority: int32(l.Priority), Credit: uint32(min(max(l.Max, 1), proto.MaxCredit)),
		Reader: strings.ToValidUTF8(l.Reader[:min(len(l.Reader), box.MaxReader)], ""),
	}}
	h.sessions[s.open.GetSession()] = s
	s.tell()
	return s, nil
}

// NextInto implements [session]. The letters are not copied to buf: nobody writes to them.
func (s *remoteSession) NextInto(ctx context.Context, n int, dst []mail.Delivery, buf []byte) ([]mail.Delivery, []byte, error) {
	for {
		out, err := s.take(n, dst)
		if err != nil || len(out) > len(dst) {
			return out, buf, err
		}
		select {
		case <-ctx.Done():
			return dst, buf, ctx.Err()
		case <-s.ready:
		}
	}
}

// take appends what is there, or returns why there will be nothing more.
func (s *remoteSession) take(n int, dst []mail.Delivery) ([]mail.Delivery, error) {
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	n = min(n, len(s.queue))
	for _, d := range s.queue[:n] {
		d.Lease = max(d.until-s.home.now(), 0)
		dst = append(dst, d.Delivery)
		if !s.fixed {
			s.queued -= len(d.Letter)
		}
	}
	s.queue = slices.Delete(s.queue, 0, n)
	if n == 0 {
		return dst, s.err
	}
	if len(s.queue) > 0 || s.err != nil {
		signal(s.ready)
	}
	if s.room < remoteWindow/2 && remoteWindow-s.queued > remoteWindow/2 && s.err == nil {
		s.tell()
	}
	return dst, nil
}

// AddCredit implements [session].
func (s *remoteSession) AddCredit(_ context.Context, n int) error {
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	s.open.Credit = uint32(min(int(s.open.GetCredit())+max(n, 0), proto.MaxCredit))
	s.tell()
	return nil
}

// Close implements [session].
func (s *remoteSession) Close(_ context.Context, broke bool) error {
	if broke {
		s.end(proto.ReadAbandon)
	} else {
		s.end(proto.ReadReturn)
	}
	return nil
}

// end asks the peer to end the session. What comes meanwhile is for nobody, unless it is left.
func (s *remoteSession) end(how proto.ReadEnd) {
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	if s.err != nil {
		return
	}
	if s.open.GetEnd() == proto.ReadGoesOn {
		s.open.End = how
		s.tell()
	}
	if how != proto.ReadLeave {
		s.left = true
		s.err = errSessionEnded
		signal(s.ready)
		if !s.told || !s.home.linked && !s.leaves() {
			s.forget(s.err)
		}
	}
}

// leaves reports whether the session ends with mail that must stay leased.
func (s *remoteSession) leaves() bool { return s.open.GetEnd() == proto.ReadLeave && s.received > 0 }

// isOpen reports whether the peer has answered, and is there.
func (s *remoteSession) isOpen() (opened, linked bool) {
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	return s.opened, s.home.linked
}

// settleVerbs are the ops of a reader on the wire.
var settleVerbs = func() map[box.Op]proto.SettleVerb {
	verbs := map[box.Op]proto.SettleVerb{}
	for verb, op := range settleOps {
		verbs[op] = verb
	}
	return verbs
}()

// settle queues what a program did with deliveries of a box. The error wraps [wire.ErrFull].
func (h *remoteHome) settle(p place, sub string, what []mail.Settlement) (*remoteSettle, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.add(p.name, sub, what)
}

// add queues settlements: those that the home would take for an offense are answered here. The
// caller holds mu.
func (h *remoteHome) add(name, sub string, what []mail.Settlement) (*remoteSettle, error) {
	if h.settling+len(what) > maxSettles {
		h.dropOld(len(what))
	}
	if h.settling+len(what) > maxSettles {
		return nil, fmt.Errorf("%w: %s has not answered %d settlements, the limit", wire.ErrFull, h.name(), h.settling)
	}
	m := &proto.Settle{Ref: h.number(), Box: name, Subscription: sub}
	s := &remoteSettle{msg: m, settled: make([]mail.Settled, len(what)), until: h.now() + remoteAnswer, done: make(chan struct{})}
	for i, w := range what {
		if w.Handle.Seq == 0 || w.Handle.Boot == 0 || w.Handle.N == 0 {
			s.settled[i].Code = proto.CodeBadForm
			continue
		}
		s.at = append(s.at, i)
		m.Settlements = append(m.Settlements, &proto.Settlement{
			Seq: w.Handle.Seq, Boot: w.Handle.Boot, Delivery: w.Handle.N, Verb: settleVerbs[w.Op], DelayMs: uint64(w.Delay.Milliseconds()), Reason: cutReason(w.Reason),
		})
	}
	if len(s.at) == 0 {
		h.finish(s, &proto.Settled{})
		return s, nil
	}
	s.due = true
	h.settles[m.Ref], s.elem = s, h.order.PushBack(s)
	h.settling += len(s.at)
	signal(h.due)
	return s, nil
}

// dropOld makes room for n settlements, and some more, in place of the oldest that nobody waits
// for any more. What they were for is delivered again, if the peer did not get them.
func (h *remoteHome) dropOld(n int) {
	for e := h.order.Front(); e != nil && h.settling+n > maxSettles*15/16; e = h.order.Front() {
		s := e.Value.(*remoteSettle)
		if h.now() < s.until {
			return
		}
		h.drop(s)
	}
}

// wait returns the answers. Without one 15 s after it was queued it is not repeated any more; the
// error says whether the peer may have it.
func (h *remoteHome) wait(ctx context.Context, s *remoteSettle) ([]mail.Settled, error) {
	ctx, stop := context.WithTimeout(ctx, s.until-h.now())
	defer stop()
	select {
	case <-s.done:
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(s)
		switch {
		case s.answer != nil:
		case s.sent:
			return nil, fmt.Errorf("%w: %s has not answered: repeat it", store.ErrUnknown, h.name())
		default:
			return nil, h.unreachable()
		}
	}
	if s.answer.GetCode() != proto.CodeOK {
		return nil, &remoteError{home: h, code: s.answer.GetCode(), detail: s.answer.GetDetail()}
	}
	for _, x := range s.answer.GetUnsettled() {
		s.settled[s.at[x.GetIndex()]].Code = x.GetCode()
	}
	for _, x := range s.answer.GetExtended() {
		y := &s.settled[s.at[x.GetIndex()]]
		y.Lease, y.Inline = time.Duration(min(x.GetLeaseMs(), uint64(box.MaxLease.Milliseconds())))*time.Millisecond, x.GetInline()
	}
	return s.settled, nil
}

// unreachable is the error for a peer without a path to it.
func (h *remoteHome) unreachable() error {
	return timeoutError(fmt.Sprintf("%s cannot be reached: balefire-node why %[1]s says why", h.name()))
}

// A timeoutError says what a peer did not do in time.
type timeoutError string

func (e timeoutError) Error() string { return string(e) }

// Is makes it a [context.DeadlineExceeded].
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }
