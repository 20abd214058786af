package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
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
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Boxes are the mailboxes and topics of a node. Its methods are safe for concurrent use.
// They serve mail while [Boxes.Run] runs.
type Boxes struct {
	parts Parts
	cfg   Config

	opening sync.Mutex // held while the ledger is opened
	ended   bool       // Run has returned: it is not opened any more
	broker  atomic.Pointer[mail.Broker]
	ready   chan struct{} // closed when there is a broker

	rules     atomic.Pointer[map[string]notes] // by the name of a box in the ledger; nil: not read yet
	peers     sync.Mutex
	exchanges map[proto.PeerID]*exchange // of the peers that are connected; under peers
	numbers   atomic.Uint64              // of what other nodes are asked for: not those of an earlier start
	handlers  handlers
	fetches   fetches
	replies   replies
	changing  sync.Mutex   // held while the settings of a box are read and changed
	redriving sync.Mutex   // held while a dead letter is sent again
	lost      atomic.Int64 // monotonic time of the last line about a bounce that nobody gets; 0: none

	renamed chan struct{}           // names of the mesh have other homes
	moving  map[string]*mail.Moving // boxes that lost their home; of the goroutine of followHomes

	handing  sync.Mutex          // guards handings
	handings map[string]*handing // boxes that are handed over from here, by name
	incoming incoming

	waits    *waits
	archived atomic.Uint64 // dead letters since the start
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
	b := &Boxes{parts: parts, cfg: cfg, ready: make(chan struct{}), renamed: make(chan struct{}, 1), moving: map[string]*mail.Moving{}, handings: map[string]*handing{}, incoming: incoming{all: map[string]*incomingBox{}}, exchanges: map[proto.PeerID]*exchange{}, fetches: fetches{all: map[fetchKey]*fetch{}}, handlers: handlers{changed: make(chan struct{}, 1), running: map[string]*runner{}}, replies: replies{given: map[string]givenReply{}, read: map[string]time.Duration{}, turns: map[string]chan struct{}{}}}
	b.numbers.Store(rand.Uint64() >> 1)
	b.waits = newWaits(cfg.Registerer, b.text)
	cfg.Registerer.MustRegister(boxMetrics{b})
	parts.Watch(func() { signal(b.renamed) })
	if !parts.Ledgers.HasLedger() {
		return b, nil
	}
	_, err := b.open()
	return b, err
}

// open opens the ledger, or makes it, if that was not done before.
func (b *Boxes) open() (*mail.Broker, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	if k := b.broker.Load(); k != nil {
		return k, nil
	}
	if b.ended {
		return nil, wire.ErrDraining
	}
	log, err := b.parts.Ledgers.OpenLedger()
	if err != nil {
		return nil, err
	}
	k, err := mail.New(log, mail.Config{
		Mesh: b.cfg.Mesh, Sign: b.cfg.Keys.SignMail, Verify: b.cfg.Verifier.MailReceipts, Unproven: b.unproven,
		Self: b.cfg.Self, Boot: b.cfg.Boot, Restored: b.cfg.Restored, Clock: b.cfg.Clock, Logger: b.cfg.Logger, Bounced: b.bounced, Archive: b.archive,
		Waited: b.waits.noteWait, Handled: b.waits.noteHandling, Sent: b.waits.noteSent, Retried: b.waits.noteRetry,
		Moved: func(name string, home proto.PeerID, generation uint64) bool {
			now, known, err := b.parts.Names.HomeOf(name)
			return err == nil && now == home && known == generation
		},
		Gone: b.gone, Fail: b.cfg.Fail, Freed: func(name [32]byte) { b.parts.Bodies.Drop(proto.ObjectFile(name)) },
	})
	if err != nil {
		return nil, err
	}
	b.broker.Store(k)
	close(b.ready)
	return k, nil
}

// gone reports that mail for a box can never be delivered: its home was revoked, and no other
// node has the name.
func (b *Boxes) gone(name string, home proto.PeerID) bool {
	if !b.parts.Book.Revoked(home) {
		return false
	}
	now, _, err := b.parts.Names.HomeOf(name) // a full name has none
	return err != nil || now == home || b.parts.Book.Revoked(now)
}

