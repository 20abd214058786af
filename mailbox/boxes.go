package mailbox

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
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
)

// Boxes are the mailboxes and topics of a node. Its methods are safe for concurrent use.
// They serve mail while [Boxes.Run] runs.
type Boxes struct {
	parts Parts
	cfg   Config

	receipts  *receipts
	lookup    *lookup
	reasons   *reasons
	redriver  *redriver
	clearing  *clearing
	ledger    *ledgerOpener
	places    *places
	rules     *rules
	bodies    *letterBodies
	peers     sync.Mutex
	exchanges map[proto.PeerID]*exchange // of the peers that are connected; under peers
	numbers   atomic.Uint64              // of what other nodes are asked for: not those of an earlier start
	runners   *runners
	views     *views
	composer  *composer
	mailer    *mailer
	bounces   *bounces
	admission *admission
	archiver  *archiver
	events    *events
	fetches   fetches
	replies   replies

	renamed chan struct{}           // names of the mesh have other homes
	moving  map[string]*mail.Moving // boxes that lost their home; of the goroutine of followHomes

	handing  sync.Mutex          // guards handings
	handings map[string]*handing // boxes that are handed over from here, by name
	incoming incoming

	waits *waits
}

// Parts are the dependencies of the boxes. All are required.
type Parts struct {
	Ledgers  Ledgers
	Book     *addressbook.Book
	Members  inbox.Members      // of whom allow lists speak
	Want     func(proto.PeerID) // asks for a connection to a peer
	Names    Names
	Seize    func(ctx context.Context, name, from string) error // makes this node the home of a name whose home, from, is lost
	Watch    func(changed func())                               // lets changed, which does not block, be called when names have other homes
	Programs Programs                                           // of the handlers of mailboxes
	Bodies   *bodies.Store
	Sender   BodySender
}

// Names has the homes of the mailboxes and topics of the mesh, by their full names.
type Names interface {
	// HomeOf returns the home of a name and its generation, or an error wrapping
	// [wire.ErrNotFound].
	HomeOf(name string) (home proto.PeerID, generation uint64, err error)
	NameKeeper
	NameGiver
}

// A NameKeeper makes this node the home of names.
type NameKeeper interface {
	// Title makes this node the home of a name, unless it is that already.
	Title(ctx context.Context, name string, kind proto.TitleKind) error
	// Remove gives up a name whose home is this node.
	Remove(ctx context.Context, name string) error
}

// A NameGiver makes other nodes the homes of names.
type NameGiver interface {
	// MayTake returns why a node cannot become the home of a name now.
	MayTake(name string, to proto.PeerID) error
	// HandOff makes another node the home of a name whose home is this one, durably.
	HandOff(ctx context.Context, name string, to proto.PeerID) error
}

