package mail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// Errors of a broker.
var (
	ErrStopped = errors.New("mail: stopped")                // the broker has ended
	ErrUnknown = errors.New("mail: the outcome is unknown") // it ended before it heard whether a record is on disk
)

// A Ledger is what a broker keeps its boxes in: *[ledger.Ledger] is one. It keeps records in order,
// and checkpoints, and gives back the space of records that nobody needs. It may fail, once.
type Ledger interface {
	Queue([]ledger.Entry) *ledger.Pending
	Replay(from uint64, f func(ledger.Batch) error) error
	Read(p ledger.Place, dst []byte) ([]byte, error)

	LoadCheckpoint(load func(io.Reader) error) (index uint64, err error)
	Checkpoint(index uint64, write func(io.Writer) error) error
	Release(live func(segment uint64, size int64) bool)

	Failed() <-chan struct{} // closed when it fails
	Err() error              // why
}

// An Observer is told what becomes of each mail. Boxes are given by name. Its methods must not wait.
type Observer interface {
	// Sent is called with the class of a mail of this node that was stored, in its box or in the
	// spool of one on another node.
	Sent(c proto.Class)
	// Waited is called with how long a mail waited in its box until its first delivery.
	Waited(box string, c proto.Class, d time.Duration)
	// Handled is called with how long a reader had a mail until it was acknowledged.
	Handled(box string, d time.Duration)
	// Retried is called with why a delivery failed or was given back.
	Retried(box string, why box.Cause)
}

// unobserved is the Observer of a broker that has none.
type unobserved struct{}

func (unobserved) Sent(proto.Class)                          {}
func (unobserved) Waited(string, proto.Class, time.Duration) {}
func (unobserved) Handled(string, time.Duration)             {}
func (unobserved) Retried(string, box.Cause)                 {}

// Config configures a broker.
type Config struct {
	Boot   uint64       // of this start; higher than that of any start before, also after the disk was put back
	Self   proto.PeerID // this node: the home that a bundle for an earlier one is referred to
	Clock  clock.Clock  // default the system's
	Logger *slog.Logger

	// Bounced is called, on a goroutine of its own, with a letter for each mail that was not
	// delivered, and for each that is DONE and asked for that. After a crash it is called again
	// with what may not have been sent: the dedupe key tells. The context ends with the broker.
	// Nil: nobody is told.
	Bounced func(context.Context, Bounce)

	// Sign signs what this node states about mail of other nodes that it has taken, in Mesh; nil: it
	// signs nothing. Verify checks what a home has signed about mail of this node, and returns a
	// receipt for each statement; nil: nothing counts as signed. Unproven, if it is set, is called
	// when a home has mails and did not sign that, though it was asked to.
	Mesh     proto.MeshID
	Sign     func([]proto.MailStatement) []byte
	Verify   func(home proto.PeerID, list []proto.MailStatement, signature []byte) ([]proto.MailReceipt, error)
	Unproven func(box string, home proto.PeerID, mails int, why error)

	// Archive keeps dead letters that the broker is about to forget. While it fails they
	// stay. The context ends with the broker. Nil: they are forgotten.
	Archive func(context.Context, []DeadLetter) error

	// Moved decides whether the word of a home counts that a box has moved to another home. It
	// must not wait. Nil: it does.
	Moved func(box string, home proto.PeerID, generation uint64) bool

	// Known reports whether a node is or was a member, as far as is known: what comes with the copy
	// of a box may be mail of any. It must not wait. Nil: each is.
	Known func(proto.PeerID) bool

	// Gone reports that the home of a box will never answer: what waits for the box ends, and
	// its senders are told. It must not wait. Nil: it may always come back.
	Gone func(box string, home proto.PeerID) bool

	Observer Observer // is told of each mail; nil: nobody is

	// Fail is called with the name of each failpoint; an error that it returns fails what is
	// done there. Default: nothing fails.
	Fail func(point string) error

	// Freed is called with the name of a body outside of its letter that a mail needs no more;
	// another one may. It must not wait. Nil: nobody is told.
	Freed func(name [32]byte)

	CheckpointRecords int64         // new records after which a checkpoint is written; default 200 000
	CheckpointBytes   int64         // bytes of new records after which one is written; default 256 MiB
	CheckpointEvery   time.Duration // after which one is written if there are new records; default 5 min

	random func() uint64 // for waits; default math/rand/v2
}

