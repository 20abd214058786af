package mailbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A box of the mesh is handed over as a copy of its state, which its next home adds to its ledger
// under another name, and serves when the mesh says that it is the home:
//
//	old home                                   new home
//	still: nothing of the box changes
//	bodies, then BOX_PART 1, 2, … ──────────▶  each on disk before its answer
//	                              ◀─ BOX_TAKEN
//	deed: the new home is the home ──────────▶ (by HANDOFF, as of a queue)
//	                                           serves the box
//	BOX_PART 0: is it served?     ──────────▶
//	removes the box               ◀─ BOX_TAKEN
//
// The deed decides. Before it, the old home lets the box go on when anything fails, and after a
// restart; the copy is of no use then, and goes. After it, the new home has a copy that is whole
// and the old one serves nobody, whatever dies; what is missing then is done by [handovers.follow]. If
// the new home has lost the copy, with its disk, the old home sends its mail on as mail.
//
// Of a box nothing is lost on the way: mails with their sequences, what is kept, dead letters,
// attempts, subscriptions and what they have read, numbers of chains. Not a part of it are leases,
// which end, the dedupe keys of mail that has ended, and what would let the new home act by the
// word of the old one: the handler of a mailbox is gone there, and a subscription that delivers
// into a box is paused.

const (
	partAnswer = 15 * time.Second       // wait for any answer to a part that is not on its way, however often it is sent
	partRepeat = 5 * time.Second        // such a part without an answer is sent again
	partLook   = time.Second            // how often it is looked whether a part is on its way
	partBusy   = 200 * time.Millisecond // one that the next home cannot take now is, too
	bodyTries  = 60                     // of sending a body
	bodyRepeat = time.Second            // wait before the next one
	serveWait  = 15 * time.Second       // wait for the next home to serve the box, before that goes on in the background
)

// handovers hands boxes of this node over to other homes.
type handovers struct {
	self      proto.PeerID
	log       *slog.Logger
	fail      func(point string) error
	audit     func(ctx context.Context, action, what string) error
	want      func(proto.PeerID)
	renamed   chan struct{}                                                                              // names of the mesh have other homes: lets homes look
	moved     func(ctx context.Context, k *mail.Broker, name string, home proto.PeerID, mails int) error // see [homes.tellMoved]
	book      *addressbook.Book
	names     Names
	ledger    *ledgerOpener
	places    *places
	rules     *rules
	bodies    *letterBodies
	exchanges *exchanges
	messages  *messages

	mu  sync.Mutex
	all map[string]*handing // of boxes that are handed over from here, by name; under mu
}

// A handing is a handover of a box of this node, or a question about one.
type handing struct {
	id      [16]byte
	answers chan *proto.BoxTaken
}

// handOff is [Boxes.Handoff].
func (t *handovers) handOff(ctx context.Context, name, to string) (wire.MovedBox, error) {
	p, k, err := t.places.existing(name)
	if err != nil {
		return wire.MovedBox{}, err
	}
	h := box.Handover{Generation: p.generation}
	_, _ = rand.Read(h.ID[:]) // it never fails
	x, ok := t.begin(p.name, h.ID)
	if !ok {
		return wire.MovedBox{}, fmt.Errorf("%w: %s is being handed over", wire.ErrRefused, p.text)
	}
	defer signal(t.renamed) // what is on disk decides: follow goes on with it
	defer t.end(p.name)
	next, err := t.nextHome(ctx, k, p, to)
	if err != nil {
		return wire.MovedBox{}, err
	}
	h.Peer = next
	if err := t.audit(ctx, p.kind+".handoff", p.text+" to "+t.book.NameOf(next)); err != nil {
		return wire.MovedBox{}, err
	}
	after := context.WithoutCancel(ctx)
	mails, err := t.copyTo(ctx, k, p, h, x)
	if err != nil {
		t.keep(after, k, p.name, h)
		return wire.MovedBox{}, fmt.Errorf("hand over %s: it stays here: %w", p.text, handoffFailure(p, err))
	}
	if err := t.names.HandOff(after, p.name, next); err != nil {
		return wire.MovedBox{}, fmt.Errorf("hand over %s: %w", p.text, err)
	}
	moved := wire.MovedBox{Box: p.text, Home: t.book.NameOf(next), Generation: p.generation + 1, Mails: mails}
	serving, stop := context.WithTimeout(after, serveWait)
	defer stop()
	for !moved.Served && serving.Err() == nil {
		state, err := t.askServed(serving, p.name, h, x)
		if moved.Served = err == nil && state == proto.CopyServed; moved.Served {
			return moved, t.leave(after, k, p.name, h)
		}
		clock.Pause(serving, partBusy)
	}
	return moved, nil
}

