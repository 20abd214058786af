package mailbox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Boxes are the mailboxes and topics of a node. Its methods are safe for concurrent use.
// They serve mail while [Boxes.Run] runs.
type Boxes struct {
	cfg Config

	ledger    *ledgerOpener // of this node
	places    *places       // what names mean
	rules     *rules        // who may send and read
	bodies    *letterBodies // large ones
	views     *views        // of boxes and mails, for the API
	mailer    *mailer       // into boxes and spools
	admission *admission    // of what other nodes send and read
	archiver  *archiver     // of dead letters
	events    *events       // of mail
	lookup    *lookup       // of mail
	reasons   *reasons      // why mail waits
	redriver  *redriver     // of dead letters
	clearing  *clearing     // of what holds up boxes
	handlers  *handlers     // programs and URLs that handle mail
	replies   *replies      // boxes for them
	requests  *requests     // of programs of this node
	exchanges *exchanges    // with peers
	messages  *messages     // to peers
	lanes     *lanes        // of mail for other nodes, and from them
	copies    *copies       // of boxes that come here
	handovers *handovers    // of boxes that leave
	homes     *homes        // of boxes of the mesh
	settings  *settings     // of boxes
	readers   *readerServer // on other nodes
	reads     *reads        // of programs of this node
	fetches   *fetches      // of large bodies at other nodes
}

// Parts are the dependencies of the boxes. All are required.
type Parts struct {
	Ledgers  Ledgers
	Book     *addressbook.Book
	Members  inbox.Members                    // of whom allow lists speak
	Unknown  func(allow []string) []wire.Note // about entries of an allow list that match no member; nil: not known
	Want     func(proto.PeerID)               // asks for a connection to a peer
	Names    Names
	Seize    func(ctx context.Context, name, from string) error // makes this node the home of a name whose home, from, is lost
	Watch    func(changed func())                               // lets changed, which does not block, be called when names have other homes
	Programs Programs                                           // of the handlers of mailboxes
	Bodies   *bodies.Store
	Sender   BodySender
}

// Names has the homes of the mailboxes and topics of the mesh, by their full names, and changes them.
type Names interface {
	// HomeOf returns the home of a name and its generation, or an error wrapping
	// [wire.ErrNotFound].
	HomeOf(name string) (home proto.PeerID, generation uint64, err error)

	// Title makes this node the home of a name, unless it is that already.
	Title(ctx context.Context, name string, kind proto.TitleKind) error
	// Remove gives up a name whose home is this node.
	Remove(ctx context.Context, name string) error

	// MayTake returns why a node cannot become the home of a name now.
	MayTake(ctx context.Context, name string, to proto.PeerID) error
	// HandOff makes another node the home of a name whose home is this one, durably.
	HandOff(ctx context.Context, name string, to proto.PeerID) error
}

// Ledgers opens the ledger of the node, and keeps what leaves it. A node that never had a box
// has none.
type Ledgers interface {
	// HasLedger reports whether there is a ledger.
	HasLedger() bool
	// OpenLedger opens it, or makes it. It is not called again after it succeeded.
	OpenLedger() (mail.Ledger, error)
	// ArchiveMail appends lines to the archive of dead letters, and returns the name of its
	// file when they are durable. One caller at a time.
	ArchiveMail(lines []byte) (file string, err error)
}

// Config tunes the boxes.
type Config struct {
	Self     proto.PeerID
	Mesh     proto.MeshID
	Keys     *identity.Keys     // of this node: it signs receipts
	Verifier *identity.Verifier // of those of other nodes
	Boot     uint64             // of this start; higher than that of any start before
	Clock    clock.Clock
	Restored int64 // when the node was restored from an older copy, Unix milliseconds; 0: never
	Logger   *slog.Logger

	Limits     box.Limits    // of all boxes; zero values mean defaults
	Keep       time.Duration // how long a new mailbox keeps mail that is done
	Durable    bool          // mail that its sender calls relaxed is answered after its fsync, too
	MaxBody    int64         // sealed bytes of a body; default 100 GiB
	Suite      byte          // how large bodies are sealed: see [bodies.SealOptions]
	Registerer prometheus.Registerer

	Audit       func(ctx context.Context, action, what string) error // records what the caller does
	AuditSystem func(ctx context.Context, action, what string) error // records what the node does by a rule

	Made  func()                                                      // called when a box was made: peers may be waiting for it; default: nobody is
	Event func(kind string, p proto.PeerID, fields map[string]string) // reports an event

	// Fail is called with the name of each failpoint; an error that it returns fails what is
	// done there. Default: nothing fails.
	Fail func(point string) error
}