// Run serves the boxes until ctx is done or their ledger fails. The programs that handle their
// mail end first.
func (b *Boxes) Run(ctx context.Context) error {
	select {
	case <-b.ready:
	case <-ctx.Done():
	}
	b.opening.Lock()
	k := b.broker.Load()
	b.ended = k == nil
	b.opening.Unlock()
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

// A place is a box as its home names it, and where that is.
type place struct {
	name string // in the ledger
	kind string // one of those of package wire
	home proto.PeerID
	text string // for people

	title      proto.TitleKind // of a name of the mesh; [proto.TitleQueue]: it is none
	generation uint64          // of its home
}

// spool reports whether it is the spool of a box on another node.
func (p place) spool() bool { return strings.HasPrefix(p.name, box.SpoolPrefix) }

// path names a subscription of the box.
func (p place) path(sub string) string {
	if sub == "" {
		return p.text
	}
	return p.text + "/" + sub
}

// find finds the box that a name means, whether it exists or not. A word alone is a mailbox
// of this node.
func (b *Boxes) find(name string) (place, error) {
	if name != "" && !strings.Contains(name, ":") {
		name = proto.AgentPrefix + name
	}
	return b.findTarget(name)
}

// findTarget is find for a target, where a word alone is a node.
func (b *Boxes) findTarget(target string) (place, error) {
	t, err := proto.ParseTarget(target)
	switch {
	case err == nil:
	case strings.Contains(target, "@") && !strings.Contains(target, ":"):
		return place{}, invalid("target %.80q: a mailbox is agent:NAME@NODE, with agent: before its name", target)
	default:
		return place{}, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	switch t.Kind {
	case proto.TargetTopic:
		return b.named(t), nil
	case proto.TargetAgent:
		if t.Node == "" {
			return b.unqualified(t), nil
		}
		p, err := b.parts.Book.Find(t.Node)
		if err != nil {
			return place{}, err
		}
		return b.mailbox(t.Name, p.Peer), nil
	}
	return place{}, fmt.Errorf("%w: %.80q has no mail: use agent:NAME@NODE or topic:NAME", wire.ErrInvalid, target)
}

// unqualified returns the mailbox of an agent without a node: that of this node, or if there
// is none that of the mesh, or if neither is known the one that this node may get.
func (b *Boxes) unqualified(t proto.Target) place {
	own := b.mailbox(t.Name, b.cfg.Self)
	if k := b.broker.Load(); k != nil && k.Has(own.name) {
		return own
	}
	if p := b.named(t); p.generation > 0 {
		return p
	}
	return own
}

// named returns a box of the mesh. If nobody is known to be its home, this node may become
// it.
func (b *Boxes) named(t proto.Target) place {
	p := place{name: t.String(), kind: wire.BoxMailbox, home: b.cfg.Self, text: t.String(), title: proto.TitleMailbox}
	if t.Kind == proto.TargetTopic {
		p.kind, p.title = wire.BoxTopic, proto.TitleTopic
	}
	if home, generation, err := b.parts.Names.HomeOf(p.name); err == nil {
		p.home, p.generation = home, generation
	}
	return p
}

// mailbox returns the mailbox of an agent.
func (b *Boxes) mailbox(name string, home proto.PeerID) place {
	t := proto.Target{Kind: proto.TargetAgent, Name: name, Node: home.String()}
	p := place{name: t.String(), kind: wire.BoxMailbox, home: home}
	t.Node = b.parts.Book.NameOf(home)
	p.text = t.String()
	return p
}

// here is find for boxes of this node. It returns the broker, which is nil if the node has
// no box.
func (b *Boxes) here(name string) (place, *mail.Broker, error) {
	p, err := b.find(name)
	if err == nil && p.home != b.cfg.Self {
		err = b.elsewhere(p)
	}
	return p, b.broker.Load(), err
}

func (b *Boxes) elsewhere(p place) error {
	return fmt.Errorf("%w: %s is on another node, %s: do this there", wire.ErrRefused, p.text, b.parts.Book.NameOf(p.home))
}

// existing is here for boxes that exist, if the node has any.
func (b *Boxes) existing(name string) (place, *mail.Broker, error) {
	p, k, err := b.here(name)
	if err == nil && k == nil {
		err = noBox(p, "")
	}
	return p, k, err
}

// subscribed is existing for what is done to a subscription, which has a name if and only if
// the box is a topic.
func (b *Boxes) subscribed(name, sub string) (place, *mail.Broker, error) {
	p, k, err := b.existing(name)
	if err == nil {
		err = p.checkSub(sub)
	}
	return p, k, err
}

// readable is subscribed for what readers do, who may be at a box of another node: then there
// is no broker.
func (b *Boxes) readable(name, sub string) (place, *mail.Broker, error) {
	p, err := b.find(name)
	if err != nil || p.home == b.cfg.Self {
		b.noteRead(p.name)
		return b.subscribed(name, sub)
	}
	return p, nil, p.checkSub(sub)
}

// checkSub checks whether a subscription is named, as that of a topic must be.
func (p place) checkSub(sub string) error {
	switch {
	case p.kind == wire.BoxTopic && sub == "":
		return invalid("%s is a topic: name one of its subscriptions", p.text)
	case p.kind == wire.BoxMailbox && sub != "":
		return invalid("%s is a mailbox: it has no subscription %.64q", p.text, sub)
	case sub != "" && !proto.ValidQueue(sub):
		return fmt.Errorf("%w: subscription %.64q: use 1-63 of a-z 0-9 . _ -", wire.ErrInvalid, sub)
	}
	return nil
}

// noBox is the error for a box or subscription that does not exist.
func noBox(p place, sub string) error {
	add := "mailbox add " + strings.TrimSuffix(strings.TrimPrefix(p.text, proto.AgentPrefix), "@")
	if name, _, ok := strings.Cut(strings.TrimPrefix(p.text, proto.AgentPrefix), "@"); ok {
		add = "mailbox add " + name
	}
	if p.kind == wire.BoxTopic {
		add = "topic add " + strings.TrimPrefix(p.text, proto.TopicPrefix)
		if sub != "" {
			add = "sub add " + strings.TrimPrefix(p.text, proto.TopicPrefix) + " " + sub
		}
	}
	return fmt.Errorf("%w: there is no %s on this node; make it with balefire-node %s", wire.ErrNotFound, p.path(sub), add)
}

// failure returns an error of the broker in the terms of the API.
func failure(p place, sub string, err error) error {
	var held *box.HeldError
	var refused *mail.RefusedError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, box.ErrNotFound):
		return noBox(p, sub)
	case errors.As(err, &held):
		return fmt.Errorf("%w: %s has one reader at a time, and %q reads it", wire.ErrHeld, p.path(sub), held.Reader)
	case errors.Is(err, box.ErrTooManySessions):
		return fmt.Errorf("%w: %s has %d readers, the limit", wire.ErrFull, p.path(sub), box.MaxSessions)
	case errors.As(err, &refused):
		return refusal(refused.Code, refused.Detail)
	case errors.Is(err, mail.ErrStopped), errors.Is(err, store.ErrClosed):
		return fmt.Errorf("%w: %w", wire.ErrDraining, err)
	case errors.Is(err, store.ErrFull):
		return fmt.Errorf("%w: %w", wire.ErrFull, err)
	case errors.Is(err, mail.ErrGone):
		return fmt.Errorf("%w: %s was removed", wire.ErrNotFound, p.path(sub))
	}
	return err
}

// refusal returns the error for a code with which a box refuses.
func refusal(code proto.Code, detail string) error {
	kinds := map[proto.Code]error{
		proto.CodeNoHandler: wire.ErrNotFound, proto.CodeFull: wire.ErrFull, proto.CodeDraining: wire.ErrRefused,
		proto.CodeBadForm: wire.ErrInvalid, proto.CodeTooLarge: wire.ErrTooLarge, proto.CodeExpired: wire.ErrInvalid,
		proto.CodeUnknownVersion: wire.ErrInvalid, proto.CodeDenied: wire.ErrKeyConflict,
	}
	if kind := kinds[code]; kind != nil {
		return fmt.Errorf("%w: %s", kind, detail)
	}
	return fmt.Errorf("%w: %s: %s", wire.ErrRefused, code, detail)
}
