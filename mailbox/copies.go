package mailbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// copyIdle is how long the copy of a box that is not whole stays without a new part.
const copyIdle = 10 * time.Minute

// copies takes boxes that are handed over to this node: their copies come from their homes, and are
// served when this node is the home. What is not whole when the node stops begins again.
type copies struct {
	self        proto.PeerID
	clock       clock.Clock
	log         *slog.Logger
	fail        func(point string) error
	auditSystem func(ctx context.Context, action, what string) error
	made        func()        // called when a box was made
	renamed     chan struct{} // names of the mesh have other homes: lets homes look
	book        *addressbook.Book
	names       Names
	ledger      *ledgerOpener
	places      *places
	rules       *rules
	bodies      *letterBodies
	exchanges   *exchanges

	mu      sync.Mutex
	all     map[string]*incomingBox // on their way here, by name; under mu
	ended   bool                    // Run ends: no goroutine begins; under mu
	refused atomic.Uint64           // parts that no home sends
	working sync.WaitGroup          // for the goroutines that answer
}

// An incomingBox is the copy of a box on its way.
type incomingBox struct {
	from   proto.PeerID
	id     [16]byte
	number uint64        // of the newest part
	at     time.Duration // when the home sent something of it
}

// receive takes a part of a box, or a question about a copy.
func (c *copies) receive(ctx context.Context, from proto.PeerID, m *proto.BoxPart) error {
	x := c.exchanges.with(from)
	if x.isFull() {
		return ErrTooManyBundles
	}
	answer := &proto.BoxTaken{Box: m.GetBox(), Handover: m.GetHandover(), Number: m.GetNumber()}
	done := make(chan struct{})
	if x.taking.TryLock() {
		c.begin(func() {
			defer close(done)
			defer x.taking.Unlock()
			c.answer(context.WithoutCancel(ctx), from, m, answer)
		})
	} else {
		answer.Code, answer.Detail = proto.CodeBusy, "the part before is being written"
		close(done)
	}
	x.add(arrival{wait: func(ctx context.Context) (proto.MessageType, proto.Body, error) {
		select {
		case <-done:
			return proto.TypeBoxTaken, answer, nil
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}, closed: ctx.Done()})
	return nil
}

// begin calls f on a goroutine of its own. When Run has ended nobody would wait for that: then f,
// which has little to do without a broker, is called here.
func (c *copies) begin(f func()) {
	c.mu.Lock()
	ended := c.ended
	if !ended {
		c.working.Go(f)
	}
	c.mu.Unlock()
	if ended {
		f()
	}
}

// end waits for what has begun. What it does ends with the broker.
func (c *copies) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.working.Wait()
}

// answer does what a part asks for, and says in the answer what came of it.
func (c *copies) answer(ctx context.Context, from proto.PeerID, m *proto.BoxPart, answer *proto.BoxTaken) {
	id := [16]byte(m.GetHandover())
	if m.GetNumber() == 0 {
		var err error
		if answer.State, err = c.state(ctx, from, m, id); err != nil {
			answer.Code, answer.Detail = proto.CodeBusy, "the node is stopping"
		}
		return
	}
	err := c.take(ctx, from, m, id)
	refused, ok := errors.AsType[*mail.RefusedError](err)
	switch {
	case err == nil:
		answer.State = proto.CopyParts
		if m.GetLast() {
			answer.State = proto.CopyWhole
		}
		return
	case ok:
		answer.Code, answer.Detail = refused.Code, cutReason(refused.Detail)
	case errors.Is(err, store.ErrFull):
		answer.Code, answer.Detail = proto.CodeFull, cutReason(err.Error())
	case errors.Is(err, box.ErrBadRecord), errors.Is(err, box.ErrNotFound), errors.Is(err, proto.ErrBadLetter), errors.Is(err, proto.ErrNewLetter):
		answer.Code, answer.Detail = proto.CodeBadForm, cutReason(err.Error())
	case errors.Is(err, mail.ErrDoubted):
		answer.Code, answer.Detail = proto.CodeBusy, err.Error()
	default:
		answer.Code, answer.Detail = proto.CodeBusy, "the node is stopping"
	}
	if answer.Code == proto.CodeBadForm || answer.Code == proto.CodeDenied {
		c.refused.Add(1)
		c.log.Warn("a part of a box that comes from another home was refused", "box", m.GetBox(), "from", c.book.NameOf(from), "why", answer.Detail)
	}
}

