package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/ownership/schedule"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// schedules creates tasks for the queues whose home is this node, each time that one of
// their schedules is due. One goroutine owns them; every change is on disk first.
//
//	tick ─▶ due ─▶ stored as firing ─▶ submitted with a key ─▶ stored as fired
//	home moved ─▶ stored as going ─▶ SCHEDULE until answered ─▶ stored as gone
//
// The idempotency key of a task is derived from schedule and due time, so a task that is
// submitted again after a crash is the same one. No schedule is at two homes, so no due
// time has two tasks.
type schedules struct {
	node     *Node
	all      map[scheduleID]*proto.Schedule
	requests chan func()
	done     chan struct{} // closed when run has returned
	last     struct {      // the clocks at the last tick
		wall time.Time
		boot time.Duration
	}
	pausedUntil time.Duration                // boot time until which no tasks are created, because the clocks jumped
	sent        map[scheduleID]time.Duration // boot time of the latest offer to the new home
	errors      map[scheduleID]scheduleError // current errors of schedules
	lag         prometheus.Histogram
}

type scheduleID struct{ queue, name string }

func newSchedules(n *Node) *schedules {
	s := &schedules{lag: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "balefire_schedule_lag_seconds", Help: "Delay from the due time of a schedule to the creation of its task, at the home of its queue.",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 300, 1800, 7200, 86400},
	}), node: n, all: map[scheduleID]*proto.Schedule{}, sent: map[scheduleID]time.Duration{}, errors: map[scheduleID]scheduleError{}, requests: make(chan func(), 64), done: make(chan struct{})}
	n.registry.MustRegister(s.lag)
	return s
}

const (
	scheduleEvery  = time.Second     // interval between checks for due times and moved queues
	scheduleResend = 2 * time.Second // interval between repeats of an unanswered offer
	scheduleJump   = 2 * time.Second // a larger difference of the clocks between two ticks is a jump
	schedulePause  = 5 * time.Second // no tasks are created for this long after a jump
	scheduleKept   = 24 * time.Hour  // lifetime of a tombstone
	maxSchedules   = 1000            // limit of one node
	maxGone        = 4000            // limit of one node including tombstones
	maxScheduled   = 32 << 10        // limit of a schedule with its task, in bytes
	maxDelegates   = 16              // limit of homes that a schedule may pass through
)

// scheduleKeys is the prefix of the keys of schedules in the bucket Meta.
const scheduleKeys = "schedule/"

func (id scheduleID) key() []byte { return []byte(scheduleKeys + id.queue + "/" + id.name) }

// open loads the schedules from disk.
func (s *schedules) open() error {
	for p, err := range s.node.storage.Store.All(store.Meta, []byte(scheduleKeys), []byte(scheduleKeys+"\xff")) {
		if err != nil {
			return fmt.Errorf("read the schedules: %w", err)
		}
		m := new(proto.Schedule)
		if err := proto.Decode(p.Val, m); err != nil {
			return fmt.Errorf("the schedule at %q: %w", p.Key, err)
		}
		s.all[scheduleID{m.Queue, m.Name}] = m
	}
	return nil
}

// put stores m on disk, then in memory.
func (s *schedules) put(ctx context.Context, m *proto.Schedule) error {
	m.ChangedMs = s.node.cfg.Clock.Now().UnixMilli()
	val, err := proto.Encode(nil, m)
	if err != nil {
		return fmt.Errorf("write schedule %s of queue %s: %w", m.Name, m.Queue, err)
	}
	id := scheduleID{m.Queue, m.Name}
	var b store.Batch
	b.Put(store.Meta, id.key(), val)
	if err := s.node.storage.Store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		return fmt.Errorf("write schedule %s of queue %s: %w", m.Name, m.Queue, err)
	}
	s.all[id] = m
	return nil
}

// full reports whether there is no room for another schedule.
func (s *schedules) full() bool {
	live := 0
	for _, m := range s.all {
		if !m.Gone {
			live++
		}
	}
	return live >= maxSchedules || len(s.all) >= maxGone
}

// run creates tasks until ctx is done.
func (s *schedules) run(ctx context.Context) error {
	defer close(s.done)
	tick := time.NewTicker(scheduleEvery)
	defer tick.Stop()
	c := s.node.cfg.Clock
	s.last.wall, s.last.boot = c.Now().Round(0), c.Boot()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-s.requests:
			f()
		case <-tick.C:
			s.tick(ctx)
		}
	}
}