const (
	tickEvery                = 100 * time.Millisecond
	defaultCheckpointRecords = 200_000
	defaultCheckpointBytes   = 256 << 20
	defaultCheckpointEvery   = 5 * time.Minute
)

// A Broker keeps the boxes of one ledger. One goroutine, that of [Broker.Run], owns their
// state: everything else hands it operations.
//
//	Send, Settle ─▶ ops ─▶ state: does it count? ─▶ records ─▶ the log
//	                        state.Apply ◀── on disk ◀──────────┘
//	                         └─▶ answers, deliveries, bounces
type Broker struct {
	cfg   Config
	log   Ledger
	boxes atomic.Pointer[map[string]knownBox] // by name, as of the last change
	peers atomic.Pointer[[]proto.PeerID]      // that mail came from, by index from 1

	last    atomic.Uint64 // index of the newest batch of which a record was applied
	changes sync.Mutex    // held while a box or subscription is changed

	mu      sync.Mutex
	running bool // Run was called
	ops     swap[op]
	commits swap[commit]
	stopped error
	wake    chan struct{}
	ticks   ticks
	ended   chan struct{} // closed when stopped is set

	// Of the goroutine of Run.
	state    *box.State
	chains   Chains
	out      box.Output
	done     box.Output // what react works on
	queued   queued
	sessions map[*box.Session]*Session
	started  bool // the record of the start was applied
	clocks   clocks

	incoming incoming
	spools   spools
	reports  reports
	space
	waiting sync.WaitGroup // for the goroutines that the broker starts
}

// An op is something that the goroutine of Run is to do.
type op func(now box.Now)

// A commit is the answer of the log to one record.
type commit struct {
	index uint64
	place ledger.Place
	err   error
}

// New returns a broker with the state that the log has. Run must be called before anything
// is delivered.
func New(log Ledger, cfg Config) (*Broker, error) {
	b := newBroker(log, cfg)
	if err := b.load(); err != nil {
		return nil, fmt.Errorf("mail: %w", err)
	}
	return b, nil
}

