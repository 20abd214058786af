package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/idempotency"
)

// An Outbox is the home of the tasks made at this node. All its methods are safe
// for concurrent use.
type Outbox struct {
	store   *store.Store
	backlog *backlog.Backlog
	sign    Signer
	cfg     Config
	limits  limits
	boot    uint64
	bootID  proto.BootID
	started time.Duration // boot time of Open

	queue      submitQueue    // drafts that wait for the next group
	encodings  sync.Pool      // of *[]byte, for what is encoded before it is signed
	calls      sync.Pool      // of *call, that nobody waits for
	seqs       seqs           // what was promised to each target
	links      links          // who is linked, and what may have been sent
	deliveries deliveryStates // what memory alone knows of deliveries
	submitted  submitCache    // tasks just written, not to be read again
	hints      retryHints     // peers that take now what they refused
	watches    watches        // callers that wait for a task to change
	stamps     stamps         // whether the times of the tasks agree with the clock
	keys       *idempotency.Keys
}

// buckets are those of the tasks of this home.
var buckets = backlog.Buckets{Live: store.PendingTasks, Done: store.Done, Dead: store.DeadLetters}

// Open returns the outbox kept in s. It raises the boot number, durably, before
// anything else, and starts nothing: see [Outbox.Run].
func Open(s *store.Store, sign Signer, cfg Config) (*Outbox, error) {
	cfg = cfg.withDefaults()
	o := &Outbox{
		store: s, sign: sign, cfg: cfg,
		limits: limits{run: cfg.RunLimit, result: cfg.ResultFor}, started: cfg.Clock.Boot(),
		queue: newSubmitQueue(), encodings: sync.Pool{New: func() any { return new([]byte) }}, calls: sync.Pool{New: newCall},
		deliveries: newDeliveryStates(), submitted: newSubmitCache(), watches: newWatches(), hints: newRetryHints(),
	}
	var err error
	if o.boot, o.bootID, err = raiseBoot(s, cfg.Clock.Now()); err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	if o.links, err = readLinks(s, o.boot); err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	o.seqs, o.stamps = newSeqs(o.boot), newStamps(cfg.Clock, o.bootID)
	if o.backlog, err = backlog.Open(s, buckets, o.backlogConfig()); err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	o.seqs.sort()
	if err = o.openKeys(); err != nil {
		return nil, fmt.Errorf("open outbox: %w", err)
	}
	return o, nil
}

func (o *Outbox) backlogConfig() backlog.Config {
	c := o.cfg
	return backlog.Config{
		Parked:     parked,
		Expires:    o.expires,
		MaxEntries: c.MaxPending, MaxBytes: c.MaxBytes, MaxWait: c.MaxBackoff * 3 / 2,
		DoneFor: c.Retention.DoneFor, MaxDone: c.Retention.MaxDone,
		DeadFor: c.Retention.DeadFor, MaxDead: c.Retention.MaxDead,
		Archive: c.Retention.Archive, Archived: c.Retention.Archived,
		Progress: c.Progress, Clock: c.Clock,
		Found: o.found,
		Damaged: func(key []byte, err error) {
			c.Logger.Error("a record of the outbox cannot be read and is left alone", "key", fmt.Sprintf("%x", key), "err", err)
		},
	}
}

// parked: a task that the other side has waits for its result, not for a lane.
func parked(k backlog.Key, r *proto.Record) bool {
	return k.Part == backlog.PartTask && r.State != proto.Pending
}

// expires returns when the time of an entry must be looked at.
func (o *Outbox) expires(k backlog.Key, r *proto.Record) int64 {
	switch {
	case k.Part == backlog.PartResult:
		return r.NotAfterMs + o.limits.result.Milliseconds()
	case k.Part == backlog.PartTask && r.State == proto.Pending:
		return r.NotAfterMs
	}
	return o.limits.giveUpAt(r.NotAfterMs)
}

// found takes up an entry that an earlier start left.
func (o *Outbox) found(k backlog.Key, r *proto.Record) {
	o.stamps.note(r)
	if k.Part != backlog.PartTask || r.State != proto.Pending {
		return
	}
	if p, err := proto.PeerIDFrom(r.Peer); err == nil {
		o.seqs.found(p, r.Seq())
	}
}

// Boot returns the number of this start. It rises with every start, also over a
// restored backup unless the clock was set back with it.
func (o *Outbox) Boot() uint64 { return o.boot }

// BootID returns the random id of this start.
func (o *Outbox) BootID() proto.BootID { return o.bootID }

// NextSeq promises target a task of the returned sequence: until the task is
// submitted and settled, or DropSeq is called, the mark stays below it.
func (o *Outbox) NextSeq(target proto.PeerID) proto.Seq { return o.seqs.next(target) }

// DropSeq says that no task of this sequence will be submitted.
func (o *Outbox) DropSeq(target proto.PeerID, seq proto.Seq) { o.seqs.settle(target, seq) }

// Mark returns the settled mark towards target: every task of this node for it
// with a sequence up to the mark is accepted, refused or ended and will never be
// sent again.
func (o *Outbox) Mark(target proto.PeerID) proto.Seq { return o.seqs.mark(target) }

// tick is how often Run looks whether time has ended something.
const tick = time.Second

// Run signs and commits what is submitted, and ends what is past its time, until
// ctx is done or the store fails. Submits that wait then get ErrClosed.
func (o *Outbox) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	wg.Go(func() { o.queue.run(ctx, o.cfg.Clock.Mono, o.beginGroup) })
	wg.Go(func() { o.expireAndTidy(ctx) })
	wg.Go(func() { o.keys.Run(ctx) })
	select {
	case <-ctx.Done():
	case <-o.store.Failed():
		stop(o.store.Err())
	}
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return fmt.Errorf("outbox: %w", cause)
	}
	return nil
}

// expireAndTidy ends what is past its time and keeps the shelves within their bounds.
func (o *Outbox) expireAndTidy(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		trusted, err := o.restamp(ctx)
		if err == nil && trusted {
			err = o.expire(ctx)
		}
		if err != nil && ctx.Err() == nil {
			o.cfg.Logger.Error("cannot end what is past its time; it is tried again", "err", err)
		}
		if _, err := o.backlog.Tidy(ctx); err != nil && ctx.Err() == nil {
			o.cfg.Logger.Error("cannot tidy the shelves of ended tasks; it is tried again", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
