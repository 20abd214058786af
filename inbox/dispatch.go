package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

const (
	busyRetry   = 100 * time.Millisecond // before a task with another job is considered again
	maxIdle     = time.Minute            // between two rounds, whatever the clocks show
	expireBatch = 64                     // expired tasks that are ended at once
	homeWait    = 24 * time.Hour         // from the start of this node on, for the clock of a home
	startWait   = time.Minute            // likewise, before a task that is not late by this node's clock
	skipRetry   = 10 * time.Second       // before a task for which nothing can be done is considered again
)

// A runner is one run of the inbox. It continues while Run stops, and ends with the first
// error, which is a failure of the store.
type runner struct {
	*Inbox
	fail      context.CancelCauseFunc
	leaseTurn bool          // the last turn was that of the leases; owned by dispatch
	probing   chan struct{} // holds a token for each probe, of as many as there are slots
}

// Run starts handlers for the tasks in custody, most urgent first, until ctx ends or the
// store fails. When ctx ends new tasks are refused, running handlers get GracefulTimeout to
// finish, then they are told to stop and their tasks go back without spending an attempt
// (S32). Run returns when every handler has returned.
func (in *Inbox) Run(ctx context.Context) error {
	work, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	jobCtx, stopJobs := context.WithCancel(context.WithoutCancel(ctx))
	defer stopJobs()
	rn := &runner{Inbox: in, fail: fail, probing: make(chan struct{}, in.slots.limit)}
	if err := in.saveBoots(false); err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	var background sync.WaitGroup
	background.Go(func() {
		if err := in.maintain(jobCtx); err != nil {
			fail(err)
		}
	})
	background.Go(func() { in.watch(jobCtx) })
	background.Go(func() { rn.writeNotes(jobCtx) })
	background.Go(func() { in.keys.Run(jobCtx) })
	rn.dispatch(work, jobCtx)
	in.slots.halt()
	in.close()
	stopJobs()
	background.Wait()
	err := context.Cause(work)
	if err == context.Cause(ctx) {
		err = nil
		if !in.endLost.Load() {
			err = in.saveBoots(true)
		}
	}
	if err != nil {
		return fmt.Errorf("inbox: %w", err)
	}
	return nil
}

// close tells the handlers to stop, and waits until all have returned.
func (in *Inbox) close() {
	done := make(chan struct{})
	go func() { in.slots.working.Wait(); close(done) }()
	for _, j := range in.slots.running() {
		if j.lease != nil {
			in.slots.stop(j, stopNode, false) // another node can continue with it at once
		}
	}
	for _, step := range []struct {
		after time.Duration
		hard  bool
	}{{in.cfg.GracefulTimeout, false}, {stopGrace, true}} {
		t := time.NewTimer(step.after)
		select {
		case <-done:
			t.Stop()
			return
		case <-t.C:
		}
		for _, j := range in.slots.running() {
			in.slots.stop(j, stopNode, step.hard)
		}
	}
	<-done
}

// stopGrace is the time between asking a handler to stop and killing it, when the node
// stops.
const stopGrace = 5 * time.Second

// spawn runs f concurrently. Run waits for it.
func (rn *runner) spawn(f func() error) {
	rn.slots.working.Go(func() {
		if err := f(); err != nil {
			rn.fail(err)
		}
	})
}

// dispatch starts tasks until ctx ends. Their jobs run with jobCtx.
func (rn *runner) dispatch(ctx, jobCtx context.Context) {
	rn.recoverInterrupted(jobCtx)
	t := time.NewTimer(maxIdle)
	defer t.Stop()
	for ctx.Err() == nil {
		rn.expire(jobCtx)
		if rn.round(jobCtx) {
			continue
		}
		t.Reset(rn.untilNext())
		select {
		case <-ctx.Done():
		case <-rn.store.Failed():
			rn.fail(rn.store.Err())
		case <-rn.queue.WakeAny():
		case <-rn.slots.freed:
		case <-t.C:
		}
	}
}

// untilNext returns how long nothing is due.
func (rn *runner) untilNext() time.Duration {
	wait := maxIdle
	if rn.available() {
		if d, ok := rn.queue.NextAny(rn.eligible); ok {
			wait = min(wait, d)
		}
	}
	if at, ok := rn.queue.NextExpiry(); ok && rn.slots.spareFinishing() > 0 {
		wait = min(wait, at.Sub(rn.cfg.Clock.Now())+time.Millisecond)
	}
	return max(wait, time.Millisecond)
}

