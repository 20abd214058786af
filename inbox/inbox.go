package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/idempotency"
)

// Results takes the results of tasks that have ended.
type Results interface {
	// PutResult seals and signs the outcome and writes it in one batch with what also adds:
	// both are durable when it returns nil, neither after an error. It may call also again
	// for another batch if the first was not written.
	PutResult(ctx context.Context, f *Finished, also func(*store.Batch)) error
}

// An Opener opens content that was sealed for this node.
type Opener interface {
	// Content opens the sealed content of a task in custody. The caller has restored an
	// offloaded body.
	Content(st *proto.Stored) (*proto.Content, error)
}

// Bodies provides what is too large for a record: streamed bodies, and sealed content. What
// no record refers to is removed, unless it is pinned.
type Bodies interface {
	// Pin reports whether a whole file is here and durable, and keeps it until Release.
	Pin(name string) bool
	Release(name string)
	// Open returns the plain body that the content of a task refers to.
	Open(c *proto.Content) (io.ReadCloser, error)
}

// Files stores sealed bodies that are too large for a record.
type Files interface {
	// Put makes the bytes durable under the name that it returns, and pins them.
	Put(b []byte) (name string, err error)
	Get(name string) ([]byte, error)
	// Drop says that a record which referred to a file has ended.
	Drop(name string)
}

// Parts are the dependencies of an inbox. All are required, except Bodies and Files if
// nothing larger than a record ever arrives.
type Parts struct {
	Members Members
	Opener  Opener
	Results Results
	Bodies  Bodies
	Files   Files
	// Deadline returns when the time of a task created at this node ends, in Unix
	// milliseconds: later than signed if the clock was wrong then. known is false while
	// that is undetermined. Default: as signed.
	Deadline func(proto.TaskID) (ms int64, known bool)
	// Ahead returns how far the wall clock of a peer is ahead of this node's. ok is false if
	// the peer has not told it since this node started, or does not rely on it. Default: all
	// clocks agree.
	Ahead func(proto.PeerID) (ahead time.Duration, ok bool)
	// Gone reports whether nothing will be accepted from a peer again under the
	// certificate that it had. Default: whether it is no member now.
	Gone func(proto.PeerID) bool
	// Revoked reports whether the membership of a peer was ended by more than the time.
	// Default: Gone.
	Revoked func(proto.PeerID) bool
}

// A Finished is the end of a task that is reported to its origin.
type Finished struct {
	ID         proto.TaskID
	Origin     proto.PeerID
	Kind       string
	Class      proto.Class
	Seq        proto.Seq // of the task, which is also its epoch
	Outcome    *proto.Outcome
	File       string            // the result is in this file and not in the outcome
	Statements []proto.Statement // started, if it was, and done: to be signed as receipts
}

// A Started is a run that has lasted long enough to be reported.
type Started struct {
	Origin    proto.PeerID
	Home      proto.PeerID // that granted the lease; zero: the task was sent to this node by name
	Statement proto.Statement
}

// Config tunes an inbox. The zero value of each field means its default.
type Config struct {
	Self   proto.PeerID // this node
	Mesh   proto.MeshID
	BootID proto.BootID // of this start

	Slots           int                // handlers that run at a time; default max(4, 2 for each core)
	MaxTasks        int                // tasks in custody that have not ended; default 100 000
	MaxBytes        int64              // of their records; default 256 MiB
	MaxKept         int                // ids that are remembered, live and finished; default 1 000 000; in addition, a quarter as many that moved with their queues
	MaxAbandons     int                // crashes of the process that one task may take part in; default 10
	Keys            idempotency.Limits // for successes of idempotency keys, including tasks in custody that may add one
	GracefulTimeout time.Duration      // time for handlers to finish when Run ends; default 15s
	Dangerous       []string           // kinds that may have the profile dangerous

	OnStarted func(Started)                     // called once for a run that lasts longer than a second; must not block
	OnChange  func(proto.TaskID, *proto.Record) // called after each durable change; must not block or keep the record
	OnUntold  func(*Finished)                   // called after the end of a task whose origin gets no result, because it could not be sealed; must not block
	Fail      func(point string) error          // tests: an error at a point stops the inbox there, see the Point constants
	Logger    *slog.Logger                      // default: none
	Clock     clock.Clock                       // default clock.System()
	Rand      func() float64                    // jitter, in [0, 1); default math/rand
	Progress  func(entries int)                 // called while Open reads
}

// cores is GOMAXPROCS at the start of the process. It may be raised later, which adds no
// cores.
var cores = runtime.GOMAXPROCS(0)