// nextHome returns the member that is to be the home of a box, if it and the box may be.
func (t *handovers) nextHome(ctx context.Context, k *mail.Broker, p place, to string) (proto.PeerID, error) {
	switch {
	case !k.Has(p.name):
		return proto.PeerID{}, noBox(p, "")
	case p.title == proto.TitleQueue:
		return proto.PeerID{}, fmt.Errorf("%w: %s is a mailbox of its node: only one of the mesh, made with --named, and a topic are handed over", wire.ErrRefused, p.text)
	case to == "":
		return proto.PeerID{}, invalid("to: name the member that is to be the home of %s", p.text)
	case k.HandoverOf(p.name).IsLeaving():
		return proto.PeerID{}, fmt.Errorf("%w: %s is being handed over", wire.ErrRefused, p.text)
	}
	m, err := t.book.Find(to)
	if err != nil {
		return proto.PeerID{}, err
	}
	return m.Peer, t.names.MayTake(ctx, p.name, m.Peer)
}

// A sentPart is a part that is sent once.
type sentPart struct {
	*proto.BoxPart
	at atomic.Pointer[onStream] // nil: it is not on a stream yet; without a stream: it never will be
}

// isOnWay reports whether the next home may receive the part, and has not.
func (s *sentPart) isOnWay() bool {
	at := s.at.Load()
	return at == nil || at.stream != nil && !at.taken() && !at.lost()
}

// isThere reports whether the next home has received the part.
func (s *sentPart) isThere() bool {
	at := s.at.Load()
	return at != nil && at.stream != nil && at.taken()
}

func (t *handovers) begin(name string, id [16]byte) (*handing, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[name] != nil {
		return nil, false
	}
	x := &handing{id: id, answers: make(chan *proto.BoxTaken, 1)}
	t.all[name] = x
	return x, true
}

func (t *handovers) end(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, name)
}

// copyTo lets a box be still and copies it to its next home. It returns how many mails wait in it.
func (t *handovers) copyTo(ctx context.Context, k *mail.Broker, p place, h box.Handover, x *handing) (mails int, err error) {
	t.rules.changing.Lock()
	settings, err := k.Stand(ctx, p.name, h)
	t.rules.changing.Unlock()
	if err != nil {
		return 0, err
	}
	if err := k.View(ctx, func(s *box.State) {
		id, _ := s.Find(p.name)
		i, _ := s.Info(id)
		mails = i.Waiting
	}); err != nil {
		return 0, err
	}
	c, err := k.Copy(ctx, p.name)
	if err != nil {
		return 0, err
	}
	settings.Handover = box.Handover{}
	first := t.part(p.name, h)
	first.Number, first.Settings = 1, box.EncodeBox(0, &settings)
	if _, err := t.ask(ctx, h.Peer, first, x); err != nil {
		return 0, err
	}
	piece, err := c.Next(ctx)
	for number := uint64(2); err == nil; number++ {
		m := t.part(p.name, h)
		m.Number, m.Records = number, piece.Records
		for _, o := range piece.Origins {
			m.Origins = append(m.Origins, o[:])
		}
		if err := t.sendBodies(ctx, p.name, h, x, piece.Bodies); err != nil {
			return 0, err
		}
		if piece, err = c.Next(ctx); err != nil {
			break
		}
		m.Last = len(piece.Records) == 0
		if err := t.fail(PointPart); err != nil {
			return 0, err
		}
		if _, err := t.ask(ctx, h.Peer, m, x); err != nil || m.Last {
			return mails, err
		}
	}
	return 0, err
}

func (t *handovers) part(name string, h box.Handover) *proto.BoxPart {
	return &proto.BoxPart{Box: name, Handover: h.ID[:], Generation: h.Generation}
}