// available reports whether another task may be started.
func (in *Inbox) available() bool { return in.slots.available(in.diskFull()) }

// diskFull reports whether the disk is below its reserve. What is in custody still runs,
// which frees space, but step by step: no start before it is on disk, and no slot is free
// before an end is.
func (in *Inbox) diskFull() bool { return errors.Is(in.store.Refuses(), store.ErrNoDisk) }

// eligible reports whether a task of the kind may be started now.
func (rn *runner) eligible(kind string) bool {
	if kind == noKind {
		return true
	}
	h, use := rn.handlers.find(kind), rn.slots.kindUse(kind)
	return h != nil && rn.handlers.suspendedReason(kind) == "" && (h.Concurrency == 0 || use.running+use.ending < h.Concurrency)
}

// round takes the tasks that may be started, commits all their starts at once and calls the
// handlers. Leases and other tasks take turns. It reports whether it took any.
func (rn *runner) round(jobCtx context.Context) (took bool) {
	var starts []*job
	for rn.available() {
		var j *job
		ok := false
		for range 2 {
			if rn.leaseTurn = !rn.leaseTurn; rn.leaseTurn {
				ok = rn.startGranted(jobCtx)
			} else {
				j, ok = rn.takeDue(jobCtx)
			}
			if ok {
				break
			}
		}
		if !ok {
			break
		}
		took = true
		if j != nil {
			starts = append(starts, j)
		}
	}
	if len(starts) > 0 {
		rn.start(jobCtx, starts)
	}
	return took
}

// takeDue takes the most urgent task that is due, if there is one. It returns its job if it is
// to be started.
func (rn *runner) takeDue(jobCtx context.Context) (j *job, ok bool) {
	item, ok := rn.queue.TakeAny(rn.eligible, rn.slots.atOriginLimit)
	if !ok {
		return nil, false
	}
	return rn.handleDue(jobCtx, item), true
}

// recoverInterrupted handles the tasks that were running when the process died, before any
// other is started, which might have the same idempotency key.
func (rn *runner) recoverInterrupted(jobCtx context.Context) {
	keys := rn.queue.Keys(func(i backlog.Item) bool { return i.State == proto.Running })
	for _, k := range keys {
		if item, ok := rn.queue.Peek(k); ok {
			if j := rn.handleDue(jobCtx, item); j != nil {
				rn.start(jobCtx, []*job{j})
			}
		}
	}
}

// handleDue decides about a task that is due. It returns the job of a task to be started and
// handles all others itself.
func (rn *runner) handleDue(jobCtx context.Context, item backlog.Item) *job {
	j := rn.slots.take(item.Key)
	if j == nil {
		rn.queue.Release(item.Key, busyRetry)
		return nil
	}
	rn.dedup.waitCommit(item.Key.ID)
	if err := rn.load(j); err != nil {
		rn.unreadable(j, err)
		return nil
	}
	first, err := rn.firstOf(j)
	if err != nil {
		rn.unreadable(j, err)
		return nil
	}
	what, end := rn.evaluate(j, first != nil)
	switch what {
	case actionRun:
		rn.slots.acquire(j, needsQuarantine(j.rec))
		return j
	case actionRecover:
		rn.recover(jobCtx, j)
	case actionEnd:
		end.mayHaveRun = rn.unrecorded(j)
		rn.spawn(func() error { return rn.end(jobCtx, j, end) })
	case actionEndAsFirst:
		rn.spawn(func() error { return rn.endAsFirst(jobCtx, j, first) })
	case actionWait:
		rn.await(j)
	case actionSkip:
		rn.dropJob(j)
		wait := skipRetry
		if rn.cfg.Clock.Mono()-rn.opened < skipRetry {
			wait = time.Second // the homes of tasks tell their clocks soon after a start
		}
		rn.queue.Release(item.Key, wait)
	}
	return nil
}

// await gives up a job until what it must wait for has ended.
func (rn *runner) await(j *job) {
	waits := rn.slots.await(j)
	rn.dropJob(j)
	if !waits {
		rn.queue.Release(j.key, 0)
	}
}

