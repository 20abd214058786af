package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

// A Keeper says who decides when a task in custody runs and how it ends. It is chosen once,
// when the task is accepted, and stands in the task's record.
type Keeper uint32

// Keepers of tasks. The numbers are stored.
const (
	KeeperSlot  Keeper = 0 // the inbox itself: the task waits for a slot
	KeeperQueue Keeper = 1 // the shared queues: the task waits for a lease
)

// keeperFor chooses the keeper of an arrival.
func keeperFor(c *proto.Content) Keeper {
	if c.GetQueue() != "" {
		return KeeperQueue
	}
	return KeeperSlot
}

// keeperOf returns the keeper of a task in custody.
func keeperOf(r *proto.Record) Keeper { return Keeper(r.GetKeeper()) }

// A Custodian keeps tasks instead of a slot. They are in custody here like any other, but
// the custodian decides who runs them and when they end.
type Custodian interface {
	// Admit decides whether a task may come into custody; the zero verdict means yes. It is
	// called under a lock and must not call the inbox.
	Admit(a *Arrival) Verdict
	// Taken is called with a task once it is on disk. It must not keep the record.
	Taken(id proto.TaskID, r *proto.Record)
	// Cancel cancels a task, hard: at once, and returns once that is durable, with the zero verdict. Any
	// other verdict asks the caller to repeat the cancel, as for a task that went to
	// another home. known is false when the custodian does not know the task, yet or any
	// more.
	Cancel(ctx context.Context, id proto.TaskID, hard bool) (v Verdict, known bool, err error)
}

// Keep makes c the custodian of the tasks of k. It must be called before [Inbox.Run].
func (in *Inbox) Keep(k Keeper, c Custodian) { in.custodians[k] = c }

// Connect gives the inbox the leases that this node owns. It must be called before
// [Inbox.Run], if at all.
func (in *Inbox) Connect(l Leases) { in.granted = l }

// admit asks the custodian of an arrival. It returns nil if it is for a slot.
func (in *Inbox) admit(a *Arrival) *Verdict {
	k := keeperFor(a.Content)
	if k == KeeperSlot {
		return nil
	}
	v := refuse(proto.CodeNoHandler, "this node has no shared queues")
	if c := in.custodians[k]; c != nil {
		v = c.Admit(a)
	}
	return &v
}

// Kept returns the live tasks of a keeper, in the order in which they came.
func (in *Inbox) Kept(keeper Keeper) ([]backlog.Listed, error) {
	var all []backlog.Listed
	match := func(k backlog.Key, r *proto.Record) bool {
		return k.Part == backlog.PartTask && keeperOf(r) == keeper && !r.State.Terminal()
	}
	for cursor := []byte(nil); ; {
		page, next, err := in.queue.List(backlog.Live, cursor, 1000, match)
		if err != nil {
			return nil, fmt.Errorf("read the tasks in custody: %w", err)
		}
		all = append(all, page...)
		if cursor = next; next == nil {
			break
		}
	}
	slices.SortStableFunc(all, func(a, b backlog.Listed) int { return int(arrivedMs(a.Record) - arrivedMs(b.Record)) })
	return all, nil
}

// arrivedMs returns when a task arrived here.
func arrivedMs(r *proto.Record) int64 {
	if len(r.Events) > 0 {
		return r.Events[0].TimeMs
	}
	return r.CreatedMs
}

// KeptTask reads a task with its sealed body, wherever that is stored.
func (in *Inbox) KeptTask(id proto.TaskID) (*proto.Stored, error) {
	st, err := in.queue.Stored(backlog.TaskKey(id))
	if err != nil {
		return nil, err
	}
	return st, in.restoreBody(st, st.Record.BodyBlob)
}

// ErrNoOrigin is returned by [Results] for a result that cannot be sealed because its
// origin is no longer a member.
var ErrNoOrigin = errors.New("inbox: the origin of the task is no longer known")

// endTries is how often the result of a queued task is offered to the outbox unchanged: all
// others wait behind it. After that its origin is told that it was lost. What a person or
// time puts right does not count.
const endTries = 2

// fileRetry is the longest delay before offering a result again while too many files are
// open, or the disk is full: the leases of this node wait meanwhile.
const fileRetry = time.Second

// EndKept ends a task that has a custodian with outcome o: its terminal record, the result for the
// origin and what also adds are one batch. An error means that the store has failed, or may
// have; one that wraps [handler.ErrStopping], that the node stops while the result waits for room or
// for a file.
func (in *Inbox) EndKept(ctx context.Context, id proto.TaskID, o *proto.Outcome, also func(*store.Batch)) error {
	wait := firstRetry
	for try := 1; ; try++ {
		err := in.tryEndKept(ctx, id, o, also, true)
		switch {
		case err == nil || in.store.Err() != nil || ctx.Err() != nil:
			return err
		case tooManyFiles(err) || errors.Is(err, ErrNoRoom):
			if in.slots.halted() {
				return fmt.Errorf("%w: %w", handler.ErrStopping, err)
			}
			what := "a file can be opened: raise the limit of open files"
			if errors.Is(err, ErrNoRoom) {
				what = "the disk has room for its result: free space on it"
			}
			in.cfg.Logger.Error("the end of a queued task waits until "+what, "task", id.String(), "wait", wait, "err", err)
			in.slots.sleep(ctx, wait)
			wait, try = min(2*wait, fileRetry), try-1
		case errors.Is(err, ErrNoOrigin) || try > endTries:
			in.cfg.Logger.Error("a queued task ends without a result for its origin, which could not be sealed", "task", id.String(), "err", err)
			return in.tryEndKept(ctx, id, o, also, false)
		case try == endTries:
			in.cfg.Logger.Error("the result of a queued task is lost; its origin is informed", "task", id.String(), "err", err)
			o = lostResult(o)
		default:
			in.cfg.Logger.Warn("the end of a queued task could not be written; retrying", "task", id.String(), "try", try, "err", err)
			in.slots.sleep(ctx, firstRetry)
		}
	}
}

