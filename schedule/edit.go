package schedule

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

var missedNames = map[string]proto.MissedRuns{
	"": proto.MissedSkip, "skip": proto.MissedSkip,
	"run-once": proto.MissedOnce, "run-all": proto.MissedAll,
}

const defaultMissedCap = 10

// List returns the schedules stored on this node by queue and name: those of the
// queues whose home is here, and those that are moving to another home.
func (s *Scheduler) List(ctx context.Context) ([]wire.Schedule, error) {
	out := []wire.Schedule{}
	err := s.do(ctx, func() {
		for _, id := range s.sorted() {
			if m := s.all[id]; !m.Gone {
				out = append(out, s.view(m))
			}
		}
	})
	return out, err
}

func (s *Scheduler) view(m *proto.Schedule) wire.Schedule {
	c, o := m.GetTask(), m.GetTask().GetOptions()
	v := wire.Schedule{
		ScheduleSpec: wire.ScheduleSpec{Queue: m.Queue, Name: m.Name, Cron: m.Cron, Zone: m.Zone, MissedCap: int(m.MissedCap), ScheduledTask: wire.ScheduledTask{
			Kind: c.GetKind(), Class: c.GetClass().Name(), TTL: wire.Duration(m.TtlMs) * wire.Duration(time.Millisecond), Order: c.GetOrderingKey(), OnDead: c.GetOnDead(),
			Args: c.GetArgs(), Body: c.GetBody(), Type: c.GetContentType(), Labels: c.GetLabels(), Require: o.GetRequire(), Prefer: o.GetPrefer(), Retries: o.GetMaxAttempts(),
		}},
		Paused: m.Paused, Last: proto.TimeOrNil(m.LastMs), Fired: m.Fired, Skipped: m.Skipped, Problem: s.problem(m),
	}
	for name, missed := range missedNames {
		if missed == m.Missed && name != "" {
			v.Missed = name
		}
	}
	if id, err := proto.TaskIDFrom(m.Last); err == nil {
		v.LastTask = id.String()
	}
	v.Going = s.nameOf(m.Going)
	if p, err := Parse(m.Cron, m.Zone); err == nil && !m.Paused && m.MarkMs != 0 && len(m.Going) == 0 {
		if next := p.Next(proto.Time(m.MarkMs)); !next.IsZero() {
			v.Next = &next
		}
	}
	return v
}

// problem returns why a schedule is not processed now, or why its newest task could not be
// created.
func (s *Scheduler) problem(m *proto.Schedule) *wire.Note {
	if text := s.errors[scheduleID{m.Queue, m.Name}].text; text != "" {
		return &wire.Note{Code: wire.ProblemScheduleRetried, NoteArgs: wire.NoteArgs{Detail: text}}
	}
	if m.Problem != "" {
		return &wire.Note{Code: wire.ProblemTaskRefused, NoteArgs: wire.NoteArgs{Detail: m.Problem}}
	}
	return nil
}

// check validates a schedule of a person or another home.
func check(m *proto.Schedule) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: schedule %.80q: %s", wire.ErrInvalid, m.GetName(), fmt.Sprintf(format, a...))
	}
	if _, err := Parse(m.GetCron(), m.GetZone()); err != nil {
		return bad("%v", err)
	}
	switch {
	case !proto.ValidQueue(m.GetQueue()) || !proto.ValidQueue(m.GetName()):
		return bad("the names of schedule and queue must be 1-63 of a-z 0-9 . _ -")
	case !proto.ValidKind(m.GetTask().GetKind()):
		return bad("kind %.60q: use 1-128 of a-z 0-9 . _ -", m.GetTask().GetKind())
	case m.GetMissedCap() > MaxCap:
		return bad("missed_cap must be at most %d", MaxCap)
	case proto.Size(m) > maxScheduled:
		return bad("%d bytes including its task, the limit is %d: put the body where the handler can fetch it", proto.Size(m), maxScheduled)
	}
	return nil
}

// Add adds a schedule for a queue whose home is this node. Its first due time is
// the next one from now.
func (s *Scheduler) Add(ctx context.Context, spec wire.ScheduleSpec) (wire.Schedule, error) {
	m, err := s.parse(spec)
	if err != nil {
		return wire.Schedule{}, err
	}
	if err := s.homeIsHere(spec.Queue); err != nil {
		return wire.Schedule{}, err
	}
	var out wire.Schedule
	asked := s.do(ctx, func() {
		old := s.all[scheduleID{spec.Queue, spec.Name}]
		switch {
		case old != nil && !old.Gone:
			err = fmt.Errorf("%w: queue %s already has a schedule %s: remove it first", wire.ErrRefused, spec.Queue, spec.Name)
			return
		case old == nil && s.full():
			err = fmt.Errorf("%w: this node has the maximum of %d schedules, or of %d including records of removed ones: remove a schedule, or wait until old records expire", wire.ErrFull, maxSchedules, maxGone)
			return
		}
		m.Generation, m.BornMs = old.GetGeneration()+1, s.cfg.Clock.Now().UnixMilli()
		if err = s.put(ctx, m); err == nil {
			out = s.view(m)
		}
	})
	if err = cmp.Or(asked, err); err != nil {
		return wire.Schedule{}, err
	}
	return out, s.parts.Audit(ctx, "schedule.add", spec.Queue+"/"+spec.Name)
}