// state returns how far the copy of a box is. A copy that its home does not hand over goes.
func (c *copies) state(ctx context.Context, from proto.PeerID, m *proto.BoxPart, id [16]byte) (proto.CopyState, error) {
	k := c.ledger.broker()
	if k == nil {
		return proto.CopyNone, nil
	}
	h := k.HandoverOf(m.GetBox())
	switch {
	case h.ID != id || h.Peer != from || !h.IsCopy():
	case m.GetDropped() && !c.isHere(m.GetBox()):
		if err := c.drop(ctx, k, m.GetBox()); err != nil {
			c.log.Warn("the copy of a box that is not handed over is still here", "box", m.GetBox(), "why", err)
		}
		return proto.CopyNone, nil
	case h.Stage == box.Copying:
		c.touch(m.GetBox(), id) // a body of its next part may be on the way
		return proto.CopyParts, nil
	default:
		signal(c.renamed) // it is asked for: its home may be here now
		return proto.CopyWhole, nil
	}
	served, err := k.Served(ctx, id)
	if served {
		return proto.CopyServed, err
	}
	return proto.CopyNone, err
}

// isHere reports whether this node is the home of a name.
func (c *copies) isHere(name string) bool {
	home, _, err := c.names.HomeOf(name)
	return err == nil && home == c.self
}

// touch notes that the copy of a handover goes on.
func (c *copies) touch(name string, id [16]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in := c.all[name]; in != nil && in.id == id {
		in.at = c.clock.Mono()
	}
}

