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

// An Outbox is the home of the tasks created at this node. All its methods are
// safe for concurrent use.
type Outbox struct {
	store   *store.Store
	backlog *backlog.Backlog
	sign    Signer
	cfg     Config
	limits  limits
	boot    uint64
	bootID  proto.BootID
	started time.Duration // boot time of Open

	queue      submitQueue    // drafts waiting for the next group
	encodings  sync.Pool      // of *[]byte, for encoding before signing
	payloads   sync.Pool      // of *[]byte, for the payloads of messages
	calls      sync.Pool      // of *call with no waiter
	seqs       seqs           // sequences promised to each target
	links      links          // open links and the highest sequence that may have been sent on each
	deliveries deliveryStates // delivery state that is kept only in memory
	submitted  submitCache    // tasks just written, so that they need not be read back
	accepted   acceptCache    // records of tasks just accepted, so that they need not be read back
	hints      retryHints     // peers that announced that they accept again what they refused
	watches    watches        // callers waiting for a task to change
	stamps     stamps         // whether the times of the tasks agree with the clock
	keys       *idempotency.Keys
}

// buckets hold the tasks of this home.
var buckets = backlog.Buckets{Live: store.PendingTasks, Done: store.Done, Dead: store.DeadLetters}

// Open returns the outbox stored in s. It first raises the boot number durably.
// It starts nothing: see [Outbox.Run].
func Open(s *store.Store, sign Signer, cfg Config) (*Outbox, error) {
	cfg = cfg.withDefaults()
	o := &Outbox{
		store: s, sign: sign, cfg: cfg,
		limits: limits{run: cfg.RunLimit, result: cfg.ResultFor}, started: cfg.Clock.Boot(),
		queue: newSubmitQueue(), encodings: sync.Pool{New: newBuffer}, payloads: sync.Pool{New: newBuffer}, calls: sync.Pool{New: newCall},
		deliveries: newDeliveryStates(), submitted: newSubmitCache(), accepted: newAcceptCache(), watches: newWatches(), hints: newRetryHints(),
	}
	var err error
	if o.boot, o.bootID, err = raiseBoot(s, cfg.Clock.Plausible()); err != nil {
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
		MaxEntries: c.MaxPending, MaxBytes: c.MaxBytes, MaxWait: maxBackoff * 3 / 2,
		DoneFor: c.Retention.DoneFor, MaxDone: c.Retention.MaxDone,
		DeadFor: c.Retention.DeadFor, MaxDead: c.Retention.MaxDead,
		Archive: c.Retention.Archive, Archived: c.Retention.Archived,
		Progress: c.Progress, Clock: c.Clock,
		Found: o.found, Ended: o.endedTask,
		Repair: o.repair,
		Damaged: func(key []byte, err error) {
			c.Logger.Error("a record of the outbox cannot be read; a task is INDETERMINATE now if the record of its start can be read", "key", fmt.Sprintf("%x", key), "err", err)
		},
	}
}

// repair makes a task INDETERMINATE whose newest record cannot be read: it may have run. It
// ends by a late result, by a person or when its time is over.
func (o *Outbox) repair(_ backlog.Key, r *proto.Record) {
	r.Cause, r.Reason = proto.TaskRecordDamaged, ""
	r.Move(proto.Indeterminate, o.cfg.Clock.Now(), r.Cause, "")
}

// endedTask calls Ended for an entry that is a task: results that ran here end too.
func (o *Outbox) endedTask(k backlog.Key, r *proto.Record, b *store.Batch) {
	if k.Part == backlog.PartTask {
		o.cfg.Ended(k.ID, r, b)
	}
}

// parked reports whether an entry must not be sent: a task that the target has
// accepted waits for its result.
func parked(k backlog.Key, r *proto.Record) bool {
	return k.Part == backlog.PartTask && r.State != proto.Pending
}

// expires returns when the expiry of an entry must be checked.
func (o *Outbox) expires(k backlog.Key, r *proto.Record) int64 {
	switch {
	case k.Part == backlog.PartResult:
		return r.NotAfterMs + o.limits.result.Milliseconds()
	case k.Part == backlog.PartTask && r.State == proto.Pending:
		return r.NotAfterMs
	}
	return o.limits.giveUpAt(r.NotAfterMs)
}

// found registers an entry from an earlier start.
func (o *Outbox) found(k backlog.Key, r *proto.Record) {
	o.stamps.note(r)
	if k.Part != backlog.PartTask || r.State != proto.Pending {
		return
	}
	if p, err := proto.PeerIDFrom(r.Peer); err == nil {
		o.seqs.found(p, r.Seq())
	}
}

// Boot returns the number of this start. It rises with every start, even after
// restoring a backup, unless the clock was set back as well.
func (o *Outbox) Boot() uint64 { return o.boot }

// BootID returns the random id of this start.
func (o *Outbox) BootID() proto.BootID { return o.bootID }

// NextSeq promises target a task with the returned sequence: the mark stays below
// it until the task is submitted and settled, or DropSeq is called.
func (o *Outbox) NextSeq(target proto.PeerID) proto.Seq { return o.seqs.next(target) }

// DropSeq records that no task with this sequence will be submitted.
func (o *Outbox) DropSeq(target proto.PeerID, seq proto.Seq) { o.seqs.settle(target, seq) }

// Mark returns the settled mark for target: every task of this node for target
// with a sequence up to the mark has been accepted, refused or ended and will
// never be sent again.
func (o *Outbox) Mark(target proto.PeerID) proto.Seq { return o.seqs.mark(target) }

// tick is the interval at which Run checks for expired entries.
const tick = time.Second

// Run signs and commits submitted tasks and ends expired ones until ctx is done
// or the store fails. Submits still waiting then get ErrClosed.
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

// expireAndTidy ends expired entries and keeps the ended sets within their
// bounds.
func (o *Outbox) expireAndTidy(ctx context.Context) {
	t := o.cfg.Clock.Ticker(tick)
	defer t.Stop()
	for {
		trusted, err := o.restamp(ctx)
		if err == nil && trusted {
			err = o.expire(ctx)
		}
		if err != nil && ctx.Err() == nil {
			o.cfg.Logger.Error("cannot end expired tasks; will retry", "err", err)
		}
		if _, err := o.backlog.Tidy(ctx); err != nil && ctx.Err() == nil {
			o.cfg.Logger.Error("cannot tidy the ended tasks; will retry", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