// do runs f between two ticks and waits for it.
func (s *schedules) do(ctx context.Context, f func()) error {
	answer := make(chan struct{})
	select {
	case s.requests <- func() { f(); close(answer) }:
	case <-s.done:
		return wire.ErrDraining
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-answer:
		return nil
	case <-s.done:
		return wire.ErrDraining
	}
}

// sorted returns the ids sorted by queue and name.
func (s *schedules) sorted() []scheduleID {
	return slices.SortedFunc(maps.Keys(s.all), func(a, b scheduleID) int {
		return cmp.Or(strings.Compare(a.queue, b.queue), strings.Compare(a.name, b.name))
	})
}

// tick processes every schedule.
func (s *schedules) tick(ctx context.Context) {
	c := s.node.cfg.Clock
	wall, boot := c.Now().Round(0), c.Boot()
	if jump := wall.Sub(s.last.wall) - (boot - s.last.boot); jump.Abs() > scheduleJump {
		s.pausedUntil = boot + schedulePause
		s.node.addEvent("schedule.clock_jump", proto.PeerID{}, fmt.Sprintf("the clock jumped by %s: schedules pause briefly", jump.Round(time.Second)), nil)
	}
	s.last.wall, s.last.boot = wall, boot
	self := s.node.keys.Peer()
	for _, id := range s.sorted() {
		m := s.all[id]
		home := s.node.queues.driver.QueueStates()[id.queue].GetHome()
		var err error
		switch {
		case m.Gone:
			if len(m.Going) > 0 {
				s.offer(m)
			}
			err = s.forget(ctx, id, m, wall)
		case m.FiringMs != 0:
			err = s.fire(ctx, m)
		case len(m.Going) > 0:
			s.offer(m)
		case len(home) > 0 && string(home) != string(self[:]):
			next := copySchedule(m)
			next.Going, next.Generation = home, m.Generation+1
			if err = s.put(ctx, next); err == nil {
				s.offer(next)
			}
		case !m.Paused && boot >= s.pausedUntil:
			err = s.due(ctx, m, wall)
		}
		if ctx.Err() == nil && s.noteError(id, err, boot) {
			s.node.log.Warn("could not process a schedule; will retry", "queue", id.queue, "schedule", id.name, "err", err)
		}
	}
}

// A scheduleError is the error of a schedule and the boot time at which it was reported
// last.
type scheduleError struct {
	text   string
	logged time.Duration
}

// scheduleErrorEvery is the minimum interval between reports of changing errors.
const scheduleErrorEvery = time.Minute

// noteError records the result of processing a schedule and returns whether to report
// it: when an error begins, and when it changes.
func (s *schedules) noteError(id scheduleID, err error, now time.Duration) bool {
	old, had := s.errors[id]
	if err == nil {
		delete(s.errors, id)
		return false
	}
	if had && (old.text == err.Error() || now-old.logged < scheduleErrorEvery) {
		return false
	}
	s.errors[id] = scheduleError{err.Error(), now}
	return true
}

// leaving counts the schedules whose queue has its home elsewhere and whose new home has
// not confirmed them yet.
func (s *schedules) leaving(ctx context.Context) (count int, err error) {
	err = s.do(ctx, func() {
		for id, m := range s.all {
			if q := s.node.queues.driver.QueueStates()[id.queue]; !m.Gone && q != nil && !s.node.queues.here(q) {
				count++
			}
		}
	})
	return count, err
}

// forget drops a tombstone once no copy of its schedule can exist.
func (s *schedules) forget(ctx context.Context, id scheduleID, m *proto.Schedule, now time.Time) error {
	kept := scheduleKept
	if len(m.Going)+len(m.Went) > 0 { // the new home must be informed of the removal, or may have to be
		kept = proto.MaxTTL
	}
	if now.Sub(msTime(m.ChangedMs)) < kept {
		return nil
	}
	var b store.Batch
	b.Delete(store.Meta, id.key())
	if err := s.node.storage.Store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		return err
	}
	delete(s.all, id)
	return nil
}