func (c Config) withDefaults() Config {
	c.Slots = cmp.Or(c.Slots, max(4, 2*cores))
	c.MaxTasks = cmp.Or(c.MaxTasks, 100_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxKept = cmp.Or(c.MaxKept, 1_000_000)
	c.MaxAbandons = cmp.Or(c.MaxAbandons, 10)
	c.GracefulTimeout = cmp.Or(c.GracefulTimeout, 15*time.Second)
	if c.OnStarted == nil {
		c.OnStarted = func(Started) {}
	}
	if c.OnUntold == nil {
		c.OnUntold = func(*Finished) {}
	}
	if c.OnChange == nil {
		c.OnChange = func(proto.TaskID, *proto.Record) {}
	}
	if c.Fail == nil {
		c.Fail = func(string) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c
}

// An Inbox holds the tasks in custody of this node. Its methods are safe for concurrent
// use.
type Inbox struct {
	store      *store.Store
	parts      Parts
	custodians map[Keeper]Custodian // see Keep
	granted    Leases
	cfg        Config
	limits     limits
	queue      *backlog.Backlog
	handlers   *registry
	dedup      *dedupIndex
	keys       *idempotency.Keys // successes of idempotency keys; each task with a key in custody reserves a place
	slots      *slots
	fresh      *freshCache
	leases     *leaseQueue
	dirty      chan struct{} // holds a token when an origin has settled more
	restored   int64         // Unix milliseconds: a restored store lost its memory until then; 0: never

	opened time.Duration // when, monotonic

	boots   bootLog     // starts of this node since the last unclean stop
	endLost atomic.Bool // the end of a run could not be written
}

// Open returns the inbox stored in s and rebuilds its index from disk. It starts nothing:
// see [Inbox.Run]. A task that was running when the process died is handled by Run.
func Open(s *store.Store, with Parts, cfg Config) (*Inbox, error) {
	if with.Members == nil || with.Opener == nil || with.Results == nil {
		return nil, errors.New("open inbox: members, opener and results are required")
	}
	cfg = cfg.withDefaults()
	if with.Gone == nil {
		with.Gone = func(p proto.PeerID) bool { _, _, ok := with.Members.Member(p); return !ok }
	}
	if with.Revoked == nil {
		with.Revoked = with.Gone
	}
	if with.Ahead == nil {
		with.Ahead = func(proto.PeerID) (time.Duration, bool) { return 0, true }
	}
	in := &Inbox{
		store: s, parts: with, cfg: cfg, opened: cfg.Clock.Mono(),
		limits:   limits{maxAbandons: uint32(cfg.MaxAbandons)},
		handlers: newRegistry(cfg.Dangerous), dedup: newDedupIndex(cfg.MaxKept / 4),
		slots: newSlots(cfg.Slots), fresh: &freshCache{all: map[backlog.Key]*fresh{}}, leases: new(leaseQueue), custodians: map[Keeper]Custodian{}, dirty: make(chan struct{}, 1),
	}
	q, err := backlog.Open(s, backlog.Buckets{Live: store.Inbox}, backlog.Config{
		Group: groupOf, Parked: isKept, Lane: laneOf, Expires: expiresAt, Tenant: func(_ backlog.Key, r *proto.Record) string { return string(r.Peer) },
		MaxEntries: cfg.MaxTasks, MaxBytes: cfg.MaxBytes,
		MaxWait: 2 * maxBackoff, Progress: cfg.Progress, Clock: cfg.Clock,
		Damaged: func(key []byte, err error) {
			cfg.Logger.Error("a task in custody cannot be read; it is left unchanged", "key", fmt.Sprintf("%x", key), "err", err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	in.queue = q
	in.keys, err = idempotency.Open(s, idempotency.Config{
		Prefix: prefixSuccess, Limits: cfg.Keys, Owner: ownerOfSuccess, Clock: cfg.Clock, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	if err := errors.Join(in.loadIndex(), in.loadBoots()); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	return in, nil
}

// groupOf groups tasks by kind: each kind has its own limit of concurrent runs. Cancelled
// tasks need no handler, and the inbox starts none for those with a custodian.
func groupOf(k backlog.Key, r *proto.Record) string {
	if r.Cancel || isKept(k, r) {
		return noKind
	}
	return r.Kind
}

// noKind is the group of the tasks for which no handler is started here.
const noKind = ""

// isKept reports whether a task has a custodian: the dispatcher never takes it.
func isKept(_ backlog.Key, r *proto.Record) bool { return keeperOf(r) != KeeperSlot }

// expiresAt returns the first millisecond at which a task may not be started. A
// custodian expires its tasks itself.
func expiresAt(k backlog.Key, r *proto.Record) int64 {
	if isKept(k, r) {
		return 0
	}
	return r.NotAfterMs + 1
}

// laneOf returns the lane of a task: tasks of one origin with one ordering key, or of all
// origins if their handler shares lanes, run one after the other (I10).
func laneOf(k backlog.Key, r *proto.Record) string {
	if r.OrderingKey == "" || isKept(k, r) {
		return ""
	}
	if r.SharedLane {
		return "\x00" + r.Kind + "\x00" + r.OrderingKey
	}
	return string(r.Peer) + r.OrderingKey
}

// loadIndex rebuilds the index of ids, and the watermarks.
func (in *Inbox) loadIndex() error {
	for cursor := []byte(nil); ; {
		page, next, err := in.queue.List(backlog.Live, cursor, 1000, nil)
		if err != nil {
			return err
		}
		for _, l := range page {
			if l.Key.Part == backlog.PartCancel {
				from, _ := proto.PeerIDFrom(l.Record.Peer)
				in.dedup.addTombstone(l.Key.ID, from, l.Record.NotAfterMs)
				continue
			}
			in.dedup.load(l.Key.ID, l.Record, l.Size)
			if l.Record.IdempotencyKey != "" && keeperOf(l.Record) == KeeperSlot && !l.Record.State.Terminal() {
				in.keys.Reserve(string(l.Record.Peer))
			}
		}
		if next == nil {
			break
		}
		cursor = next
	}
	for p, err := range in.store.All(store.Dedup, []byte{prefixWatermark}, []byte{prefixWatermark + 1}) {
		if err != nil {
			return err
		}
		from, mark, err := parseWatermark(p)
		if err != nil {
			return err
		}
		in.dedup.loadWatermark(from, mark)
	}
	var err error
	in.restored, err = readRestored(in.store)
	return err
}

// Register registers a handler for a kind, or replaces it. The new spec also applies to
// waiting tasks of the kind.
func (in *Inbox) Register(s Spec) error {
	h, err := in.handlers.compile(s)
	if err != nil {
		return err
	}
	in.handlers.put(h)
	in.slots.notify()
	return nil
}

// Unregister stops accepting tasks of a kind and reports whether it was registered. Those
// in custody wait until the kind is registered again or their time has passed.
func (in *Inbox) Unregister(kind string) bool {
	in.handlers.suspended.Delete(kind)
	return in.handlers.remove(kind)
}

// Suspend records why the handler of a kind cannot be started now; an empty reason resumes
// it. While suspended no task of the kind is accepted or started, as if it had no handler,
// and no attempt is spent. It reports whether that is a change.
func (in *Inbox) Suspend(kind, why string) bool {
	was := in.handlers.suspendedReason(kind)
	if why == "" {
		in.handlers.suspended.Delete(kind)
	} else {
		in.handlers.suspended.Store(kind, why)
	}
	if was != "" && why == "" {
		in.slots.notify()
	}
	return was != why
}

// Suspended returns why tasks of a kind cannot be started now; empty: they can, or the kind
// has no handler.
func (in *Inbox) Suspended(kind string) string { return in.handlers.suspendedReason(kind) }

// Specs returns the registered specs, ordered by kind.
func (in *Inbox) Specs() []Spec { return in.handlers.specs() }

// HasRoom reports whether peers that were refused for lack of room may be told that there
// is room again: a fifth of each limit is free, so that each has a share and no one is
// notified for a single place.
func (in *Inbox) HasRoom() bool {
	return !in.slots.halted() && in.queue.Stats().Live <= in.cfg.MaxTasks/5*4+in.cfg.MaxTasks%5*4/5 && in.dedup.size() <= in.cfg.MaxKept/5*4
}

func (in *Inbox) nowMs() int64 { return in.cfg.Clock.Now().UnixMilli() }

// Unfinished returns how many tasks of an origin are here, or arriving, that have not ended.
func (in *Inbox) Unfinished(p proto.PeerID) int {
	idx := in.dedup
	idx.mu.Lock()
	defer idx.mu.Unlock()
	o, _ := idx.originOf(p)
	return o.usage.live
}

// Knows reports whether the id is known here: in custody, being committed, or finished and
// not settled, or without a result for its origin.
func (in *Inbox) Knows(id proto.TaskID) bool {
	idx := in.dedup
	idx.mu.Lock()
	defer idx.mu.Unlock()
	_, here := idx.ids[id]
	_, coming := idx.committing[id]
	return here || coming
}
