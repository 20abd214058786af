package node

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/ownership/schedule"
	"github.com/balefire/balefire/proto"
)

// A Schedule makes a task for a queue each time that it is due.
type Schedule struct {
	ScheduleSpec
	Paused   bool       `json:"paused,omitempty" doc:"makes nothing"`
	Next     *time.Time `json:"next,omitempty" doc:"when it is due next"`
	Last     *time.Time `json:"last,omitempty" doc:"the time that the newest task was made for"`
	LastTask string     `json:"last_task,omitempty" doc:"id of that task"`
	Fired    uint64     `json:"fired" doc:"tasks that it made"`
	Skipped  uint64     `json:"skipped" doc:"times that were left out"`
	Going    string     `json:"going,omitempty" doc:"the new home of its queue, which has not answered yet"`
	Problem  string     `json:"problem,omitempty" doc:"why the newest task could not be made"`
}

// A ScheduleSpec is a schedule as a person writes it.
type ScheduleSpec struct {
	Queue     string `json:"queue" minLength:"1" maxLength:"63"`
	Name      string `json:"name" minLength:"1" maxLength:"63" doc:"one of its queue"`
	Cron      string `json:"cron" minLength:"1" maxLength:"128" doc:"minute hour day month weekday, or a word like @daily"`
	Zone      string `json:"zone,omitempty" maxLength:"128" doc:"IANA name of the time zone that cron is read in; default UTC"`
	Missed    string `json:"missed,omitempty" enum:"skip,run-once,run-all" doc:"what becomes of times that went by while the home was down; default skip"`
	MissedCap int    `json:"missed_cap,omitempty" doc:"of run-all: how many are made up for at most, the newest; default 10, at most 1000"`
	ScheduledTask
}

// A ScheduledTask is what each task of a schedule is.
type ScheduledTask struct {
	Kind    string            `json:"kind" minLength:"1" maxLength:"128" doc:"which handler"`
	Class   string            `json:"class,omitempty" enum:"critical,high,normal,low" doc:"default normal"`
	TTL     string            `json:"ttl,omitempty" example:"24h" doc:"no start after this; default 168h, at most 720h"`
	Order   string            `json:"order,omitempty" maxLength:"256" doc:"ordering key: tasks of one key run one after the other"`
	OnDead  string            `json:"on_dead,omitempty" enum:"skip,block" doc:"what follows a dead head of its ordering key; default skip"`
	Args    []string          `json:"args,omitempty" maxItems:"256"`
	Body    []byte            `json:"body,omitempty" doc:"what the handler reads, with all the rest at most 32 KiB"`
	Type    string            `json:"type,omitempty" maxLength:"255" doc:"content type of the body"`
	Labels  map[string]string `json:"labels,omitempty" doc:"free words to find the tasks by"`
	Require []string          `json:"require,omitempty" maxItems:"32" doc:"labels that the node must have that does it"`
	Prefer  []string          `json:"prefer,omitempty" maxItems:"32" doc:"labels that it should have"`
	Retries uint32            `json:"retries,omitempty" doc:"attempts that the handler may make; default its own"`
}

var missedWords = map[string]proto.MissedRuns{
	"": proto.MissedSkip, "skip": proto.MissedSkip,
	"run-once": proto.MissedOnce, "run-all": proto.MissedAll,
}

const defaultMissedCap = 10

// Schedules lists the schedules that this node keeps, by queue and name: those of the
// queues whose home is here, and those that are on their way to another home.
func (n *Node) Schedules(ctx context.Context) ([]Schedule, error) {
	out := []Schedule{}
	err := n.schedules.do(ctx, func() {
		for _, id := range n.schedules.sorted() {
			if m := n.schedules.all[id]; !m.Gone {
				out = append(out, n.scheduleView(m))
			}
		}
	})
	return out, err
}