// refusedPart returns the error for a part that is not taken.
func refusedPart(code proto.Code, format string, args ...any) error {
	return &mail.RefusedError{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// take adds a part to the copy of a box. After an error there is no copy, but while the clock is
// doubted: then the part may come again.
func (c *copies) take(ctx context.Context, from proto.PeerID, m *proto.BoxPart, id [16]byte) error {
	name := m.GetBox()
	if !c.places.isHome(name, from, m.GetGeneration()) {
		return refusedPart(proto.CodeDenied, "%.128s is not known here as a box whose home is that node, in generation %d", name, m.GetGeneration())
	}
	k, err := c.ledger.open()
	if err != nil {
		return err
	}
	in, again, err := c.next(from, m, id)
	if again || err != nil {
		return err
	}
	if m.GetNumber() == 1 {
		err = c.beginCopy(ctx, k, from, m, id)
	} else {
		err = c.add(ctx, k, m, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, mail.ErrDoubted) {
		in.at = c.clock.Mono()
		return err
	}
	if err != nil {
		delete(c.all, name)
		return errors.Join(err, k.DropCopy(ctx, name))
	}
	in.number, in.at = m.GetNumber(), c.clock.Mono()
	if m.GetLast() {
		delete(c.all, name)
	}
	return nil
}

// next decides whether a part is the next one, or was here before.
func (c *copies) next(from proto.PeerID, m *proto.BoxPart, id [16]byte) (in *incomingBox, again bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in = c.all[m.GetBox()]
	same := in != nil && in.from == from && in.id == id
	switch {
	case same && m.GetNumber() <= in.number:
		return in, true, nil
	case same && m.GetNumber() == in.number+1:
		return in, false, nil
	case m.GetNumber() != 1:
		if k := c.ledger.broker(); m.GetLast() && k != nil && k.HandoverOf(m.GetBox()).ID == id && k.HandoverOf(m.GetBox()).Stage == box.Whole {
			return nil, true, nil // the answer to the last one was lost
		}
		return nil, false, refusedPart(proto.CodeBadForm, "part %d does not follow those that are here: begin again", m.GetNumber())
	}
	in = &incomingBox{from: from, id: id, at: c.clock.Mono()}
	c.all[m.GetBox()] = in
	return in, false, nil
}

// beginCopy begins the copy of a box with its settings.
func (c *copies) beginCopy(ctx context.Context, k *mail.Broker, from proto.PeerID, m *proto.BoxPart, id [16]byte) error {
	settings, err := box.ParseSettings(m.GetSettings())
	if err != nil {
		return err
	}
	kind, _ := proto.TitleKindOf(m.GetBox())
	want := box.Mailbox
	if kind == proto.TitleTopic {
		want = box.Topic
	}
	if settings.Name != m.GetBox() || settings.Kind != want || settings.Handover != (box.Handover{}) {
		return refusedPart(proto.CodeBadForm, "settings of another box")
	}
	if own := c.places.mailbox(strings.TrimPrefix(m.GetBox(), proto.AgentPrefix), c.self); want == box.Mailbox && k.Has(own.name) {
		return refusedPart(proto.CodeDuplicate, "that node has a mailbox of its own with this name")
	}
	n := notesOf(settings)
	n.Handler = nil // a node starts the programs that its own people name
	settings.Notes = n.encode()
	return k.BeginCopy(ctx, settings, box.Handover{ID: id, Peer: from, Generation: m.GetGeneration()})
}

// add adds a part, whose bodies must be here.
func (c *copies) add(ctx context.Context, k *mail.Broker, m *proto.BoxPart, id [16]byte) error {
	piece := mail.Piece{Records: m.GetRecords()}
	for _, o := range m.GetOrigins() {
		piece.Origins = append(piece.Origins, proto.PeerID(o))
	}
	for l, err := range piece.Letters() {
		if err != nil {
			return err
		}
		if code, detail := c.bodies.stored(l); code != proto.CodeOK {
			return refusedPart(code, "mail %s: %s", l.ID, detail)
		}
	}
	if err := c.fail(PointCopy); err != nil {
		return err
	}
	err := k.AddToCopy(ctx, m.GetBox(), id, &piece)
	if err == nil && m.GetLast() {
		err = k.EndCopy(ctx, m.GetBox(), id)
	}
	if err == nil {
		err = c.fail(PointCopied)
	}
	return err
}

// comesFrom reports whether a box comes here from a peer now, with the bodies of its mail.
func (c *copies) comesFrom(name string, p proto.PeerID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.all[name]
	return in != nil && in.from == p
}

func (c *copies) drop(ctx context.Context, k *mail.Broker, name string) error {
	c.mu.Lock()
	delete(c.all, name)
	c.mu.Unlock()
	return k.DropCopy(ctx, name)
}

// follow serves the copy of a box whose home this node has become, or drops one that will never
// be served.
func (c *copies) follow(ctx context.Context, k *mail.Broker, name string, h box.Handover) error {
	home, generation, err := c.names.HomeOf(name)
	c.mu.Lock()
	in := c.all[name]
	comes := in != nil && c.clock.Mono()-in.at < copyIdle // this one, or one that has begun since h
	c.mu.Unlock()
	switch whole := h.Stage == box.Whole; {
	case !whole && comes:
		return nil
	case whole && err != nil, whole && home == h.Peer && generation == h.Generation:
		select { // its home may have given the handover up
		case c.exchanges.with(h.Peer).whole <- &proto.BoxTaken{Box: name, Handover: h.ID[:], State: proto.CopyWhole}:
		default: // it is not connected
		}
		return nil
	case whole && home == c.self && generation == h.Generation+1:
		return c.serve(ctx, k, name, h, generation)
	}
	c.rules.changing.Lock()
	defer c.rules.changing.Unlock()
	if k.HandoverOf(name) != h {
		return nil // its name is being seized
	}
	c.log.Warn("the copy of a box that was to come here is dropped: it will not be served", "box", name, "from", c.book.NameOf(h.Peer))
	return c.drop(ctx, k, name)
}

// serve serves the copy of a box as the box.
func (c *copies) serve(ctx context.Context, k *mail.Broker, name string, h box.Handover, generation uint64) error {
	if err := c.fail(PointServe); err != nil {
		return err
	}
	c.rules.changing.Lock()
	defer c.rules.changing.Unlock()
	if err := k.Serve(ctx, name, generation); err != nil {
		return err
	}
	if err := c.rules.read(ctx, k); err != nil {
		return err
	}
	c.made()
	_ = k.RetryNow(ctx, c.self, proto.CodeNoHandler) // what programs sent before; a broker that has stopped tries at the next start
	from := c.book.NameOf(h.Peer)
	c.log.Info("a box of the mesh was handed over to this node", "box", name, "from", from)
	return c.auditSystem(ctx, kindOf(name)+".take", name+" from "+from)
}

// checkComing refuses to make a box that comes from another home, unless that is lost.
func (c *copies) checkComing(p place, z *wire.Seize) error {
	k := c.ledger.broker()
	if k == nil {
		return nil
	}
	if h := k.HandoverOf(p.name); h.IsCopy() && (z == nil || !z.AcceptLoss) {
		return fmt.Errorf("%w: %s is on its way here from %s: wait until it is here", wire.ErrRefused, p.text, c.book.NameOf(h.Peer))
	}
	return nil
}

// doubt lets the copy of a box not be whole, if there is one, until restore is called: what is not whole
// is dropped at the next start.
func (c *copies) doubt(ctx context.Context, name string) (restore func() error, err error) {
	k := c.ledger.broker()
	if k == nil || k.HandoverOf(name).Stage != box.Whole {
		return func() error { return nil }, nil
	}
	h := k.HandoverOf(name)
	part := h
	part.Stage = box.Copying
	restore = func() error {
		if err := k.SetHandover(ctx, box.CopyPrefix+name, h); !errors.Is(err, box.ErrNotFound) {
			return err
		}
		return nil // its home has given the handover up meanwhile
	}
	return restore, k.SetHandover(ctx, box.CopyPrefix+name, part)
}

// seized ends the handover of a box that was seized here: the copy of one that came goes, and one
// that this node had handed over is served again.
func (c *copies) seized(ctx context.Context, name string) error {
	k := c.ledger.broker()
	switch {
	case k == nil:
		return nil
	case k.HandoverOf(name).IsCopy():
		return c.drop(ctx, k, name)
	case k.HandoverOf(name).IsLeaving():
		return k.SetHandover(ctx, name, box.Handover{})
	}
	return nil
}
