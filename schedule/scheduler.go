package schedule

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// A Scheduler keeps the schedules of the queues whose home is this node and creates their
// tasks. One goroutine owns them; every change is on disk first.
type Scheduler struct {
	parts    Parts
	cfg      Config
	all      map[scheduleID]*proto.Schedule
	requests chan func()
	done     chan struct{} // closed when Run has returned
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

// Parts are what schedules need of the other subsystems.
type Parts struct {
	Store  *store.Store
	Queues Queues
	Tasks  Tasks
	// Post sends a message to a peer or drops it: important ones are repeated.
	Post func(to proto.PeerID, t proto.MessageType, body proto.Body)
	// Audit records that a person changed a schedule.
	Audit audit.RecordFunc
	// Event reports to the people of this node what happened; the peer may be zero.
	Event event.AddFunc
	// Name returns the name of a peer for people.
	Name func(p proto.PeerID) string
}

// Queues tells where shared queues have their homes.
type Queues interface {
	// HomeOf returns the home of a queue, or why it is not known.
	HomeOf(queue string) (proto.PeerID, error)
	// WasHome reports whether p is or was the home of a queue.
	WasHome(queue string, p proto.PeerID) bool
}

// Tasks creates the tasks.
type Tasks interface {
	// CheckRequest returns what is wrong with a request.
	CheckRequest(r *wire.Request) error
	// SubmitFor stores a task that a handler must allow each of the delegates too.
	SubmitFor(ctx context.Context, r wire.Request, delegates [][]byte) (wire.Submitted, error)
}

// Config describes the node of a Scheduler. Every field is required.
type Config struct {
	Self       proto.PeerID
	Clock      clock.Clock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Open loads the schedules from disk. It creates no tasks: see [Scheduler.Run].
func Open(parts Parts, cfg Config) (*Scheduler, error) {
	s := &Scheduler{parts: parts, cfg: cfg, lag: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "balefire_schedule_lag_seconds", Help: "Delay from the due time of a schedule to the creation of its task, at the home of its queue.",
		Buckets: []float64{1, 2, 5, 10, 30, 60, 300, 1800, 7200, 86400},
	}), all: map[scheduleID]*proto.Schedule{}, sent: map[scheduleID]time.Duration{}, errors: map[scheduleID]scheduleError{}, requests: make(chan func(), 64), done: make(chan struct{})}
	cfg.Registerer.MustRegister(s.lag)
	for p, err := range parts.Store.All(store.Meta, []byte(keyPrefix), []byte(keyPrefix+"\xff")) {
		if err != nil {
			return nil, fmt.Errorf("read the schedules: %w", err)
		}
		m := new(proto.Schedule)
		if err := proto.Decode(p.Val, m); err != nil {
			return nil, fmt.Errorf("the schedule at %q: %w", p.Key, err)
		}
		s.all[scheduleID{m.Queue, m.Name}] = m
	}
	return s, nil
}

const (
	tickEvery     = time.Second     // interval between checks for due times and moved queues
	resendEvery   = 2 * time.Second // interval between repeats of an unanswered offer
	clockJump     = 2 * time.Second // a larger difference of the clocks between two ticks is a jump
	jumpPause     = 5 * time.Second // no tasks are created for this long after a jump
	tombstoneKept = 24 * time.Hour  // lifetime of a tombstone
	maxSchedules  = 1000            // limit of one node
	maxGone       = 4000            // limit of one node including tombstones
	maxScheduled  = 32 << 10        // limit of a schedule with its task, in bytes
	maxDelegates  = 16              // limit of homes that a schedule may pass through
)

// keyPrefix is the prefix of the keys of schedules in the bucket Meta.
const keyPrefix = "schedule/"

func (id scheduleID) key() []byte { return []byte(keyPrefix + id.queue + "/" + id.name) }

// put stores m on disk, then in memory.
func (s *Scheduler) put(ctx context.Context, m *proto.Schedule) error {
	m.ChangedMs = s.cfg.Clock.Now().UnixMilli()
	val, err := proto.Encode(nil, m)
	if err != nil {
		return fmt.Errorf("write schedule %s of queue %s: %w", m.Name, m.Queue, err)
	}
	id := scheduleID{m.Queue, m.Name}
	var b store.Batch
	b.Put(store.Meta, id.key(), val)
	if err := s.parts.Store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		return fmt.Errorf("write schedule %s of queue %s: %w", m.Name, m.Queue, err)
	}
	s.all[id] = m
	return nil
}