// lostResult returns what the origin is told when a result cannot be stored. Whether to run
// the task again is for an operator to decide.
func lostResult(o *proto.Outcome) *proto.Outcome {
	return &proto.Outcome{
		State: proto.DeadLetter, Cause: proto.TaskResultLostAtHome, Reason: text(strings.TrimSuffix(o.State.Name()+": "+o.Reason, ": "), proto.MaxReason),
		ExitCode: o.ExitCode, Attempts: o.Attempts, Events: o.Events, StartedMs: o.StartedMs,
	}
}

func (in *Inbox) tryEndKept(ctx context.Context, id proto.TaskID, o *proto.Outcome, also func(*store.Batch), tell bool) error {
	in.dedup.waitCommit(id)
	now := in.cfg.Clock.Now()
	var f *Finished
	var rec *proto.Record
	var remember bool
	st, err := in.queue.Prepare(backlog.Edit{Key: backlog.TaskKey(id)}, func(r *proto.Record) backlog.Action {
		origin, _ := proto.PeerIDFrom(r.Peer)
		remember = in.dedup.mustRemember(origin, r.Seq())
		rec, f = r, in.finishedKept(id, origin, r, o, now)
		if remember {
			return backlog.Tombstone
		}
		return backlog.Drop
	})
	if errors.Is(err, backlog.ErrNotFound) { // only what also writes is left
		var b store.Batch
		also(&b)
		return in.store.Apply(context.WithoutCancel(ctx), &b)
	}
	if err != nil {
		return err
	}
	err = in.writeEnd(context.WithoutCancel(ctx), f, tell, func(b *store.Batch) {
		st.AddTo(b)
		also(b)
		e := entry{seq: rec.Seq(), notAfter: rec.NotAfterMs, digest: short(rec.RequestDigest), state: rec.State}
		b.After(func() { in.setFinished(id, e, f.Origin, remember) })
	})
	if err != nil {
		st.Discard()
		return err
	}
	in.dropBlob(rec.BodyBlob)
	in.cfg.OnChange(id, rec)
	return nil
}

// finishedKept returns the result for the origin of a queued task that ends with o, and
// records the end in r.
func (in *Inbox) finishedKept(id proto.TaskID, origin proto.PeerID, r *proto.Record, o *proto.Outcome, now time.Time) *Finished {
	digest := o.BodyDigest
	if len(digest) != sha256.Size {
		sum := sha256.Sum256(o.Body)
		digest = sum[:]
	}
	r.Cause, r.Reason, r.ExitCode, r.Truncated, r.ResultType = o.Cause, text(o.Reason, proto.MaxReason), o.ExitCode, o.Truncated, text(o.ContentType, 128)
	size := uint64(len(o.Body))
	if o.Object != nil {
		size = o.BodySize
	}
	r.ResultDigest, r.ResultSize, r.History, r.DueMs = digest, size, o.Attempts, 0
	if n := len(o.Attempts); n > 0 {
		r.Attempts = o.Attempts[n-1].Number
	}
	for _, e := range o.Events {
		r.AddEvent(e)
	}
	r.Move(o.State, now, o.Cause, o.Reason)
	r.Code = o.Code
	out := &proto.Outcome{
		State: r.State, Code: r.Code, BootId: in.cfg.BootID[:], EpochBoot: r.SeqBoot, EpochCounter: r.SeqCounter,
		ExitCode: r.ExitCode, Cause: r.Cause, Reason: r.Reason, Stderr: tail(o.Stderr, proto.MaxStderr), Body: o.Body,
		BodySize: size, BodyDigest: digest, Object: o.Object, ContentType: r.ResultType, Truncated: r.Truncated,
		Attempts: o.Attempts, Events: r.Events[max(len(r.Events)-maxOutcomeEvents, 0):],
		StartedMs: o.StartedMs, FinishedMs: now.UnixMilli(),
	}
	done := in.statement(id, r, proto.FactDone, now.UnixMilli())
	done.State, done.Algorithm = r.State, 1
	copy(done.Digest[:], digest)
	return &Finished{
		ID: id, Origin: origin, Kind: r.Kind, Class: r.Class, Seq: r.Seq(),
		Outcome: out, Statements: []proto.Statement{done},
	}
}

// cancelKept lets the custodian of a task cancel it.
func (in *Inbox) cancelKept(ctx context.Context, k Keeper, id proto.TaskID, hard bool) Verdict {
	c := in.custodians[k]
	if c == nil {
		return refuse(proto.CodeBusy, "this node has no shared queues")
	}
	v, known, err := c.Cancel(ctx, id, hard)
	if err != nil {
		return refuse(proto.CodeInternal, "the cancel could not be written: "+err.Error())
	}
	if known {
		return v
	}
	if _, state, ok := in.dedup.state(id); !ok || state.Terminal() {
		return ended(state)
	}
	return refuse(proto.CodeBusy, "its queue does not know the task yet")
}

// keeper returns who keeps a task in custody.
func (in *Inbox) keeper(id proto.TaskID) Keeper {
	r, _, _ := in.queue.Get(backlog.TaskKey(id))
	return keeperOf(r)
}
