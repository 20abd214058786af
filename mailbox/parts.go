package mailbox

import (
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
)

// build makes the parts, each with what it uses of the others. What it returns is full when names
// of the mesh have other homes.
func (b *Boxes) build(parts Parts) (renamed chan struct{}) {
	cfg := b.cfg
	renamed = make(chan struct{}, 1)
	b.ledger = &ledgerOpener{openLog: parts.Ledgers.OpenLedger, ready: make(chan struct{})}
	b.places = &places{self: cfg.Self, book: parts.Book, names: parts.Names, ledger: b.ledger}
	b.rules = &rules{self: cfg.Self, members: parts.Members, changed: make(chan struct{}, 1)}
	b.bodies = &letterBodies{store: parts.Bodies, sender: parts.Sender, most: cfg.MaxBody, suite: cfg.Suite}
	composer := &composer{clock: cfg.Clock, durable: cfg.Durable, places: b.places, bodies: b.bodies}
	b.mailer = &mailer{self: cfg.Self, want: parts.Want, fail: cfg.Fail, ledger: b.ledger, places: b.places, composer: composer, bodies: b.bodies}
	bounces := &bounces{self: cfg.Self, clock: cfg.Clock, log: cfg.Logger, event: cfg.Event, places: b.places, mailer: b.mailer}
	b.admission = &admission{
		self: cfg.Self, book: parts.Book, members: parts.Members, ledger: b.ledger, places: b.places, rules: b.rules, bodies: b.bodies, bounces: bounces,
	}
	b.events = &events{boot: cfg.Boot, book: parts.Book, ledger: b.ledger, places: b.places}
	b.buildViews(parts)
	b.exchanges = newExchanges(cfg.Clock, parts.Book)
	b.messages = &messages{clock: cfg.Clock, log: cfg.Logger}
	b.lanes = &lanes{
		clock: cfg.Clock, log: cfg.Logger, fail: cfg.Fail, ledger: b.ledger, places: b.places, bodies: b.bodies,
		admission: b.admission, exchanges: b.exchanges, messages: b.messages,
	}
	b.buildReading(parts)
	waits := newWaits(cfg.Registerer, b.places.text)
	b.buildHomes(parts, waits, renamed)
	b.ledger.load = func(log mail.Ledger) (*mail.Broker, error) {
		return mail.New(log, mail.Config{
			Mesh: cfg.Mesh, Sign: cfg.Keys.SignMail, Verify: cfg.Verifier.MailReceipts, Unproven: b.lookup.receipts.unproven,
			Self: cfg.Self, Boot: cfg.Boot, Clock: cfg.Clock, Logger: cfg.Logger, Bounced: bounces.send, Archive: b.archiver.write,
			Observer: waits, Moved: b.places.isHome, Gone: b.places.gone, Fail: cfg.Fail,
			Known: func(p proto.PeerID) bool { return parts.Book.Recipient(p) != nil },
			Freed: func(name [32]byte) { parts.Bodies.Drop(proto.ObjectFile(name)) },
		})
	}
	return renamed
}

// buildViews makes the parts that show what is in the boxes.
func (b *Boxes) buildViews(parts Parts) {
	cfg := b.cfg
	runners := &runners{running: map[string]*runner{}}
	b.views = &views{self: cfg.Self, unknown: parts.Unknown, clock: cfg.Clock, book: parts.Book, ledger: b.ledger, places: b.places, runners: runners}
	b.archiver = &archiver{
		self: cfg.Self, ledgers: parts.Ledgers, log: cfg.Logger, auditSystem: cfg.AuditSystem, event: cfg.Event, places: b.places, views: b.views,
	}
	receipts := &receipts{
		mesh: cfg.Mesh, self: cfg.Self, keys: cfg.Keys, verifier: cfg.Verifier, event: cfg.Event, book: parts.Book, ledger: b.ledger, places: b.places,
	}
	b.lookup = &lookup{restored: cfg.Restored, ledger: b.ledger, places: b.places, bodies: b.bodies, views: b.views, receipts: receipts}
	b.reasons = &reasons{
		self: cfg.Self, clock: cfg.Clock, book: parts.Book, ledger: b.ledger, places: b.places, runners: runners, lookup: b.lookup, receipts: receipts,
	}
	b.redriver = &redriver{clock: cfg.Clock, audit: cfg.Audit, places: b.places, rules: b.rules, bodies: b.bodies, mailer: b.mailer, lookup: b.lookup}
	b.clearing = &clearing{self: cfg.Self, audit: cfg.Audit, book: parts.Book, places: b.places}
	b.handlers = &handlers{
		self: cfg.Self, clock: cfg.Clock, log: cfg.Logger, fail: cfg.Fail, want: parts.Want, programs: parts.Programs,
		ledger: b.ledger, places: b.places, rules: b.rules, bodies: b.bodies, views: b.views, runners: runners,
	}
}

