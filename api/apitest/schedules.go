package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/balefire/balefire/wire"
)

// Nightly is a schedule that has created a task.
func Nightly(queue, name string) wire.Schedule {
	last, next := Start.Add(-10*time.Hour), Start.Add(14*time.Hour)
	return wire.Schedule{
		ScheduleSpec: wire.ScheduleSpec{Queue: queue, Name: name, Cron: "0 2 * * *", Zone: "Europe/Paris", Missed: "run-once", ScheduledTask: wire.ScheduledTask{Kind: "shell", Class: "low"}},
		Last:         &last, LastTask: ID, Next: &next, Fired: 7, Skipped: 1,
	}
}

// Schedules returns a schedule and a paused one.
func (n *Node) Schedules(context.Context) ([]wire.Schedule, error) {
	still := Nightly("build", "weekly")
	still.Paused, still.Next = true, nil
	return []wire.Schedule{Nightly("build", "nightly"), still}, n.called("Schedules")
}

// AddSchedule records the schedule as JSON.
func (n *Node) AddSchedule(_ context.Context, s wire.ScheduleSpec) (wire.Schedule, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return wire.Schedule{}, fmt.Errorf("add %s: %w", s.Name, err)
	}
	v := Nightly(s.Queue, s.Name)
	v.ScheduleSpec = s
	return v, n.called("AddSchedule %s", b)
}

// RemoveSchedule removes a schedule.
func (n *Node) RemoveSchedule(_ context.Context, queue, name string) error {
	return n.called("RemoveSchedule %s %s", queue, name)
}

// PauseSchedule pauses or resumes a schedule.
func (n *Node) PauseSchedule(_ context.Context, queue, name string, on bool) (wire.Schedule, error) {
	v := Nightly(queue, name)
	v.Paused = on
	return v, n.called("PauseSchedule %s %s %v", queue, name, on)
}