// evaluate collects the input of the decision about a task and decides.
func (in *Inbox) evaluate(j *job, keyDone bool) (action, ending) {
	keyBusy, quarantined := in.slots.busy(j)
	input := startInput{record: j.rec, now: in.nowMs(), doubted: in.cfg.Clock.Doubted(), handled: j.h != nil, keyDone: keyDone, keyBusy: keyBusy, quarantineBusy: quarantined, restored: mayHaveRun(j.rec, in.restored)}
	deadline, known := in.deadline(j, input.now)
	input.deadline, input.unheard = deadline, !known
	if j.rec.State == proto.Running && j.probes() && in.handlers.suspendedReason(j.kind) != "" {
		input.handled = false // it cannot be asked now
	}
	if j.h != nil {
		input.allowed = j.h.allows(j.origin, in.parts.Members)
	}
	return input.next()
}

// deadline returns when the time of a task ends by the wall clock, which shows now; 0: when
// its record says. The boot clock tells that, and after a restart of the machine the clock of
// its home: until its home has told it known is false, for homeWait at most if its time is
// over by the wall clock, which may be ahead, and for startWait if it is not.
func (in *Inbox) deadline(j *job, now int64) (ms int64, known bool) {
	over, wait := now > j.rec.NotAfterMs, startWait
	switch {
	case over && j.origin == in.cfg.Self && in.parts.Deadline != nil:
		return in.parts.Deadline(j.key.ID)
	case j.rec.StampMachine == in.cfg.Clock.MachineMark(in.cfg.BootID[:]): // the wall clock may have been set since
		passed := in.cfg.Clock.Boot().Milliseconds() - j.rec.StampBootMs
		return now + j.rec.NotAfterMs - j.rec.CreatedMs - passed, true
	case j.origin == in.cfg.Self || in.parts.Revoked(j.origin):
		return 0, true
	case over:
		wait = homeWait
	}
	ahead, ok := in.parts.Ahead(j.origin)
	if !ok {
		return 0, in.cfg.Clock.Mono()-in.opened >= wait
	}
	if h, err := proto.ParseHeader(j.stored.Envelope.GetHeader()); err == nil {
		ms = h.NotAfter - ahead.Milliseconds()
	}
	return ms, true
}

// load reads the task of a job.
func (in *Inbox) load(j *job) error {
	item, ok := in.queue.Peek(j.key)
	if !ok {
		return fmt.Errorf("%w: %v", backlog.ErrNotFound, j.key)
	}
	st := in.fresh.stored(j.key)
	if st == nil || item.Version > 0 {
		var err error
		if st, err = in.queue.Read(item); err != nil {
			return err
		}
	}
	j.stored, j.rec, j.version = st, st.Record, item.Version
	j.kind, j.h = j.rec.Kind, in.handlers.find(j.rec.Kind)
	j.origin, _ = proto.PeerIDFrom(j.rec.Peer)
	j.epoch = j.rec.Seq()
	j.attempt = starts(j.rec) + 1
	if j.rec.IdempotencyKey != "" {
		j.idemKey = string(j.rec.Peer) + j.rec.IdempotencyKey
	}
	return nil
}

// firstOf returns the first success of the task's idempotency key, nil if there is none.
func (in *Inbox) firstOf(j *job) (*success, error) {
	if j.idemKey == "" {
		return nil, nil
	}
	b, err := in.keys.Get(successKey(j.origin, j.rec.IdempotencyKey))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := parseSuccess(b)
	return &f, err
}

// unreadable gives up a task that cannot be read: it has ended in the meantime, or its
// record is damaged.
func (rn *runner) unreadable(j *job, err error) {
	rn.dropJob(j)
	switch {
	case errors.Is(err, backlog.ErrNotFound):
	case errors.Is(err, store.ErrClosed), rn.store.Err() != nil:
		rn.fail(fmt.Errorf("read a task: %w", err))
	default:
		rn.cfg.Logger.Error("a task in custody cannot be read and is left until the next start", "task", j.key.String(), "err", err)
	}
}

// dropJob ends a job and requeues the tasks that waited for it.
func (in *Inbox) dropJob(j *job) {
	in.fresh.take(j.key) // its record may have been changed
	for _, k := range in.slots.drop(j) {
		in.queue.Release(k, 0)
	}
}