// full reports whether there is no room for another schedule.
func (s *Scheduler) full() bool {
	live := 0
	for _, m := range s.all {
		if !m.Gone {
			live++
		}
	}
	return live >= maxSchedules || len(s.all) >= maxGone
}

// Run creates tasks until ctx is done.
func (s *Scheduler) Run(ctx context.Context) error {
	defer close(s.done)
	tick := s.cfg.Clock.Ticker(tickEvery)
	defer tick.Stop()
	c := s.cfg.Clock
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
func (s *Scheduler) do(ctx context.Context, f func()) error {
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
func (s *Scheduler) sorted() []scheduleID {
	return slices.SortedFunc(maps.Keys(s.all), func(a, b scheduleID) int {
		return cmp.Or(strings.Compare(a.queue, b.queue), strings.Compare(a.name, b.name))
	})
}

// tick processes every schedule.
func (s *Scheduler) tick(ctx context.Context) {
	c := s.cfg.Clock
	unknown, doubted := c.Unknown(), c.Doubted()
	wall, boot := c.Now().Round(0), c.Boot()
	if jump := wall.Sub(s.last.wall) - (boot - s.last.boot); jump.Abs() > clockJump {
		s.pausedUntil = boot + jumpPause
		s.parts.Event(wire.EventScheduleJump, proto.PeerID{}, map[string]string{"by": jump.Round(time.Second).String()})
	}
	s.last.wall, s.last.boot = wall, boot
	for _, id := range s.sorted() {
		m := s.all[id]
		home, away := s.homeElsewhere(id.queue)
		var err error
		switch {
		case m.Gone:
			if len(m.Going) > 0 {
				s.offer(m)
			}
			if !doubted {
				err = s.forget(ctx, id, m, wall)
			}
		case m.FiringMs != 0:
			err = s.fire(ctx, m)
		case len(m.Going) > 0:
			s.offer(m)
		case away:
			next := proto.Clone(m)
			next.Going, next.Generation = home[:], m.Generation+1
			if err = s.put(ctx, next); err == nil {
				s.offer(next)
			}
		case !m.Paused && !unknown && boot >= s.pausedUntil:
			err = s.due(ctx, m, wall)
		}
		if ctx.Err() == nil && s.noteError(id, err, boot) {
			s.cfg.Logger.Warn("could not process a schedule; will retry", "queue", id.queue, "schedule", id.name, "err", err)
		}
	}
}

// A scheduleError is the error of a schedule and the boot time at which it was reported
// last.
type scheduleError struct {
	text   string
	logged time.Duration
}

// errorEvery is the minimum interval between reports of changing errors.
const errorEvery = time.Minute

// noteError records the result of processing a schedule and returns whether to report
// it: when an error begins, and when it changes.
func (s *Scheduler) noteError(id scheduleID, err error, now time.Duration) bool {
	old, had := s.errors[id]
	if err == nil {
		delete(s.errors, id)
		return false
	}
	if had && (old.text == err.Error() || now-old.logged < errorEvery) {
		return false
	}
	s.errors[id] = scheduleError{err.Error(), now}
	return true
}

// homeElsewhere returns the home of a queue and true if it is known and is not this node.
func (s *Scheduler) homeElsewhere(queue string) (home proto.PeerID, away bool) {
	home, err := s.parts.Queues.HomeOf(queue)
	return home, err == nil && home != s.cfg.Self
}

// Leaving counts the schedules whose queue has its home elsewhere and whose new home has
// not confirmed them yet.
func (s *Scheduler) Leaving(ctx context.Context) (count int, err error) {
	err = s.do(ctx, func() {
		for id, m := range s.all {
			if _, away := s.homeElsewhere(id.queue); away && !m.Gone {
				count++
			}
		}
	})
	return count, err
}

// forget drops a tombstone once no copy of its schedule can exist.
func (s *Scheduler) forget(ctx context.Context, id scheduleID, m *proto.Schedule, now time.Time) error {
	kept := tombstoneKept
	if len(m.Going)+len(m.Went) > 0 { // the new home must be informed of the removal, or may have to be
		kept = proto.MaxTTL
	}
	if now.Sub(proto.Time(m.ChangedMs)) < kept {
		return nil
	}
	var b store.Batch
	b.Delete(store.Meta, id.key())
	if err := s.parts.Store.Apply(context.WithoutCancel(ctx), &b); err != nil {
		return err
	}
	delete(s.all, id)
	delete(s.sent, id)
	return nil
}