// sendBodies sends the next home the bodies of mails. That may take long: it is asked about
// the copy meanwhile, so that it knows that this goes on.
func (t *handovers) sendBodies(ctx context.Context, name string, h box.Handover, x *handing, letters [][]byte) error {
	if len(letters) == 0 {
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	asking.Go(func() {
		for clock.Pause(ctx, partRepeat); ctx.Err() == nil; clock.Pause(ctx, partRepeat) {
			select {
			case t.exchanges.with(h.Peer).parts <- &sentPart{BoxPart: t.part(name, h)}: // nobody waits for the answer
			case <-ctx.Done():
			}
		}
	})
	for _, raw := range letters {
		if err := t.sendBody(ctx, name, h, x, raw); err != nil {
			if l, e := proto.ParseLetter(raw); e == nil {
				err = fmt.Errorf("the body of mail %s: %w", l.ID, err)
			}
			return err
		}
	}
	return nil
}

// sendBody sends the next home a body, some times if the path breaks or it is busy, as long as
// it has the copy.
func (t *handovers) sendBody(ctx context.Context, name string, h box.Handover, x *handing, raw []byte) error {
	for try := 1; ; try++ {
		err := t.bodies.send(ctx, h.Peer, &mail.MissingBody{Box: name, Letter: raw})
		refused, ok := errors.AsType[*mail.RefusedError](err)
		if err == nil || try == bodyTries || ok && refused.Code != proto.CodeBusy || errors.Is(err, mail.ErrNoBody) {
			return err
		}
		clock.Pause(ctx, bodyRepeat)
		if state, e := t.askServed(ctx, name, h, x); e != nil || state != proto.CopyParts {
			return errors.Join(err, e)
		}
	}
}

// ask sends the next home a part until it answers. One that cannot take it now is sent it again.
func (t *handovers) ask(ctx context.Context, to proto.PeerID, m *proto.BoxPart, x *handing) (*proto.BoxTaken, error) {
	for t.want(to); ; clock.Pause(ctx, partBusy) {
		a, err := t.askOnce(ctx, to, m, x)
		switch {
		case err != nil:
			return nil, err
		case a.GetCode() == proto.CodeBusy:
		case a.GetCode() != proto.CodeOK:
			return nil, &mail.RefusedError{Code: a.GetCode(), Detail: t.book.NameOf(to) + ": " + a.GetDetail()}
		default:
			return a, nil
		}
	}
}

// askOnce sends the next home a part until there is an answer. However long the way takes, it has the
// time for that only when it has the part, which is not sent again before.
func (t *handovers) askOnce(ctx context.Context, to proto.PeerID, m *proto.BoxPart, x *handing) (*proto.BoxTaken, error) {
	silent, repeat, look := time.NewTimer(partAnswer), time.NewTimer(partRepeat), time.NewTicker(partLook)
	defer silent.Stop()
	defer repeat.Stop()
	defer look.Stop()
	parts, s := t.exchanges.with(to).parts, &sentPart{BoxPart: m}
	free, came := parts, false // where it is sent, nil if it was; whether the next home has it
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-silent.C:
			return nil, fmt.Errorf("%w: %s does not answer: it may not be connected, or of an older version", wire.ErrRefused, t.book.NameOf(to))
		case free <- s:
			free = nil
			repeat.Reset(partRepeat)
			look.Reset(partLook)
		case <-repeat.C:
			free, s = parts, &sentPart{BoxPart: m}
		case <-look.C:
			switch {
			case free != nil || came:
			case s.isOnWay():
				silent.Reset(partAnswer)
				repeat.Reset(partRepeat)
			default:
				came = s.isThere()
			}
		case a := <-x.answers:
			if a.GetNumber() == m.GetNumber() {
				return a, nil
			}
		}
	}
}

// askServed asks the next home how far the copy of a box is.
func (t *handovers) askServed(ctx context.Context, name string, h box.Handover, x *handing) (proto.CopyState, error) {
	a, err := t.ask(ctx, h.Peer, t.part(name, h), x)
	return a.GetState(), err
}

// keep lets a box go on here that is not handed over, and tells the other node. If that does not hear
// it, it asks: see [handovers.disown].
func (t *handovers) keep(ctx context.Context, k *mail.Broker, name string, h box.Handover) {
	t.rules.changing.Lock()
	err := k.SetHandover(ctx, name, box.Handover{})
	t.rules.changing.Unlock()
	if err != nil {
		t.log.Warn("a box that is not handed over could not go on yet", "box", name, "why", err)
	}
	_ = k.RetryNow(ctx, t.self, proto.CodeBusy) // what came meanwhile; a broker that has stopped tries at the next start
	t.tellDropped(name, h)
}

// tellDropped tells a node that its copy of a box is of no use.
func (t *handovers) tellDropped(name string, h box.Handover) {
	m := t.part(name, h)
	m.Dropped = true
	select {
	case t.exchanges.with(h.Peer).parts <- &sentPart{BoxPart: m}:
	default: // it is not connected
	}
}

