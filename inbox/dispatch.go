package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
)

const (
	again      = 100 * time.Millisecond // a task that somebody else is ending is looked at again
	longest    = time.Minute            // between two looks, whatever the clocks say
	expireStep = 64                     // tasks past their time that are ended at once
	expireNext = 10 * time.Second       // one for which nothing can be done is looked at again
)

// A shift is one run of the inbox: its work goes on while Run stops, and ends
// with the first error, which is a failure of the store.
type shift struct {
	*Inbox
	fail context.CancelCauseFunc
}

// Run starts handlers for the tasks in custody, most urgent first, until ctx ends
// or the store fails. When ctx ends new tasks are refused, running handlers get
// GracefulTimeout to end by themselves, then they are told to stop and their
// tasks go back without having spent an attempt (S32). Run returns when every
// handler has returned: nil, or what failed.
func (in *Inbox) Run(ctx context.Context) error {
	work, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	stay, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	s := &shift{Inbox: in, fail: fail}
	var tending sync.WaitGroup
	tending.Go(func() {
		if err := in.tidy(stay); err != nil {
			fail(err)
		}
	})
	tending.Go(func() { in.watch(stay) })
	tending.Go(func() { in.keys.Run(stay) })
	s.dispatch(work, stay)
	in.desk.halt()
	in.close()
	leave()
	tending.Wait()
	if err := context.Cause(work); err != context.Cause(ctx) {
		return fmt.Errorf("inbox: %w", err)
	}
	return nil
}