// The failpoints on the path of a mail, at which a test build exits: before and after each
// append that it needs.
const (
	PointSend     = "mail/send"     // the mails are not on disk
	PointSent     = "mail/sent"     // they are on disk, the caller has no answer yet
	PointReceive  = "mail/receive"  // a bundle has arrived and is not on disk
	PointReceived = "mail/received" // it is on disk, the answer is not sent
	PointAnswer   = "mail/answer"   // the answer has arrived, its mails have not ended here
	PointLeased   = "mail/leased"   // the mails are leased, the reader does not have them
	PointSettle   = "mail/settle"   // what the reader did with them is not on disk
	PointSettled  = "mail/settled"  // it is on disk, the reader has no answer yet
	PointPart     = "mail/part"     // a box is still, a part of it is not sent
	PointCopy     = "mail/copy"     // a part has arrived and is not on disk
	PointCopied   = "mail/copied"   // it is on disk, the answer is not sent
	PointServe    = "mail/serve"    // a copy is whole and its home is here, it is not served
	PointLeave    = "mail/leave"    // the new home serves a box, which is still at the old one
)

// Open returns the boxes of a node, and opens its ledger if it has one.
func Open(parts Parts, cfg Config) (*Boxes, error) {
	if cfg.Fail == nil {
		cfg.Fail = func(string) error { return nil }
	}
	if cfg.Made == nil {
		cfg.Made = func() {}
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 100<<30)
	b := &Boxes{cfg: cfg}
	renamed := b.build(parts)
	cfg.Registerer.MustRegister(boxMetrics{b})
	parts.Watch(func() { signal(renamed) })
	if !parts.Ledgers.HasLedger() {
		return b, nil
	}
	_, err := b.ledger.open()
	return b, err
}

// Run serves the boxes until ctx is done or their ledger fails. The programs that handle their
// mail end first.
func (b *Boxes) Run(ctx context.Context) error {
	defer b.copies.end()
	k := b.ledger.await(ctx)
	if k == nil {
		return nil
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.Run(serving) })
	g.Go(func() error {
		defer stop()
		if err := k.SetLimits(ctx, b.cfg.Limits); err != nil && ctx.Err() == nil { // a full disk has those that it had
			b.cfg.Logger.Warn("the limits of mail are those of an earlier configuration", "why", err)
		}
		return b.handlers.run(ctx, k)
	})
	g.Go(func() error { return b.readers.endLostReaders(ctx) })
	g.Go(func() error { return b.homes.serveSelf(ctx, k) })
	g.Go(func() error {
		b.homes.run(ctx, k)
		return nil
	})
	g.Go(func() error {
		b.replies.sweep(ctx, k)
		return nil
	})
	return g.Wait()
}

// Linked sends a connected peer the mail that waits for its boxes, what programs read here and
// there, and the answers to its own, as long as there is a path to it. Calls for one peer do
// not overlap.
func (b *Boxes) Linked(ctx context.Context, l *transport.Link) error {
	x := b.exchanges.with(l.Peer())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.messages.sendAnswers(ctx, l, x) })
	g.Go(func() error { return b.lanes.send(ctx, l) })
	g.Go(func() error { return b.lanes.sendBodies(ctx, l.Peer()) })
	for range bodySenders {
		g.Go(func() error { return b.fetches.sendOffers(ctx, l.Peer(), x) })
	}
	g.Go(func() error { return b.readers.serve(ctx, l, &x.readers) })
	g.Go(func() error { return b.reads.tellHome(ctx, l, &x.home) })
	g.Go(func() error { return b.handovers.sendParts(ctx, l, x) })
	return g.Wait()
}