// expire ends tasks whose time has passed before a start.
func (rn *runner) expire(jobCtx context.Context) {
	n := min(expireBatch, rn.slots.spareFinishing())
	for _, item := range rn.queue.TakeExpired(nil, n, skipRetry) {
		j := rn.slots.take(item.Key)
		if j == nil {
			continue // it is running: not_after bounds only the start
		}
		rn.dedup.waitCommit(item.Key.ID)
		if err := rn.load(j); err != nil {
			rn.unreadable(j, err)
			continue
		}
		switch what, end := rn.evaluate(j, false); what {
		case actionEnd:
			end.mayHaveRun = rn.unrecorded(j)
			rn.spawn(func() error { return rn.end(jobCtx, j, end) })
		default:
			rn.dropJob(j) // it is handled when it is due
		}
	}
}

// recover handles a task that was running when the process died (I7).
func (rn *runner) recover(jobCtx context.Context, j *job) {
	if j.probes() {
		if key, _ := rn.slots.busy(j); key {
			rn.await(j)
			return
		}
		rn.slots.acquire(j, false)
		rn.spawn(func() error { return rn.probe(jobCtx, j) })
		return
	}
	to := rn.limits.afterCrash(j.rec, j.h.OnCrash, handler.Unknown, rn.cfg.Rand())
	rn.spawn(func() error {
		defer rn.dropJob(j)
		return rn.conclude(jobCtx, j, to, &handler.Result{})
	})
}

// start calls the handlers that may be called before their starts are on disk, then commits
// the other starts at once and calls their handlers.
func (rn *runner) start(jobCtx context.Context, starts []*job) {
	for range starts {
		if err := rn.cfg.Fail(PointStart); err != nil {
			rn.abort(starts, err)
			return
		}
	}
	now := rn.cfg.Clock.Now()
	var early, durable []*job
	for _, j := range starts {
		if !rn.startEarly(j) {
			durable = append(durable, j)
			continue
		}
		early = append(early, j)
		j.started, j.unwritten = now, true
		startRecord(j.rec, rn.cfg.BootID, now, 0)
	}
	if len(early) > 0 {
		rn.slots.addNotes(early)
	}
	for _, j := range early {
		rn.call(jobCtx, j)
	}
	if len(durable) > 0 {
		rn.startDurably(jobCtx, durable, now)
	}
}

// call calls the handler of a started job.
func (rn *runner) call(jobCtx context.Context, j *job) {
	if err := rn.cfg.Fail(PointStarted); err != nil {
		rn.slots.settleNote(j)
		rn.abort([]*job{j}, err)
		return
	}
	rn.spawn(func() error { return rn.work(jobCtx, j) })
}

// startDurably commits the starts at once, and calls the handlers.
func (rn *runner) startDurably(jobCtx context.Context, starts []*job, now time.Time) {
	edits := make([]backlog.Edit, len(starts))
	causes := make([]proto.TaskCause, len(starts))
	for i, j := range starts {
		edits[i], causes[i] = j.edit(), rn.startCause(j)
	}
	errs := rn.queue.Change(jobCtx, edits, func(i int, r *proto.Record) backlog.Action {
		j := starts[i]
		if r == j.rec {
			j.version++
		} else {
			j.rec, j.stale = r, true // it has changed since it was read
		}
		startRecord(r, rn.cfg.BootID, now, causes[i])
		return backlog.Write
	})
	for i, j := range starts {
		err := errs[i]
		if err != nil {
			rn.abort([]*job{j}, err)
			continue
		}
		rn.changed(j.key.ID, j.rec)
		rn.call(jobCtx, j)
	}
}

// abort gives up tasks that could not be started. Unless the task is gone, the store has
// failed.
func (rn *runner) abort(starts []*job, err error) {
	for _, j := range starts {
		rn.dropJob(j)
	}
	if !errors.Is(err, backlog.ErrNotFound) {
		rn.fail(fmt.Errorf("start: %w", err))
	}
}

// changed reports that a record has changed on disk.
func (in *Inbox) changed(id proto.TaskID, r *proto.Record) {
	in.dedup.setState(id, r.State)
	in.cfg.OnChange(id, r)
}
