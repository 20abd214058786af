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
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/idempotency"
)

// Results takes what has ended home.
type Results interface {
	// PutResult seals and signs the outcome and writes it, in one batch with what
	// also adds: both are durable when it returns nil, neither after an error.
	// It may call also again for another batch when the first was not written.
	PutResult(ctx context.Context, f *Finished, also func(*store.Batch)) error
}

// An Opener reads what was sealed for this node.
type Opener interface {
	// Content opens the sealed content of a task in custody. If its body was
	// spilled the caller has put it back into the envelope.
	Content(st *proto.Stored) (*proto.Content, error)
}

// Bodies are the streamed bodies, by name (see [BodyName]).
type Bodies interface {
	// Has reports whether the whole body is here and durable.
	Has(name string) bool
	// Open reads the plain body, which was sealed with suite.
	Open(name string, key [32]byte, suite byte) (io.ReadCloser, error)
}

// Files keep sealed bodies that are too large for the store, by name.
type Files interface {
	// Put makes the file durable.
	Put(name string, b []byte) error
	Get(name string) ([]byte, error)
	// Delete removes a file or a streamed body; a missing one is no error.
	Delete(name string) error
}

// Parts is what the inbox works with. All are needed; Bodies and Files may be
// left nil where nothing larger than a record ever arrives, Queues and Leases where
// there are no shared queues.
type Parts struct {
	Members Members
	Opener  Opener
	Results Results
	Bodies  Bodies
	Files   Files
	Queues  Queues
	Leases  Leases
	// Deadline says when the time of a task that was made at this node ends, in Unix
	// milliseconds: later than was signed if the clock was wrong then. known is false
	// while that cannot be said. Default: as was signed.
	Deadline func(proto.TaskID) (ms int64, known bool)
}

// A Finished is a task that has ended here, on its way home.
type Finished struct {
	ID         proto.TaskID
	Origin     proto.PeerID
	Kind       string
	Class      proto.Class
	Seq        proto.Seq // of the task, which is its epoch
	NotAfter   int64     // Unix milliseconds, of the task
	Outcome    *proto.Outcome
	File       string            // the result is in this file and not in the outcome
	Statements []proto.Statement // started, if it was, and done: to be signed as receipts
}

// A Started is a run that lasts: its origin may be told.
type Started struct {
	Origin    proto.PeerID
	Home      proto.PeerID // that granted the lease; zero: it was sent here by name
	Statement proto.Statement
}

// Config tunes an inbox. The zero value of each field means its default.
type Config struct {
	Self   proto.PeerID // this node
	Mesh   proto.MeshID
	BootID proto.BootID // of this start of it

	Slots           int                // handlers that run at a time; default max(4, 2 for each core)
	MaxTasks        int                // tasks in custody that have not ended; default 100 000
	MaxBytes        int64              // of their records; default 256 MiB
	MaxKept         int                // ids that are remembered, live and finished; default 1 000 000; a quarter as many that moved with their queues come on top
	MaxAbandons     int                // deaths of the process that one task may see; default 10
	BaseBackoff     time.Duration      // after the first failed attempt; default 1s
	MaxBackoff      time.Duration      // after the last but one; default 60s
	Keys            idempotency.Limits // of successes of idempotency keys, with the tasks in custody that may make one
	GracefulTimeout time.Duration      // for handlers to end by themselves when Run ends; default 15s
	Dangerous       []string           // kinds that may have the profile dangerous

	OnStarted func(Started)                             // called once for a run that lasts more than a second; must not block
	OnChange  func(proto.TaskID, *proto.Record)         // called after each durable change; must not block nor keep the record
	Fail      func(point string, id proto.TaskID) error // tests: an error at a point stops the inbox there, see the Point constants
	Logger    *slog.Logger                              // default: none
	Clock     clock.Clock                               // default clock.System()
	Rand      func() float64                            // jitter, in [0, 1); default math/rand
	Progress  func(entries int)                         // called while Open reads
}

// cores is how many this process had when it began. The Go runtime may be asked for
// more places than that later, and they are no cores.
var cores = runtime.GOMAXPROCS(0)