func (n *Node) scheduleView(m *proto.Schedule) Schedule {
	c := m.GetTask()
	v := Schedule{
		ScheduleSpec: ScheduleSpec{Queue: m.Queue, Name: m.Name, Cron: m.Cron, Zone: m.Zone, MissedCap: int(m.MissedCap), ScheduledTask: ScheduledTask{
			Kind: c.GetKind(), Class: c.GetClass().Name(), TTL: (time.Duration(m.TtlMs) * time.Millisecond).String(), Order: c.GetOrderingKey(), OnDead: c.GetOnDead(),
			Args: c.GetArgs(), Body: c.GetBody(), Type: c.GetContentType(), Labels: c.GetLabels(), Require: c.GetRequire(), Prefer: c.GetPrefer(), Retries: c.GetMaxAttempts(),
		}},
		Paused: m.Paused, Last: msOrNil(m.LastMs), Fired: m.Fired, Skipped: m.Skipped, Problem: cmp.Or(n.schedules.errors[scheduleID{m.Queue, m.Name}].text, m.Problem),
	}
	for word, missed := range missedWords {
		if missed == m.Missed && word != "" {
			v.Missed = word
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

// checkSchedule says what is wrong with a schedule, a person's or another home's.
func checkSchedule(m *proto.Schedule) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: schedule %.80q: %s", ErrInvalid, m.GetName(), fmt.Sprintf(format, a...))
	}
	if _, err := schedule.Parse(m.GetCron(), m.GetZone()); err != nil {
		return bad("%v", err)
	}
	switch {
	case !queueRE.MatchString(m.GetQueue()) || !queueRE.MatchString(m.GetName()):
		return bad("its name and that of its queue are 1-63 of a-z 0-9 . _ -")
	case !validKind(m.GetTask().GetKind()):
		return bad("kind %.60q: it is 1-128 of a-z 0-9 . _ -", m.GetTask().GetKind())
	case m.GetMissedCap() > schedule.MaxCap:
		return bad("at most %d missed times are made up for", schedule.MaxCap)
	case proto.Size(m) > maxScheduled:
		return bad("it has %d bytes with its task, the limit is %d: put the body where the handler can fetch it", proto.Size(m), maxScheduled)
	}
	return nil
}

// AddSchedule keeps a schedule for a queue whose home is here. It begins with the
// first time from now.
func (n *Node) AddSchedule(ctx context.Context, s ScheduleSpec) (Schedule, error) {
	m, err := n.scheduleOf(s)
	if err != nil {
		return Schedule{}, err
	}
	if err := n.homeIsHere(s.Queue); err != nil {
		return Schedule{}, err
	}
	var out Schedule
	asked := n.schedules.do(ctx, func() {
		old := n.schedules.all[scheduleID{s.Queue, s.Name}]
		switch {
		case old != nil && !old.Gone:
			err = fmt.Errorf("%w: queue %s has a schedule %s: remove it first", ErrRefused, s.Queue, s.Name)
			return
		case old == nil && n.schedules.full():
			err = fmt.Errorf("%w: this node keeps %d schedules, or %d with the notes of those that are gone, as many as may be: remove one, or wait until notes are dropped", ErrFull, maxSchedules, maxGone)
			return
		}
		m.Generation, m.BornMs = old.GetGeneration()+1, n.cfg.Clock.Now().UnixMilli()
		if err = n.schedules.put(ctx, m); err == nil {
			out = n.scheduleView(m)
		}
	})
	if err = cmp.Or(asked, err); err != nil {
		return Schedule{}, err
	}
	return out, n.audit(ctx, "schedule.add", s.Queue+"/"+s.Name)
}

// scheduleOf turns what a person wrote into what is kept.
func (n *Node) scheduleOf(s ScheduleSpec) (*proto.Schedule, error) {
	missed, known := missedWords[s.Missed]
	class, err := proto.ParseClass(s.Class)
	if err != nil || !known || s.MissedCap < 0 || s.MissedCap > schedule.MaxCap {
		return nil, fmt.Errorf("%w: schedule %.80q: its class is critical, high, normal or low; missed is skip, run-once or run-all; missed_cap is from 0 to %d", ErrInvalid, s.Name, schedule.MaxCap)
	}
	ttl := proto.DefaultTTL
	if s.TTL != "" {
		if ttl, err = time.ParseDuration(s.TTL); err != nil || ttl <= 0 {
			return nil, fmt.Errorf("%w: schedule %.80q: ttl %.40q: it is a positive duration like 24h", ErrInvalid, s.Name, s.TTL)
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
	return m, n.checkRequest(&r)
}

// homeIsHere returns nil if this node is the home of a queue.
func (n *Node) homeIsHere(queue string) error {
	home, err := n.queues.homeOf(queue)
	if err == nil && home != n.keys.Peer() {
		name, _ := n.peerNameID(home[:])
		err = fmt.Errorf("%w: the home of queue %s is %s: its schedules are kept there", ErrRefused, queue, name)
	}
	return err
}

// changeSchedule changes a schedule that is kept here, with going also one that is on
// its way to another home.
func (n *Node) changeSchedule(ctx context.Context, queue, name, action string, going bool, change func(*proto.Schedule) *proto.Schedule) (out Schedule, err error) {
	asked := n.schedules.do(ctx, func() {
		m := n.schedules.all[scheduleID{queue, name}]
		switch {
		case m == nil || m.Gone:
			if err = n.homeIsHere(queue); err == nil {
				err = fmt.Errorf("%w: queue %s has no schedule %.80q", ErrNotFound, queue, name)
			}
			return
		case len(m.Going) > 0 && !going:
			to, _ := n.peerNameID(m.Going)
			err = fmt.Errorf("%w: schedule %s of queue %s is on its way to %s: change it there, or remove it", ErrRefused, name, queue, to)
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

// RemoveSchedule removes a schedule. The tasks that it made stay. The home that it is on
// its way to is told, as soon as it can be.
func (n *Node) RemoveSchedule(ctx context.Context, queue, name string) error {
	_, err := n.changeSchedule(ctx, queue, name, "schedule.remove", true, func(m *proto.Schedule) *proto.Schedule {
		gone := tombstone(m)
		gone.Going = m.Going
		return gone
	})
	return err
}

// PauseSchedule has a schedule make nothing, or with false go on with the first time
// from now: what went by meanwhile was not missed.
func (n *Node) PauseSchedule(ctx context.Context, queue, name string, on bool) (Schedule, error) {
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