// due processes the due times that have come.
func (s *schedules) due(ctx context.Context, m *proto.Schedule, now time.Time) error {
	plan, err := schedule.Parse(m.Cron, m.Zone)
	if err != nil {
		return err
	}
	if msTime(m.MarkMs).Sub(now) > schedule.Horizon { // the mark was set while the clock was far ahead: no due time until then has its task
		next := copySchedule(m)
		next.MarkMs = now.UnixMilli()
		if err := s.put(ctx, next); err != nil {
			return err
		}
		m = next
	}
	fire, left := plan.Due(msTime(m.MarkMs), now, missedOf(m.Missed), int(m.MissedCap))
	if left > 0 {
		next := copySchedule(m)
		next.Skipped += uint64(left)
		next.MarkMs = now.UnixMilli()
		if len(fire) > 0 {
			next.MarkMs = fire[0].UnixMilli() - 1
		}
		if err := s.put(ctx, next); err != nil {
			return err
		}
		m = next
	}
	for _, t := range fire {
		next := copySchedule(m)
		next.FiringMs = t.UnixMilli()
		if err := s.put(ctx, next); err != nil {
			return err
		}
		if err := s.fire(ctx, next); err != nil {
			return err
		}
		m = s.all[scheduleID{m.Queue, m.Name}]
	}
	return nil
}

// fire creates the task for the stored due time; the task may already exist.
func (s *schedules) fire(ctx context.Context, m *proto.Schedule) error {
	done, err := s.node.submit(ctx, scheduledRequest(m))
	next := copySchedule(m)
	switch {
	case err == nil:
		id, err := proto.ParseTaskID(done.ID)
		if err != nil {
			return err
		}
		next.Last, next.LastMs, next.Problem = id[:], m.FiringMs, ""
		next.Fired++
		s.lag.Observe(max(s.node.cfg.Clock.Now().Sub(msTime(m.FiringMs)).Seconds(), 0))
	case errors.Is(err, wire.ErrInvalid), errors.Is(err, wire.ErrDenied), errors.Is(err, wire.ErrKeyConflict):
		next.Problem, next.Skipped = proto.Clip(err.Error(), proto.MaxReason), m.Skipped+1
	default:
		return err
	}
	next.MarkMs, next.FiringMs = m.FiringMs, 0
	return s.put(ctx, next)
}

// scheduledRequest returns the request for the due time stored in m.
func scheduledRequest(m *proto.Schedule) *repeated {
	c := m.Task
	r := &repeated{delegates: m.Vouchers, Request: wire.Request{
		Target: proto.QueuePrefix + m.Queue, Kind: c.GetKind(), Class: c.GetClass().Name(), TTL: time.Duration(m.TtlMs) * time.Millisecond, Order: c.GetOrderingKey(),
		OnDead: c.GetOnDead(), Args: c.GetArgs(), Body: c.GetBody(), Type: c.GetContentType(), Labels: c.GetLabels(), Bounds: wire.Bounds{Retries: c.GetMaxAttempts()},
		Affinity: wire.Affinity{Require: c.GetRequire(), Prefer: c.GetPrefer()}, Mode: c.GetMode().Name(),
	}}
	r.Key = fmt.Sprintf("schedule/%s/%s/%s/%s", m.Queue, m.Name, fingerprint(m), msTime(m.FiringMs).Format(time.RFC3339))
	return r
}

// fingerprint distinguishes different definitions of a schedule.
func fingerprint(m *proto.Schedule) string {
	c, h := m.Task, sha256.New()
	fmt.Fprintf(h, "balefire/v1/schedule\x00%q %q %q %q %d %d %q %q %q %d %q %q %d", m.Cron, m.Zone, c.GetKind(), c.GetArgs(), c.GetClass(), c.GetMode(),
		c.GetOrderingKey(), c.GetOnDead(), c.GetContentType(), c.GetMaxAttempts(), c.GetRequire(), c.GetPrefer(), m.TtlMs)
	for _, k := range slices.Sorted(maps.Keys(c.GetLabels())) {
		fmt.Fprintf(h, " %q=%q", k, c.GetLabels()[k])
	}
	h.Write(c.GetBody())
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func missedOf(m proto.MissedRuns) schedule.Missed {
	switch m {
	case proto.MissedOnce:
		return schedule.Once
	case proto.MissedAll:
		return schedule.All
	}
	return schedule.Skip
}

func copySchedule(m *proto.Schedule) *proto.Schedule {
	return &proto.Schedule{
		Queue: m.Queue, Name: m.Name, Cron: m.Cron, Zone: m.Zone, Missed: m.Missed, MissedCap: m.MissedCap, Task: m.Task, TtlMs: m.TtlMs, Paused: m.Paused,
		MarkMs: m.MarkMs, FiringMs: m.FiringMs, Generation: m.Generation, Going: m.Going, Vouchers: m.Vouchers, Gone: m.Gone, Fired: m.Fired, Skipped: m.Skipped,
		Last: m.Last, LastMs: m.LastMs, ChangedMs: m.ChangedMs, Problem: m.Problem, Went: m.Went, BornMs: m.BornMs,
	}
}