// newBroker returns a broker that has loaded nothing.
func newBroker(log Ledger, cfg Config) *Broker {
	if cfg.Clock.IsZero() {
		cfg.Clock = clock.System()
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Observer == nil {
		cfg.Observer = unobserved{}
	}
	if cfg.Fail == nil {
		cfg.Fail = func(string) error { return nil }
	}
	if cfg.Freed == nil {
		cfg.Freed = func([32]byte) {}
	}
	cfg.CheckpointRecords = cmp.Or(cfg.CheckpointRecords, defaultCheckpointRecords)
	cfg.CheckpointBytes = cmp.Or(cfg.CheckpointBytes, defaultCheckpointBytes)
	cfg.CheckpointEvery = cmp.Or(cfg.CheckpointEvery, defaultCheckpointEvery)
	if cfg.random == nil {
		cfg.random = rand.Uint64
	}
	b := &Broker{
		cfg: cfg, log: log, clocks: clocks{slept: cfg.Clock.Boot() - cfg.Clock.Mono()}, wake: make(chan struct{}, 1), ended: make(chan struct{}), sessions: map[*box.Session]*Session{},
		incoming: incoming{origins: map[proto.PeerID]uint32{}, bodies: map[arrivingBody]int{}, parts: map[box.BoxID]int64{}, unknown: map[box.BoxID]int{}},
		spools:   spools{origin: chain.NewOrigin(cfg.Boot), targets: map[string]*target{}, here: map[box.BoxID]*target{}, lanes: map[proto.PeerID]*Lane{}},
	}
	b.queued.after = b.committed
	b.ticks = newTicks(cfg.Clock)
	return b
}

// load reads the newest checkpoint and what the log has since.
func (b *Broker) load() error {
	b.state = box.New(&b.chains)
	index, err := b.log.LoadCheckpoint(func(r io.Reader) (err error) {
		b.state, err = box.Load(r, &b.chains)
		return err
	})
	if err != nil {
		return err
	}
	b.last.Store(index)
	replay, gaps := b.replay, 0
	err = b.log.Replay(index+1, func(batch ledger.Batch) error {
		if batch.Kind == ledger.KindLost {
			if gaps++; gaps == 1 {
				next := b.sequences()
				replay = func(p ledger.Place, rec []byte) error { return b.replayBehindGap(p, rec, next) }
			}
		}
		for p, rec := range batch.Entries() {
			if err := replay(p, rec); err != nil {
				return fmt.Errorf("batch %d of the ledger: %w", batch.Index, err)
			}
		}
		b.last.Store(batch.Index)
		return nil
	})
	if err == nil && gaps > 0 {
		err = b.closeGaps(gaps)
	}
	if err != nil {
		return err
	}
	return b.loaded()
}

// replay applies a record that the log has.
func (b *Broker) replay(p ledger.Place, rec []byte) error {
	var out box.Output
	err := b.state.Apply(pack(p), rec, &out)
	b.out.Bounces = append(b.out.Bounces, out.Bounces...) // their senders may not know yet
	return err
}

// loaded makes what follows from the state.
func (b *Broker) loaded() error {
	if b.state.Boot() >= b.cfg.Boot {
		return fmt.Errorf("start %d is not newer than start %d in the ledger", b.cfg.Boot, b.state.Boot())
	}
	b.publish()
	b.neededBytes()
	return b.loadSpools()
}

// offsetBits are the bits of the offset in a [box.Place]: a segment is at most 100 MiB. The
// other bits are the lowest of the index with which the segment begins.
const offsetBits = 27

// pack returns where a record lies as one number.
func pack(p ledger.Place) box.Place { return box.Place(p.Segment<<offsetBits | uint64(p.Offset)) }

// read appends to dst the record of a place that pack made a number of. Its segment is the newest
// one with these bits: those of 2^37 batches ago are gone, after a year and a half of 2 700
// batches a second.
func (b *Broker) read(p box.Place, length int, dst []byte) ([]byte, error) {
	return b.log.Read(ledger.Place{Segment: segmentOf(p, b.last.Load()), Offset: uint32(p & (1<<offsetBits - 1)), Length: uint32(length)}, dst)
}

// readMail appends to dst the record of a mail. If it was moved since k was looked up, it is
// read where it is now. The error is [store.ErrNotFound] if it has ended meanwhile. It must not
// be called by the goroutine of Run, for which no record is gone that the state has.
func (b *Broker) readMail(ctx context.Context, k box.Kept, dst []byte) ([]byte, error) {
	for {
		out, err := b.read(k.Place, k.Length, dst)
		if !errors.Is(err, store.ErrNotFound) {
			return out, err
		}
		is, failed := b.record(ctx, k.Box, k.Seq)
		switch {
		case failed != nil:
			return dst, failed
		case is.Length == 0 || is.Place == k.Place:
			return dst, err
		}
		k = is
	}
}

// record returns the record of a mail as it is now; of length 0: it is not needed.
func (b *Broker) record(ctx context.Context, id box.BoxID, seq uint64) (k box.Kept, err error) {
	err = b.call(ctx, func(box.Now) { k, _ = b.state.Record(id, seq) })
	return k, err
}

// MailOf returns the mail with a record, and the node that it came from: zero is this one. The
// error is [store.ErrNotFound] if the mail has ended since k was looked up. It must not be
// called within [Broker.View].
func (b *Broker) MailOf(ctx context.Context, k box.Kept) (m box.Mail, from proto.PeerID, err error) {
	rec, err := b.readMail(ctx, k, nil)
	if err != nil {
		return m, from, err
	}
	m, err = box.MailOf(rec)
	return m, b.peer(m.Origin), err
}

// mailAt is MailOf for what is at a place or nowhere.
func (b *Broker) mailAt(p box.Place, length int) (m box.Mail, from proto.PeerID, err error) {
	rec, err := b.read(p, length, nil)
	if err != nil {
		return m, from, err
	}
	m, err = box.MailOf(rec)
	return m, b.peer(m.Origin), err
}

// peer returns the peer with an index, zero for this node.
func (b *Broker) peer(index uint32) proto.PeerID {
	if peers := *b.peers.Load(); index > 0 && int(index) <= len(peers) {
		return peers[index-1]
	}
	return proto.PeerID{}
}

// segmentOf returns the first index of the segment of a place, given the newest index.
func segmentOf(p box.Place, newest uint64) uint64 {
	return newest - (newest-uint64(p)>>offsetBits)&(1<<(64-offsetBits)-1)
}

// now returns what a decision needs of the outside. While the wall clock is doubted, it
// stands still: nothing expires.
func (b *Broker) now() box.Now {
	doubted := b.cfg.Clock.Doubted()
	boot := b.clocks.observe(b.cfg.Clock, doubted)
	return box.Now{Wall: b.clocks.wall, Mono: boot.Milliseconds(), Rand: b.cfg.random(), Grace: b.clocks.grace.Milliseconds(), Doubted: doubted}
}

// Run serves the boxes until ctx is done or the log fails. It must be called once. When it
// returns, nothing of the broker is running, and what was not answered is ErrUnknown. It
// does not close the log.
func (b *Broker) Run(ctx context.Context) error {
	defer b.waiting.Wait()
	b.mu.Lock()
	b.running = true
	b.mu.Unlock()
	b.begin(ctx)
	ticked := b.cfg.Clock.Mono()
	defer b.ticks.stop()
	for {
		select {
		case <-ctx.Done():
			return b.stop(nil)
		case <-b.log.Failed():
			return b.stop(b.log.Err())
		case <-b.wake:
			if !b.started || b.cfg.Clock.Mono()-ticked < tickEvery {
				b.step(ctx)
				continue
			}
		case <-b.ticks.timer.C:
		}
		b.ticks.begin()
		ticked = b.cfg.Clock.Mono()
		if b.started {
			b.tick(ctx)
		} else { // the record of the start may have been refused
			b.queued.again(b.cfg.Clock.Boot().Milliseconds())
			b.flush()
		}
		b.step(ctx)
		wait, waits := b.next()
		b.ticks.end(wait, waits)
	}
}

// begin queues the record of the start.
func (b *Broker) begin(ctx context.Context) {
	b.saved = savedLog{at: b.cfg.Clock.Boot(), records: 1} // what was replayed
	b.reports.bouncing = new(sync.WaitGroup)
	b.state.Start(b.now(), b.cfg.Boot, &b.out)
	b.propose(func(box.Result, error) { b.started = true })
	now := b.now()
	b.endUnreadable(now)
	b.react(ctx, now)
	b.flush()
}

// tick does what time brings.
func (b *Broker) tick(ctx context.Context) {
	now := b.now()
	b.state.Tick(now, &b.out)
	b.queued.again(now.Mono)
	b.tickSpools(now)
	b.archiveDue(ctx, now)
	if b.queued.len() == 0 {
		b.checkpointDue(ctx)
	}
}

// step applies what the log has written, does what was asked for, and hands the log what
// follows from it.
func (b *Broker) step(ctx context.Context) {
	b.mu.Lock()
	commits := b.commits.take()
	b.mu.Unlock()
	now := b.now()
	for _, c := range commits {
		if c.err == nil && c.index > b.last.Load() {
			b.checkpointDue(ctx) // the batch before this one was applied to its end
		}
		b.apply(c)
	}
	b.mu.Lock()
	b.commits.put(commits)
	b.mu.Unlock()
	if !b.started {
		return // handles count from the record of the start
	}
	b.mu.Lock()
	ops := b.ops.take()
	b.mu.Unlock()
	for _, do := range ops {
		do(now)
	}
	b.mu.Lock()
	b.ops.put(ops)
	b.mu.Unlock()
	b.moveDue(now)
	b.react(ctx, now)
	b.tellDone(ctx, now)
	b.flush()
}

// apply applies the oldest proposal, or tells that it was not written.
func (b *Broker) apply(c commit) {
	p := b.queued.answered()
	if errors.Is(c.err, store.ErrNoDisk) && box.Decided(p.rec) {
		b.queued.refused = append(b.queued.refused, p) // the state has no way back
		return
	}
	if c.err != nil {
		p.finish(box.Result{}, c.err)
		return
	}
	b.last.Store(c.index)
	results, ends, kept := len(b.out.Results), len(b.out.Ends), b.state.KeptBytes()
	if err := b.state.Apply(pack(c.place), p.rec, &b.out); err != nil {
		b.cfg.Logger.Error("a record of this broker is refused by its state", "why", err) // a bug: it is skipped at each start
		p.finish(box.Result{}, err)
		return
	}
	if t, _ := box.TypeOf(p.rec); t != box.TypeAge || kept != b.state.KeptBytes() {
		b.saved.records++
		b.saved.bytes += int64(len(p.rec))
	}
	b.noteApplied(b.out.Results[results:], b.out.Ends[ends:])
	var r box.Result
	if len(b.out.Results) > results {
		r = b.out.Results[results]
	}
	p.finish(r, nil)
}

// react does what the state wants done since the last call: it queues records, delivers,
// and tells of ends.
func (b *Broker) react(ctx context.Context, now box.Now) {
	for len(b.out.Ready)+len(b.out.Records)+len(b.out.Bounces)+len(b.out.Events)+len(b.out.Archive)+len(b.out.Lost)+len(b.out.Objects) > 0 {
		b.propose(nil)
		b.out, b.done = b.done, b.out
		for _, x := range b.done.Lost {
			b.end(x, ErrGone)
		}
		for _, x := range b.done.Ready {
			b.deliver(now, x)
		}
		b.bounce(ctx, b.done.Bounces)
		for _, e := range b.done.Events {
			b.noteEvent(e)
		}
		for _, name := range b.done.Objects {
			b.cfg.Freed(name)
		}
		b.dead.waiting = append(b.dead.waiting, b.done.Archive...)
		b.done.Reset()
	}
	b.out.Reset()
}

// propose queues the records of out for the log. Done is called when the last one was
// applied; nil: nobody waits.
func (b *Broker) propose(done func(box.Result, error)) {
	for i, rec := range b.out.Records {
		var last func(box.Result, error)
		if i == len(b.out.Records)-1 {
			last = done
		}
		b.queue(append([]byte(nil), rec...), false, false, last)
	}
	b.out.Records = b.out.Records[:0]
}

// queue queues one record for the next flush.
func (b *Broker) queue(rec []byte, newWork, relaxed bool, done func(box.Result, error)) {
	b.queued.push(proposal{rec: rec, done: done}, newWork, relaxed)
}

// flush hands the log what was queued.
func (b *Broker) flush() {
	if len(b.queued.next) > 0 {
		b.log.Queue(b.queued.take())
	}
}

// committed is called by the log, in the order of the proposals.
func (b *Broker) committed(index uint64, p ledger.Place, err error) {
	b.mu.Lock()
	b.commits.list = append(b.commits.list, commit{index, p, err})
	b.mu.Unlock()
	b.ticks.soon()
	signal(b.wake)
}

// signal puts one into a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// do hands an operation to the goroutine of Run.
func (b *Broker) do(o op) error {
	b.mu.Lock()
	if b.stopped != nil {
		b.mu.Unlock()
		return b.stopped
	}
	b.ops.list = append(b.ops.list, o)
	b.mu.Unlock()
	b.ticks.soon()
	signal(b.wake)
	return nil
}

// call does f on the goroutine of Run and waits for its end. If it returns an error, f has not been
// done and will not be: it writes nothing that the caller reads.
func (b *Broker) call(ctx context.Context, f func(now box.Now)) error {
	var taken atomic.Bool // by f, or by a caller that gives up
	done := make(chan struct{})
	if err := b.do(func(now box.Now) {
		if taken.CompareAndSwap(false, true) {
			f(now)
			close(done)
		}
	}); err != nil {
		return err
	}
	var err error
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-b.ended:
		err = ErrUnknown
	}
	if !taken.CompareAndSwap(false, true) {
		<-done
		return nil
	}
	return err
}

// stop ends the broker: nobody is served any more, and what was asked for and not answered
// is unknown.
func (b *Broker) stop(err error) error {
	if err != nil {
		err = fmt.Errorf("mail: %w", err)
	}
	b.mu.Lock()
	b.stopped = ErrStopped
	b.ops = swap[op]{}
	b.mu.Unlock()
	close(b.ended)
	for x := range b.sessions {
		b.end(x, ErrStopped)
	}
	return err
}
