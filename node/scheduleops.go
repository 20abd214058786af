package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/ownership/schedule"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

var missedNames = map[string]proto.MissedRuns{
	"": proto.MissedSkip, "skip": proto.MissedSkip,
	"run-once": proto.MissedOnce, "run-all": proto.MissedAll,
}

const defaultMissedCap = 10

// Schedules lists the schedules stored on this node by queue and name: those of the
// queues whose home is here, and those that are moving to another home.
func (n *Node) Schedules(ctx context.Context) ([]wire.Schedule, error) {
	out := []wire.Schedule{}
	err := n.schedules.do(ctx, func() {
		for _, id := range n.schedules.sorted() {
			if m := n.schedules.all[id]; !m.Gone {
				out = append(out, n.scheduleView(m))
			}
		}
	})
	return out, err
}

func (n *Node) scheduleView(m *proto.Schedule) wire.Schedule {
	c := m.GetTask()
	v := wire.Schedule{
		ScheduleSpec: wire.ScheduleSpec{Queue: m.Queue, Name: m.Name, Cron: m.Cron, Zone: m.Zone, MissedCap: int(m.MissedCap), ScheduledTask: wire.ScheduledTask{
			Kind: c.GetKind(), Class: c.GetClass().Name(), TTL: (time.Duration(m.TtlMs) * time.Millisecond).String(), Order: c.GetOrderingKey(), OnDead: c.GetOnDead(),
			Args: c.GetArgs(), Body: c.GetBody(), Type: c.GetContentType(), Labels: c.GetLabels(), Require: c.GetRequire(), Prefer: c.GetPrefer(), Retries: c.GetMaxAttempts(),
		}},
		Paused: m.Paused, Last: msOrNil(m.LastMs), Fired: m.Fired, Skipped: m.Skipped, Problem: cmp.Or(n.schedules.errors[scheduleID{m.Queue, m.Name}].text, m.Problem),
	}
	for s, missed := range missedNames {
		if missed == m.Missed && s != "" {
			v.Missed = s
		}
	}
	if id, err := proto.TaskIDFrom(m.Last); err == nil {
		v.LastTask = id.String()
	}
	v.Going, _ = n.peerNameID(m.Going)
	if p, err := schedule.Parse(m.Cron, m.Zone); err == nil && !m.Paused && len(m.Going) == 0 {
		if next := p.Next(msTime(m.MarkMs)); !next.IsZero() {
			v.Next = &next
		}
	}
	return v
}

// checkSchedule validates a schedule of a person or another home.
func checkSchedule(m *proto.Schedule) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: schedule %.80q: %s", wire.ErrInvalid, m.GetName(), fmt.Sprintf(format, a...))
	}
	if _, err := schedule.Parse(m.GetCron(), m.GetZone()); err != nil {
		return bad("%v", err)
	}
	switch {
	case !queueRE.MatchString(m.GetQueue()) || !queueRE.MatchString(m.GetName()):
		return bad("the names of schedule and queue must be 1-63 of a-z 0-9 . _ -")
	case !proto.ValidKind(m.GetTask().GetKind()):
		return bad("kind %.60q: use 1-128 of a-z 0-9 . _ -", m.GetTask().GetKind())
	case m.GetMissedCap() > schedule.MaxCap:
		return bad("missed_cap must be at most %d", schedule.MaxCap)
	case proto.Size(m) > maxScheduled:
		return bad("%d bytes including its task, the limit is %d: put the body where the handler can fetch it", proto.Size(m), maxScheduled)
	}
	return nil
}

// AddSchedule adds a schedule for a queue whose home is this node. Its first due time is
// the next one from now.
func (n *Node) AddSchedule(ctx context.Context, s wire.ScheduleSpec) (wire.Schedule, error) {
	m, err := n.scheduleOf(s)
	if err != nil {
		return wire.Schedule{}, err
	}
	if err := n.homeIsHere(s.Queue); err != nil {
		return wire.Schedule{}, err
	}
	var out wire.Schedule
	asked := n.schedules.do(ctx, func() {
		old := n.schedules.all[scheduleID{s.Queue, s.Name}]
		switch {
		case old != nil && !old.Gone:
			err = fmt.Errorf("%w: queue %s already has a schedule %s: remove it first", wire.ErrRefused, s.Queue, s.Name)
			return
		case old == nil && n.schedules.full():
			err = fmt.Errorf("%w: this node has the maximum of %d schedules, or of %d including records of removed ones: remove a schedule, or wait until old records expire", wire.ErrFull, maxSchedules, maxGone)
			return
		}
		m.Generation, m.BornMs = old.GetGeneration()+1, n.cfg.Clock.Now().UnixMilli()
		if err = n.schedules.put(ctx, m); err == nil {
			out = n.scheduleView(m)
		}
	})
	if err = cmp.Or(asked, err); err != nil {
		return wire.Schedule{}, err
	}
	return out, n.audit(ctx, "schedule.add", s.Queue+"/"+s.Name)
}

