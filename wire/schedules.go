package wire

import "time"

// A Schedule creates a task for a queue each time that it is due.
type Schedule struct {
	ScheduleSpec
	Paused   bool       `json:"paused,omitempty" doc:"creates no tasks"`
	Next     *time.Time `json:"next,omitempty" doc:"next due time"`
	Last     *time.Time `json:"last,omitempty" doc:"due time of the newest task"`
	LastTask string     `json:"last_task,omitempty" doc:"id of that task"`
	Fired    uint64     `json:"fired" doc:"tasks created"`
	Skipped  uint64     `json:"skipped" doc:"due times without a task"`
	Going    string     `json:"going,omitempty" doc:"new home of its queue, which has not confirmed the move yet"`
	Problem  *Note      `json:"problem,omitempty" doc:"why the newest task could not be created, or why it is not processed now"`
}

// A ScheduleSpec is the definition of a schedule.
type ScheduleSpec struct {
	Queue     string `json:"queue" minLength:"1" maxLength:"63"`
	Name      string `json:"name" minLength:"1" maxLength:"63" doc:"unique in its queue"`
	Cron      string `json:"cron" minLength:"1" maxLength:"128" doc:"minute hour day month weekday, or a word such as @daily"`
	Zone      string `json:"zone,omitempty" maxLength:"128" doc:"IANA name of the time zone for cron; default UTC"`
	Missed    string `json:"missed,omitempty" enum:"skip,run-once,run-all" doc:"what to do about due times missed while the home was down; default skip"`
	MissedCap int    `json:"missed_cap,omitempty" doc:"for run-all: how many of the newest missed times get a task; default 10, at most 1000"`
	ScheduledTask
}

// A ScheduledTask defines the tasks of a schedule.
type ScheduledTask struct {
	Kind    string            `json:"kind" minLength:"1" maxLength:"128" doc:"kind of the handler"`
	Class   string            `json:"class,omitempty" enum:"critical,high,normal,low" doc:"default normal"`
	TTL     Duration          `json:"ttl,omitzero" example:"24h" doc:"time after which it must not start; default 7d, at most 30d"`
	Order   string            `json:"order,omitempty" maxLength:"256" doc:"ordering key: tasks with the same key run one after the other"`
	OnDead  string            `json:"on_dead,omitempty" enum:"skip,block" doc:"what happens to later tasks with its ordering key if it becomes a dead letter; default skip"`
	Args    []string          `json:"args,omitempty" maxItems:"256"`
	Body    []byte            `json:"body,omitempty" doc:"input of the handler; at most 32 KiB including the rest of the schedule"`
	Type    string            `json:"type,omitempty" maxLength:"255" doc:"content type of the body"`
	Labels  map[string]string `json:"labels,omitempty" doc:"arbitrary labels to find the tasks by"`
	Require []string          `json:"require,omitempty" maxItems:"32" doc:"labels that the executing node must have"`
	Prefer  []string          `json:"prefer,omitempty" maxItems:"32" doc:"labels that the executing node should have"`
	Retries uint32            `json:"retries,omitempty" minimum:"0" maximum:"4294967295" doc:"maximum number of attempts; default: that of the handler"`
}