// disown answers a node that asks what becomes of the copy of a box that it has, all of it: if its
// handover was given up, it is of no use.
func (t *handovers) disown(from proto.PeerID, a *proto.BoxTaken) {
	k, id := t.ledger.broker(), [16]byte(a.GetHandover())
	if k == nil || a.GetState() != proto.CopyWhole || k.HandoverOf(a.GetBox()).ID == id {
		return
	}
	_, generation, _ := t.names.HomeOf(a.GetBox())
	t.tellDropped(a.GetBox(), box.Handover{ID: id, Peer: from, Generation: max(generation, 1)})
}

// leave removes a box that its new home serves.
func (t *handovers) leave(ctx context.Context, k *mail.Broker, name string, h box.Handover) error {
	mails := 0
	if err := k.View(ctx, func(s *box.State) {
		id, _ := s.Find(name)
		i, _ := s.Info(id)
		mails = i.Waiting
	}); err != nil {
		return err
	}
	if err := t.fail(PointLeave); err != nil {
		return err
	}
	t.rules.changing.Lock()
	defer t.rules.changing.Unlock()
	if err := k.Leave(ctx, name); err != nil {
		return err
	}
	return t.moved(ctx, k, name, h.Peer, mails)
}

// handoffFailure returns why a box was not handed over in the terms of the API.
func handoffFailure(p place, err error) error {
	refused, ok := errors.AsType[*mail.RefusedError](err)
	if !ok {
		return failure(p, "", err)
	}
	kind := wire.ErrRefused
	switch refused.Code {
	case proto.CodeFull:
		kind = wire.ErrFull
	case proto.CodeTooLarge:
		kind = wire.ErrTooLarge
	}
	return fmt.Errorf("%w: %s", kind, refused.Detail)
}

// follow does for a box that was on its way when this node stopped, or whose new home did
// not serve it in time, what its home asks for. When the deed may have been signed, only the node
// that got the copy knows whether it served the box, wherever the home is now: this one keeps what
// it has, and serves nobody, until that says so, or an admin has revoked it and the name has another
// home.
func (t *handovers) follow(ctx context.Context, k *mail.Broker, name string, h box.Handover) error {
	x, ok := t.begin(name, h.ID)
	if !ok {
		return nil // it is at work
	}
	defer t.end(name)
	if k.HandoverOf(name) != h {
		return nil // it was
	}
	home, _, err := t.names.HomeOf(name)
	switch {
	case err == nil && home == t.self: // or it was seized here
		t.keep(ctx, k, name, h)
		return nil
	case home == h.Peer || !t.book.Revoked(h.Peer):
		asking, stop := context.WithTimeout(ctx, partRepeat)
		defer stop()
		switch state, err := t.askServed(asking, name, h, x); {
		case err != nil:
			return fmt.Errorf("ask whether %s serves it: %w", t.book.NameOf(h.Peer), err)
		case state == proto.CopyServed:
			return t.leave(ctx, k, name, h)
		case state != proto.CopyNone:
			return nil
		}
	}
	defer signal(t.renamed) // it goes to its home as any other box
	t.rules.changing.Lock()
	defer t.rules.changing.Unlock()
	return k.SetHandover(ctx, name, box.Handover{})
}

// sendParts sends a peer what asks for an answer about a copy of a box.
func (t *handovers) sendParts(ctx context.Context, l *transport.Link, x *exchange) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-x.parts:
			m.at.Store(t.post(ctx, l, proto.TypeBoxPart, m.BoxPart))
		case m := <-x.whole:
			t.post(ctx, l, proto.TypeBoxTaken, m)
		}
	}
}

// post sends what is sent again if it has no answer, and returns where it is.
func (t *handovers) post(ctx context.Context, l *transport.Link, typ proto.MessageType, m proto.Body) *onStream {
	stream, err := t.messages.send(ctx, l, typ, m)
	if err != nil {
		if ctx.Err() == nil {
			t.log.Debug("a message about a box that is handed over could not be sent", "to", l.Peer(), "why", err)
		}
		return new(onStream)
	}
	frame, _ := stream.Progress()
	return &onStream{stream, frame}
}

// receiveTaken takes the answer to a part, or the question of a node about its copy.
func (t *handovers) receiveTaken(from proto.PeerID, a *proto.BoxTaken) {
	t.mu.Lock()
	x := t.all[a.GetBox()]
	t.mu.Unlock()
	if x == nil || string(x.id[:]) != string(a.GetHandover()) {
		t.disown(from, a) // to an earlier handover, or a repeated one
		return
	}
	select {
	case x.answers <- a:
	default: // one that was not looked at yet: the part is sent again
	}
}