// buildReading makes the parts that read mail, and wait for replies.
func (b *Boxes) buildReading(parts Parts) {
	cfg := b.cfg
	b.replies = &replies{
		self: cfg.Self, clock: cfg.Clock, log: cfg.Logger, ledger: b.ledger, places: b.places, rules: b.rules,
		given: map[string]givenReply{}, read: map[string]time.Duration{}, turns: map[string]chan struct{}{},
	}
	b.requests = &requests{
		self: cfg.Self, log: cfg.Logger, ledger: b.ledger, places: b.places, rules: b.rules,
		composer: b.mailer.composer, mailer: b.mailer, views: b.views, replies: b.replies,
	}
	b.readers = &readerServer{
		boot: cfg.Boot, clock: cfg.Clock, log: cfg.Logger, fail: cfg.Fail, book: parts.Book, ledger: b.ledger,
		admission: b.admission, exchanges: b.exchanges, messages: b.messages,
	}
	b.reads = &reads{
		self: cfg.Self, clock: cfg.Clock, fail: cfg.Fail, want: parts.Want, book: parts.Book, names: parts.Names,
		ledger: b.ledger, places: b.places, replies: b.replies, views: b.views, exchanges: b.exchanges, messages: b.messages,
	}
	b.fetches = &fetches{log: cfg.Logger, book: parts.Book, bodies: b.bodies, views: b.views, lookup: b.lookup, reads: b.reads, all: map[fetchKey]*fetch{}}
}

// buildHomes makes the parts that make, change and move boxes.
func (b *Boxes) buildHomes(parts Parts, waits *waits, renamed chan struct{}) {
	cfg := b.cfg
	b.copies = &copies{
		self: cfg.Self, clock: cfg.Clock, log: cfg.Logger, fail: cfg.Fail, auditSystem: cfg.AuditSystem, made: cfg.Made, renamed: renamed,
		book: parts.Book, names: parts.Names, ledger: b.ledger, places: b.places, rules: b.rules, bodies: b.bodies, exchanges: b.exchanges, all: map[string]*incomingBox{},
	}
	b.handovers = &handovers{
		self: cfg.Self, log: cfg.Logger, fail: cfg.Fail, audit: cfg.Audit, want: parts.Want, renamed: renamed, book: parts.Book, names: parts.Names,
		ledger: b.ledger, places: b.places, rules: b.rules, bodies: b.bodies, exchanges: b.exchanges, messages: b.messages, all: map[string]*handing{},
	}
	b.homes = &homes{
		self: cfg.Self, log: cfg.Logger, audit: cfg.Audit, auditSystem: cfg.AuditSystem, event: cfg.Event, want: parts.Want, takeOver: parts.Seize, renamed: renamed,
		book: parts.Book, names: parts.Names, rules: b.rules, waits: waits, places: b.places, copies: b.copies, handovers: b.handovers, moving: map[string]*mail.Moving{},
	}
	b.handovers.moved = b.homes.tellMoved
	b.settings = &settings{
		self: cfg.Self, keep: cfg.Keep, audit: cfg.Audit, made: cfg.Made, names: parts.Names, ledger: b.ledger, places: b.places, rules: b.rules,
		waits: waits, views: b.views, handlers: b.handlers, copies: b.copies, homes: b.homes,
	}
}