// Ledgers opens the ledger of the node, and keeps what leaves it. A node that never had a box
// has none.
type Ledgers interface {
	// HasLedger reports whether there is a ledger.
	HasLedger() bool
	// OpenLedger opens it, or makes it. It is called once.
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
	Restored int64 // until when the ledger lacks what happened: see [mail.Config]
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
	b := &Boxes{parts: parts, cfg: cfg, ledger: &ledgerOpener{ready: make(chan struct{})}, renamed: make(chan struct{}, 1), moving: map[string]*mail.Moving{}, handings: map[string]*handing{}, incoming: incoming{all: map[string]*incomingBox{}}, exchanges: map[proto.PeerID]*exchange{}, fetches: fetches{all: map[fetchKey]*fetch{}}, runners: &runners{running: map[string]*runner{}}, replies: replies{given: map[string]givenReply{}, read: map[string]time.Duration{}, turns: map[string]chan struct{}{}}}
	b.ledger.make = b.newBroker
	b.places = &places{self: cfg.Self, book: parts.Book, names: parts.Names, ledger: b.ledger}
	b.rules = &rules{self: cfg.Self, members: parts.Members, changed: make(chan struct{}, 1)}
	b.bodies = &letterBodies{store: parts.Bodies, sender: parts.Sender, most: cfg.MaxBody, suite: cfg.Suite}
	b.views = &views{self: cfg.Self, clock: cfg.Clock, book: parts.Book, ledger: b.ledger, places: b.places, runners: b.runners}
	b.composer = &composer{clock: cfg.Clock, durable: cfg.Durable, places: b.places, bodies: b.bodies}
	b.mailer = &mailer{self: cfg.Self, want: parts.Want, fail: cfg.Fail, ledger: b.ledger, places: b.places, composer: b.composer, bodies: b.bodies}
	b.bounces = &bounces{self: cfg.Self, clock: cfg.Clock, log: cfg.Logger, event: cfg.Event, places: b.places, mailer: b.mailer}
	b.admission = &admission{self: cfg.Self, book: parts.Book, members: parts.Members, ledger: b.ledger, places: b.places, rules: b.rules, bodies: b.bodies, bounces: b.bounces}
	b.archiver = &archiver{self: cfg.Self, ledgers: parts.Ledgers, log: cfg.Logger, auditSystem: cfg.AuditSystem, event: cfg.Event, places: b.places, views: b.views}
	b.events = &events{boot: cfg.Boot, book: parts.Book, ledger: b.ledger, places: b.places}
	b.receipts = &receipts{mesh: cfg.Mesh, self: cfg.Self, keys: cfg.Keys, verifier: cfg.Verifier, event: cfg.Event, book: parts.Book, ledger: b.ledger, places: b.places}
	b.lookup = &lookup{restored: cfg.Restored, ledger: b.ledger, places: b.places, bodies: b.bodies, views: b.views, receipts: b.receipts}
	b.reasons = &reasons{self: cfg.Self, clock: cfg.Clock, book: parts.Book, ledger: b.ledger, places: b.places, runners: b.runners, lookup: b.lookup, receipts: b.receipts}
	b.redriver = &redriver{clock: cfg.Clock, audit: cfg.Audit, places: b.places, bodies: b.bodies, mailer: b.mailer, lookup: b.lookup}
	b.clearing = &clearing{self: cfg.Self, audit: cfg.Audit, book: parts.Book, places: b.places}
	// more parts
	b.numbers.Store(rand.Uint64() >> 1)
	b.waits = newWaits(cfg.Registerer, b.places.text)
	cfg.Registerer.MustRegister(boxMetrics{b})
	parts.Watch(func() { signal(b.renamed) })
	if !parts.Ledgers.HasLedger() {
		return b, nil
	}
	_, err := b.ledger.open()
	return b, err
}

// newBroker opens the ledger, or makes it.
func (b *Boxes) newBroker() (*mail.Broker, error) {
	log, err := b.parts.Ledgers.OpenLedger()
	if err != nil {
		return nil, err
	}
	return mail.New(log, mail.Config{
		Mesh: b.cfg.Mesh, Sign: b.cfg.Keys.SignMail, Verify: b.cfg.Verifier.MailReceipts, Unproven: b.receipts.unproven,
		Self: b.cfg.Self, Boot: b.cfg.Boot, Restored: b.cfg.Restored, Clock: b.cfg.Clock, Logger: b.cfg.Logger, Bounced: b.bounces.send, Archive: b.archiver.write,
		Waited: b.waits.noteWait, Handled: b.waits.noteHandling, Sent: b.waits.noteSent, Retried: b.waits.noteRetry,
		Moved: func(name string, home proto.PeerID, generation uint64) bool {
			now, known, err := b.parts.Names.HomeOf(name)
			return err == nil && now == home && known == generation
		},
		Gone: b.places.gone, Fail: b.cfg.Fail, Freed: func(name [32]byte) { b.bodies.store.Drop(proto.ObjectFile(name)) },
	})
}

// Run serves the boxes until ctx is done or their ledger fails. The programs that handle their
// mail end first.
func (b *Boxes) Run(ctx context.Context) error {
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
		return b.runHandlers(ctx, k)
	})
	g.Go(func() error { return b.endLostReaders(ctx) })
	g.Go(func() error { return b.serveSelf(ctx, k) })
	g.Go(func() error {
		b.followHomes(ctx, k)
		return nil
	})
	g.Go(func() error {
		b.sweepReplies(ctx, k)
		return nil
	})
	return g.Wait()
}

// readable is subscribed for what readers do, who may be at a box of another node: then there
// is no broker.
func (b *Boxes) readable(name, sub string) (place, *mail.Broker, error) {
	p, err := b.places.find(name)
	if err != nil || p.home == b.cfg.Self {
		b.noteRead(p.name)
		return b.places.subscribed(name, sub)
	}
	return p, nil, p.checkSub(sub)
}