// scheduleOf converts the definition of a schedule to its stored form.
func (n *Node) scheduleOf(s wire.ScheduleSpec) (*proto.Schedule, error) {
	missed, known := missedNames[s.Missed]
	class, err := proto.ParseClass(s.Class)
	if err != nil || !known || s.MissedCap < 0 || s.MissedCap > schedule.MaxCap {
		return nil, fmt.Errorf("%w: schedule %.80q: class must be critical, high, normal or low; missed must be skip, run-once or run-all; missed_cap must be from 0 to %d", wire.ErrInvalid, s.Name, schedule.MaxCap)
	}
	ttl := proto.DefaultTTL
	if s.TTL != "" {
		if ttl, err = time.ParseDuration(s.TTL); err != nil || ttl <= 0 {
			return nil, fmt.Errorf("%w: schedule %.80q: ttl %.40q: must be a positive duration such as 24h", wire.ErrInvalid, s.Name, s.TTL)
		}
	}
	m := &proto.Schedule{
		Queue: s.Queue, Name: s.Name, Cron: s.Cron, Zone: cmp.Or(s.Zone, "UTC"), Missed: missed, TtlMs: ttl.Milliseconds(), MarkMs: n.cfg.Clock.Now().UnixMilli(),
		Task: &proto.Content{
			Kind: s.Kind, Class: cmp.Or(class, proto.Normal), OrderingKey: s.Order, OnDead: s.OnDead, Args: s.Args, Body: s.Body, ContentType: s.Type,
			Labels: s.Labels, Require: s.Require, Prefer: s.Prefer, MaxAttempts: s.Retries,
		},
	}
	if missed == proto.MissedAll {
		m.MissedCap = uint32(cmp.Or(s.MissedCap, defaultMissedCap))
	}
	if err := checkSchedule(m); err != nil {
		return nil, err
	}
	r := scheduledRequest(m)
	_, _, err = n.checkRequest(&r.Request)
	return m, err
}

// homeIsHere returns nil if this node is the home of a queue.
func (n *Node) homeIsHere(queue string) error {
	home, err := n.queues.homeOf(queue)
	if err == nil && home != n.keys.Peer() {
		name, _ := n.peerNameID(home[:])
		err = fmt.Errorf("%w: the home of queue %s is %s: its schedules are managed there", wire.ErrRefused, queue, name)
	}
	return err
}

// changeSchedule changes a schedule stored here; with going, also one that is moving to
// another home.
func (n *Node) changeSchedule(ctx context.Context, queue, name, action string, going bool, change func(*proto.Schedule) *proto.Schedule) (out wire.Schedule, err error) {
	asked := n.schedules.do(ctx, func() {
		m := n.schedules.all[scheduleID{queue, name}]
		switch {
		case m == nil || m.Gone:
			if err = n.homeIsHere(queue); err == nil {
				err = fmt.Errorf("%w: queue %s has no schedule %.80q", wire.ErrNotFound, queue, name)
			}
			return
		case len(m.Going) > 0 && !going:
			to, _ := n.peerNameID(m.Going)
			err = fmt.Errorf("%w: schedule %s of queue %s is moving to %s: change it there, or remove it", wire.ErrRefused, name, queue, to)
			return
		}
		m = change(copySchedule(m))
		if err = n.schedules.put(ctx, m); err == nil {
			out = n.scheduleView(m)
		}
	})
	if err = cmp.Or(asked, err); err != nil {
		return out, err
	}
	return out, n.audit(ctx, action, queue+"/"+name)
}

// RemoveSchedule removes a schedule. Its tasks stay. If the schedule is moving to
// another home, that home is informed as soon as possible.
func (n *Node) RemoveSchedule(ctx context.Context, queue, name string) error {
	_, err := n.changeSchedule(ctx, queue, name, "schedule.remove", true, func(m *proto.Schedule) *proto.Schedule {
		gone := tombstone(m)
		gone.Going = m.Going
		return gone
	})
	return err
}

// PauseSchedule pauses a schedule, or with false resumes it at the next due time from
// now: due times during the pause do not count as missed.
func (n *Node) PauseSchedule(ctx context.Context, queue, name string, on bool) (wire.Schedule, error) {
	action := "schedule.resume"
	if on {
		action = "schedule.pause"
	}
	return n.changeSchedule(ctx, queue, name, action, false, func(m *proto.Schedule) *proto.Schedule {
		m.Paused = on
		if !on {
			m.MarkMs = n.cfg.Clock.Now().UnixMilli()
		}
		return m
	})
}