func (c Config) withDefaults() Config {
	c.Slots = cmp.Or(c.Slots, max(4, 2*cores))
	c.MaxTasks = cmp.Or(c.MaxTasks, 100_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxKept = cmp.Or(c.MaxKept, 1_000_000)
	c.MaxAbandons = cmp.Or(c.MaxAbandons, 10)
	c.BaseBackoff = cmp.Or(c.BaseBackoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, time.Minute)
	c.GracefulTimeout = cmp.Or(c.GracefulTimeout, 15*time.Second)
	if c.OnStarted == nil {
		c.OnStarted = func(Started) {}
	}
	if c.OnChange == nil {
		c.OnChange = func(proto.TaskID, *proto.Record) {}
	}
	if c.Fail == nil {
		c.Fail = func(string, proto.TaskID) error { return nil }
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

// An Inbox holds the tasks in custody of this node. All its methods are safe for
// concurrent use.
type Inbox struct {
	store    *store.Store
	parts    Parts
	cfg      Config
	limits   limits
	queue    *backlog.Backlog
	handlers *registry
	dedup    *dedupIndex
	keys     *idempotency.Keys // successes of idempotency keys; each task with a key in custody holds a place
	slots    *slots
	leases   *leaseQueue
	dirty    chan struct{} // holds a token when an origin has settled more
	restored int64         // Unix milliseconds: until then memory was lost with an older store; 0: never
}

// Open returns the inbox kept in s, with what it remembers rebuilt from disk. It
// starts nothing: see [Inbox.Run]. A task that was running when the process died
// is judged when its turn comes.
func Open(s *store.Store, with Parts, cfg Config) (*Inbox, error) {
	if with.Members == nil || with.Opener == nil || with.Results == nil {
		return nil, errors.New("open inbox: members, opener and results are needed")
	}
	cfg = cfg.withDefaults()
	in := &Inbox{
		store: s, parts: with, cfg: cfg,
		limits:   limits{maxAbandons: uint32(cfg.MaxAbandons), baseBackoff: cfg.BaseBackoff, maxBackoff: cfg.MaxBackoff},
		handlers: newRegistry(cfg.Dangerous), dedup: newDedupIndex(cfg.MaxKept / 4),
		slots: newSlots(cfg.Slots), leases: new(leaseQueue), dirty: make(chan struct{}, 1),
	}
	q, err := backlog.Open(s, backlog.Buckets{Live: store.Inbox}, backlog.Config{
		Group: groupOf, Lane: laneOf, Expires: expiresAt, Tenant: func(_ backlog.Key, r *proto.Record) string { return string(r.Peer) },
		MaxEntries: cfg.MaxTasks, MaxBytes: cfg.MaxBytes,
		MaxWait: 2 * cfg.MaxBackoff, Progress: cfg.Progress, Clock: cfg.Clock,
		Damaged: func(key []byte, err error) {
			cfg.Logger.Error("a task in custody cannot be read and is left where it is", "key", fmt.Sprintf("%x", key), "err", err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	in.queue = q
	in.keys, err = idempotency.Open(s, idempotency.Config{
		Prefix: prefixSuccess, LegacyPrefix: prefixOldSuccess, Limits: cfg.Keys, Owner: ownerOfSuccess, Clock: cfg.Clock, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	if err := in.loadIndex(); err != nil {
		return nil, fmt.Errorf("open inbox: %w", err)
	}
	return in, nil
}

// groupOf takes the tasks of one kind together: each kind has its own number of
// runs at a time. Those to be cancelled need no handler and stand apart, and those of
// a queue are none of the dispatcher's.
func groupOf(_ backlog.Key, r *proto.Record) string {
	if r.Queue != "" {
		return queueGroup + r.Queue
	}
	if r.Cancel {
		return toCancel
	}
	return r.Kind
}

const toCancel = ""

// expiresAt is the first millisecond at which a task may not be started. What is in
// a queue expires there.
func expiresAt(_ backlog.Key, r *proto.Record) int64 {
	if r.Queue != "" {
		return 0
	}
	return r.NotAfterMs + 1
}

// laneOf puts the tasks of one ordering key of one origin in line, or those of all origins
// where their handler says so (I10).
func laneOf(_ backlog.Key, r *proto.Record) string {
	if r.OrderingKey == "" || r.Queue != "" {
		return ""
	}
	if r.SharedLane {
		return "\x00" + r.Kind + "\x00" + r.OrderingKey
	}
	return string(r.Peer) + r.OrderingKey
}

// loadIndex rebuilds the memory of ids, marks and the floor.
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
			if l.Record.IdempotencyKey != "" && l.Record.Queue == "" && !l.Record.State.Terminal() {
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
	if in.restored, err = readRestored(in.store); err != nil {
		return err
	}
	b, err := in.store.Get(store.Meta, floorKey)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	in.dedup.floor, err = parseFloor(b)
	return err
}

// Register lets tasks of a kind be handled, or changes how. Tasks of the kind
// that wait are judged by the new spec when their turn comes.
func (in *Inbox) Register(s Spec) error {
	h, err := in.handlers.compile(s)
	if err != nil {
		return err
	}
	in.handlers.put(h)
	in.slots.notify()
	return nil
}

// Unregister stops taking tasks of a kind and reports whether it was registered.
// Those in custody wait for the kind to come back, or for their time to pass.
func (in *Inbox) Unregister(kind string) bool {
	in.handlers.suspended.Delete(kind)
	return in.handlers.remove(kind)
}

// Suspend says why the handler of a kind cannot be started now; with no reason it can
// again. Meanwhile nothing of the kind is accepted or started, as if it had no handler,
// and no attempt is spent. It reports whether that is new.
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

// Suspended tells why nothing of a kind can be started now; empty: it can, or has no
// handler.
func (in *Inbox) Suspended(kind string) string { return in.handlers.suspendedReason(kind) }

// Specs returns how kinds are handled, ordered by kind.
func (in *Inbox) Specs() []Spec { return in.handlers.specs() }

// Drain refuses new tasks from now on, or with false takes them again. Tasks in
// custody are worked on.
func (in *Inbox) Drain(on bool) { in.slots.drain(on) }

// HasRoom reports whether there is room again after tasks were refused for lack of
// it: a fifth of what may be is free, so that nobody is called for one place, and
// everybody's share has room, too.
func (in *Inbox) HasRoom() bool {
	return !in.slots.draining() && in.queue.Stats().Live <= in.cfg.MaxTasks/5*4+in.cfg.MaxTasks%5*4/5 && in.dedup.size() <= in.cfg.MaxKept/5*4
}

func (in *Inbox) nowMs() int64 { return in.cfg.Clock.Now().UnixMilli() }

// Knows reports whether the id is remembered here: in custody, being taken in, or
// finished and not settled.
func (in *Inbox) Knows(id proto.TaskID) bool {
	idx := in.dedup
	idx.mu.Lock()
	defer idx.mu.Unlock()
	_, here := idx.ids[id]
	_, coming := idx.committing[id]
	return here || coming
}