// parse converts the definition of a schedule to its stored form.
func (s *Scheduler) parse(spec wire.ScheduleSpec) (*proto.Schedule, error) {
	missed, known := missedNames[spec.Missed]
	class, err := proto.ParseClass(spec.Class)
	if err != nil || !known || spec.MissedCap < 0 || spec.MissedCap > MaxCap {
		return nil, fmt.Errorf("%w: schedule %.80q: class must be critical, high, normal or low; missed must be skip, run-once or run-all; missed_cap must be from 0 to %d", wire.ErrInvalid, spec.Name, MaxCap)
	}
	ttl := cmp.Or(time.Duration(spec.TTL), proto.DefaultTTL)
	if ttl < 0 {
		return nil, fmt.Errorf("%w: schedule %.80q: ttl %s: must be positive", wire.ErrInvalid, spec.Name, spec.TTL)
	}
	m := &proto.Schedule{
		Queue: spec.Queue, Name: spec.Name, Cron: spec.Cron, Zone: cmp.Or(spec.Zone, "UTC"), Missed: missed, TtlMs: ttl.Milliseconds(), MarkMs: s.startMs(),
		Task: &proto.Content{
			Kind: spec.Kind, Class: cmp.Or(class, proto.Normal), OrderingKey: spec.Order, OnDead: spec.OnDead, Args: spec.Args, Body: spec.Body, ContentType: spec.Type,
			Labels: spec.Labels, Options: &proto.TaskOptions{Require: spec.Require, Prefer: spec.Prefer, MaxAttempts: spec.Retries},
		},
	}
	if missed == proto.MissedAll {
		m.MissedCap = uint32(cmp.Or(spec.MissedCap, defaultMissedCap))
	}
	if err := check(m); err != nil {
		return nil, err
	}
	r := request(m)
	return m, s.parts.Tasks.CheckRequest(&r)
}

// startMs returns the mark of a schedule that starts now: 0 while the time is unknown.
func (s *Scheduler) startMs() int64 {
	if s.cfg.Clock.Unknown() {
		return 0
	}
	return s.cfg.Clock.Now().UnixMilli()
}

// homeIsHere returns nil if this node is the home of a queue.
func (s *Scheduler) homeIsHere(queue string) error {
	home, err := s.parts.Queues.HomeOf(queue)
	if err == nil && home != s.cfg.Self {
		err = fmt.Errorf("%w: the home of queue %s is %s: its schedules are managed there", wire.ErrRefused, queue, s.parts.Name(home))
	}
	return err
}

// change changes a schedule stored here; with going, also one that is moving to
// another home.
func (s *Scheduler) change(ctx context.Context, queue, name, action string, going bool, change func(*proto.Schedule) *proto.Schedule) (out wire.Schedule, err error) {
	asked := s.do(ctx, func() {
		m := s.all[scheduleID{queue, name}]
		switch {
		case m == nil || m.Gone:
			if err = s.homeIsHere(queue); err == nil {
				err = fmt.Errorf("%w: queue %s has no schedule %.80q", wire.ErrNotFound, queue, name)
			}
			return
		case len(m.Going) > 0 && !going:
			err = fmt.Errorf("%w: schedule %s of queue %s is moving to %s: change it there, or remove it", wire.ErrRefused, name, queue, s.nameOf(m.Going))
			return
		}
		m = change(proto.Clone(m))
		if err = s.put(ctx, m); err == nil {
			out = s.view(m)
		}
	})
	if err = cmp.Or(asked, err); err != nil {
		return out, err
	}
	return out, s.parts.Audit(ctx, action, queue+"/"+name)
}

// Remove removes a schedule. Its tasks stay. If the schedule is moving to
// another home, that home is informed as soon as possible.
func (s *Scheduler) Remove(ctx context.Context, queue, name string) error {
	_, err := s.change(ctx, queue, name, "schedule.remove", true, func(m *proto.Schedule) *proto.Schedule {
		gone := tombstone(m)
		gone.Going = m.Going
		return gone
	})
	return err
}

// Pause pauses a schedule, or with false resumes it at the next due time from
// now: due times during the pause do not count as missed. A due time whose task could
// not be created yet is skipped.
func (s *Scheduler) Pause(ctx context.Context, queue, name string, on bool) (wire.Schedule, error) {
	action := "schedule.resume"
	if on {
		action = "schedule.pause"
	}
	return s.change(ctx, queue, name, action, false, func(m *proto.Schedule) *proto.Schedule {
		m.Paused = on
		if m.FiringMs != 0 { // if its task was created after all, no other is: it was due before the next one
			m.FiringMs, m.Skipped = 0, m.Skipped+1
		}
		if !on {
			m.MarkMs = s.startMs()
		}
		return m
	})
}

// nameOf returns the name of the peer with a key, empty if there is none.
func (s *Scheduler) nameOf(key []byte) string {
	p, err := proto.PeerIDFrom(key)
	if err != nil {
		return ""
	}
	return s.parts.Name(p)
}