// close waits until every handler has returned, and tells them to.
func (in *Inbox) close() {
	done := make(chan struct{})
	go func() { in.desk.working.Wait(); close(done) }()
	for _, c := range in.desk.running() {
		if c.lease != nil {
			in.desk.stop(c, stopNode, false) // another node goes on with it at once
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
		for _, c := range in.desk.running() {
			in.desk.stop(c, stopNode, step.hard)
		}
	}
	<-done
}

// stopGrace is what handlers have to end between being asked to and being
// killed, when the node stops.
const stopGrace = 5 * time.Second

// spawn lets f work beside the dispatcher. Run waits for it.
func (s *shift) spawn(f func() error) {
	s.desk.working.Go(func() {
		if err := f(); err != nil {
			s.fail(err)
		}
	})
}

// dispatch hands out tasks until ctx ends. What it starts lives in stay.
func (s *shift) dispatch(ctx, stay context.Context) {
	s.interrupted(stay)
	for ctx.Err() == nil {
		s.expire(stay)
		if s.round(stay) {
			continue
		}
		t := time.NewTimer(s.untilNext())
		select {
		case <-ctx.Done():
		case <-s.store.Failed():
			s.fail(s.store.Err())
		case <-s.queue.WakeAny():
		case <-s.desk.free:
		case <-t.C:
		}
		t.Stop()
	}
}

// untilNext returns how long nothing will be due.
func (s *shift) untilNext() time.Duration {
	wait := longest
	if s.desk.room() {
		if d, ok := s.queue.NextAny(s.eligible); ok {
			wait = min(wait, d)
		}
	}
	if at, ok := s.queue.NextExpiry(); ok && s.desk.spare() > 0 {
		wait = min(wait, at.Sub(s.cfg.Clock.Now())+time.Millisecond)
	}
	return max(wait, time.Millisecond)
}

// eligible reports whether a task of the kind may be started now.
func (s *shift) eligible(kind string) bool {
	switch {
	case kind == toCancel:
		return true
	case ofQueue(kind):
		return false
	}
	h := s.handlers.find(kind)
	return h != nil && s.handlers.absent(kind) == "" && (h.Concurrency == 0 || s.desk.kindUsed(kind) < h.Concurrency)
}

// round takes what may be started, writes all the starts in one commit and lets
// the handlers go. It reports whether it took anything.
func (s *shift) round(stay context.Context) (took bool) {
	var starts []*claim
	for s.desk.room() {
		seated := s.seatGranted(stay)
		took = took || seated
		if !s.desk.room() {
			break
		}
		item, ok := s.queue.TakeAny(s.eligible, s.desk.sated)
		if !ok && seated {
			continue
		}
		if !ok {
			break
		}
		took = true
		if c := s.consider(stay, item); c != nil {
			starts = append(starts, c)
		}
	}
	if len(starts) > 0 {
		s.start(stay, starts)
	}
	return took
}

// interrupted sees to the tasks that were running when the process died, before
// any other is started: some other may have the same idempotency key.
func (s *shift) interrupted(stay context.Context) {
	keys := s.queue.Keys(nil, func(i backlog.Item) bool { return i.State == proto.Running })
	for _, k := range keys {
		if item, ok := s.queue.Peek(k); ok {
			if c := s.consider(stay, item); c != nil {
				s.start(stay, []*claim{c})
			}
		}
	}
}

// consider decides what the turn of a task means. It returns the claim of one
// that is to be started; all else it sees to.
func (s *shift) consider(stay context.Context, item backlog.Item) *claim {
	c := s.desk.claim(item.Key)
	if c == nil {
		s.queue.Release(item.Key, again)
		return nil
	}
	s.known.landed(item.Key.ID)
	if err := s.load(c); err != nil {
		s.unreadable(c, err)
		return nil
	}
	first, err := s.firstOf(c)
	if err != nil {
		s.unreadable(c, err)
		return nil
	}
	what, end := s.judge(c, first != nil)
	switch what {
	case turnRun:
		s.desk.seat(c, suspicious(c.rec))
		return c
	case turnRecover:
		s.recover(stay, c)
	case turnEnd:
		s.spawn(func() error { return s.end(stay, c, end) })
	case turnFirst:
		s.spawn(func() error { return s.endAsFirst(stay, c, first) })
	case turnAwait:
		s.await(c)
	case turnLeave:
		s.release(c)
		s.queue.Release(item.Key, expireNext)
	}
	return nil
}

// await gives up a claim until what it must wait for has ended.
func (s *shift) await(c *claim) {
	waits := s.desk.await(c)
	s.release(c)
	if !waits {
		s.queue.Release(c.key, 0)
	}
}

// judge gathers what is known of a claimed task and decides.
func (in *Inbox) judge(c *claim, keyDone bool) (turn, ending) {
	keyBusy, suspect := in.desk.busy(c)
	p := prospect{record: c.rec, now: in.nowMs(), doubted: in.cfg.Clock.Doubted(), handled: c.h != nil, keyDone: keyDone, keyBusy: keyBusy, suspectActive: suspect, restored: mayHaveRun(c.rec, in.restored)}
	if p.now > c.rec.NotAfterMs && c.origin == in.cfg.Self && in.with.Until != nil {
		until, known := in.with.Until(c.key.ID)
		p.until, p.doubted = until, p.doubted || !known
	}
	if c.h != nil {
		p.allowed = c.h.allows(c.origin, in.with.Members)
	}
	return p.next()
}

// load reads a claimed task.
func (in *Inbox) load(c *claim) error {
	item, ok := in.queue.Peek(c.key)
	if !ok {
		return fmt.Errorf("%w: %v", backlog.ErrNotFound, c.key)
	}
	st, err := in.queue.Read(item)
	if err != nil {
		return err
	}
	c.stored, c.rec, c.version = st, st.Record, item.Version
	c.kind, c.h = c.rec.Kind, in.handlers.find(c.rec.Kind)
	c.origin, _ = proto.PeerIDFrom(c.rec.Peer)
	c.epoch = c.rec.Seq()
	c.attempt = starts(c.rec) + 1
	if c.rec.IdempotencyKey != "" {
		c.idem = string(c.rec.Peer) + c.rec.IdempotencyKey
	}
	return nil
}

// firstOf returns the success of the task's idempotency key, nil if there is none.
func (in *Inbox) firstOf(c *claim) (*success, error) {
	if c.idem == "" {
		return nil, nil
	}
	b, err := in.keys.Get(successKey(c.origin, c.rec.IdempotencyKey))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := parseSuccess(b)
	return &f, err
}

// unreadable leaves a task alone that cannot be read; it was ended meanwhile, or
// its record is damaged.
func (s *shift) unreadable(c *claim, err error) {
	s.release(c)
	switch {
	case errors.Is(err, backlog.ErrNotFound):
	case errors.Is(err, store.ErrClosed), s.store.Err() != nil:
		s.fail(fmt.Errorf("read a task: %w", err))
	default:
		s.cfg.Logger.Error("a task in custody cannot be read and is left until the next start", "task", c.key.String(), "err", err)
	}
}

// release ends a claim and has those looked at that waited for it.
func (in *Inbox) release(c *claim) {
	for _, k := range in.desk.release(c) {
		in.queue.Release(k, 0)
	}
}

// expire ends tasks whose time has passed before a start.
func (s *shift) expire(stay context.Context) {
	n := min(expireStep, s.desk.spare())
	for _, item := range s.queue.TakeExpired(nil, n, expireNext) {
		c := s.desk.claim(item.Key)
		if c == nil {
			continue // it runs: not_after bounds the start alone
		}
		if err := s.load(c); err != nil {
			s.unreadable(c, err)
			continue
		}
		switch what, end := s.judge(c, false); what {
		case turnEnd:
			s.spawn(func() error { return s.end(stay, c, end) })
		default:
			s.release(c) // its turn comes
		}
	}
}

// recover sees to a task that was running when the process died (I7).
func (s *shift) recover(stay context.Context, c *claim) {
	if c.h.OnCrash == OnCrashProbe && c.rec.Mode != proto.AtMostOnce {
		if key, _ := s.desk.busy(c); key {
			s.await(c)
			return
		}
		s.desk.seat(c, false)
		s.spawn(func() error { return s.probe(stay, c) })
		return
	}
	to := s.limits.recovered(c.rec, c.h.OnCrash, Unknown, s.cfg.Rand())
	s.spawn(func() error {
		defer s.release(c)
		return s.conclude(stay, c, to, &Ran{})
	})
}

// start makes the starts durable, in one commit, and calls the handlers.
func (s *shift) start(stay context.Context, starts []*claim) {
	now := s.cfg.Clock.Now()
	edits := make([]backlog.Edit, len(starts))
	for i, c := range starts {
		edits[i] = backlog.Edit{Key: c.key, Held: c.rec, Version: c.version}
		if err := s.cfg.Fail(PointStart, c.key.ID); err != nil {
			s.abort(starts, err)
			return
		}
	}
	errs := s.queue.Change(stay, edits, func(i int, r *proto.Record) backlog.Action {
		starts[i].started(r, s.cfg.BootID, now)
		return backlog.Write
	})
	for i, c := range starts {
		err := errs[i]
		if err == nil {
			s.changed(c.key.ID, c.rec)
			err = s.cfg.Fail(PointStarted, c.key.ID)
		}
		if err != nil {
			s.abort([]*claim{c}, err)
			continue
		}
		s.spawn(func() error { return s.work(stay, c) })
	}
}

// started notes a start in r, the record that is written.
func (c *claim) started(r *proto.Record, boot proto.BootID, now time.Time) {
	if r == c.rec {
		c.version++
	} else {
		c.rec, c.version = r, 0 // it was changed since it was read
	}
	startRecord(r, boot, now)
}

// abort gives up what could not be started. Unless the task is gone, the store
// has failed.
func (s *shift) abort(starts []*claim, err error) {
	for _, c := range starts {
		s.release(c)
	}
	if !errors.Is(err, backlog.ErrNotFound) {
		s.fail(fmt.Errorf("start: %w", err))
	}
}

// changed tells whoever watches that a record has changed on disk.
func (in *Inbox) changed(id proto.TaskID, r *proto.Record) {
	in.known.moved(id, r.State)
	in.cfg.OnChange(id, r)
}