// Receive takes a message about mail of a peer: see [transport.MailReceiver].
func (b *Boxes) Receive(ctx context.Context, from proto.PeerID, m *proto.Message) error {
	switch m.GetType() {
	case proto.TypeBundle:
		bundle := new(proto.Bundle)
		if err := proto.DecodeKnown(m.GetPayload(), bundle); err != nil {
			return err
		}
		return b.lanes.receiveBundle(ctx, from, bundle)
	case proto.TypeBundled:
		answer := new(proto.Bundled)
		if err := proto.DecodeKnown(m.GetPayload(), answer); err != nil {
			return err
		}
		return b.lanes.receiveAnswer(ctx, from, answer)
	case proto.TypeOpen:
		o := new(proto.Open)
		if err := decode(m, o); err != nil {
			return err
		}
		return b.exchanges.with(from).receiveOpen(o)
	case proto.TypeSettle:
		s := new(proto.Settle)
		if err := decode(m, s); err != nil {
			return err
		}
		return b.readers.receiveSettle(ctx, from, s)
	case proto.TypeBoxPart:
		p := new(proto.BoxPart)
		if err := decode(m, p); err != nil {
			return err
		}
		return b.copies.receive(ctx, from, p)
	case proto.TypeBoxTaken:
		a := new(proto.BoxTaken)
		if err := decode(m, a); err != nil {
			return err
		}
		b.handovers.receiveTaken(from, a)
		return nil
	}
	return b.exchanges.with(from).home.receive(m)
}

// RetryNow sends again at once what a peer stopped with code.
func (b *Boxes) RetryNow(ctx context.Context, peer proto.PeerID, code proto.Code) {
	if k := b.ledger.broker(); k != nil {
		_ = k.RetryNow(ctx, peer, code) // a broker that has stopped sends at the next start
	}
}

// Objects calls yield with each body that a mail needs, and the node that the mail came from;
// zero is this one.
func (b *Boxes) Objects(ctx context.Context, yield func(name [32]byte, origin proto.PeerID)) error {
	k := b.ledger.broker()
	if k == nil {
		return nil
	}
	return k.Objects(ctx, yield)
}

// Wants returns NEED_BODY for a mail of a peer that its box would take if its body were here, or
// whose body a program of this node waits for.
func (b *Boxes) Wants(ctx context.Context, from proto.PeerID, m proto.OfferedMail, l *proto.Letter) (proto.Code, string) {
	if m.Seq > 0 {
		return b.fetches.wants(from, m, l)
	}
	k := b.ledger.broker()
	if k == nil {
		return proto.CodeNoHandler, fmt.Sprintf("no box %q", m.Box)
	}
	if b.copies.comesFrom(m.Box, from) {
		return b.bodies.stored(l)
	}
	admit, err := b.admission.from(ctx, k, from)
	if err != nil {
		return proto.CodeBusy, "the node is stopping"
	}
	return admit(m.Box, l)
}

// Status counts the mail that waits for other nodes, and the dead letters.
func (b *Boxes) Status(ctx context.Context) (s wire.MailStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	out, err := b.views.outgoing(ctx)
	if err != nil {
		return s, err
	}
	for _, x := range out {
		s.Outgoing += x.Mails
	}
	for _, x := range b.exchanges.list() {
		s.RemoteReaders += x.readers.count()
	}
	all, err := b.views.list(ctx, "")
	for _, v := range all {
		for _, u := range v.Subscriptions {
			s.Dead += u.Dead
			if u.Dead > 0 && len(s.DeadIn) < maxDeadIn {
				s.DeadIn = append(s.DeadIn, place{text: v.Name}.path(u.Name))
			}
		}
	}
	return s, err
}

// maxDeadIn is how many names of boxes with dead letters a status has.
const maxDeadIn = 10
