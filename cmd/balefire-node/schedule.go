package main

import (
	"context"
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/wire"
)

func scheduleCommand(w *app) *cobra.Command {
	return group("schedule", "Create tasks for a queue on a schedule",
		`A schedule creates a task for a queue each time it is due, once in the whole mesh.
The home of the queue keeps the schedule and creates the tasks; it moves with the
queue. Run these commands on the home.`,
		scheduleAdd(w), scheduleList(w), scheduleRemove(w), schedulePause(w, true), schedulePause(w, false))
}

// scheduleFlags are the flags of schedule add that are not fields of a schedule.
type scheduleFlags struct {
	ttl    string
	spec   wire.ScheduleSpec
	labels []string
}

func scheduleAdd(w *app) *cobra.Command {
	var f scheduleFlags
	c := &cobra.Command{
		Use: "add QUEUE NAME CRON KIND [@FILE | -] [-- ARG...]", Short: "Create a task at each time of CRON",
		Long: `Create a task for a queue at each time of CRON: minute, hour, day of month,
month and day of week in quotes, or a word like @daily, in the time zone --tz.
The first one is the next time from now. If the hour is not *, the schedule
follows local wall-clock time: a time that is skipped when clocks go forward is
due right after the gap, and a time that occurs twice when clocks go back is due
the first time.

--missed is what happens to times that passed more than a minute ago while the
home was down: skip drops them, run-once creates a task for the newest, run-all
for the newest --missed-cap of them.`,
		Example: `  balefire-node schedule add build nightly '0 2 * * *' shell --tz Europe/Paris -- make all
  balefire-node schedule add build report '@hourly' report @query.sql --missed run-once`,
		Args:              between(4, -1, "a queue, a name, a cron text and a kind: schedule add QUEUE NAME CRON KIND [@FILE | -] [-- ARG...]"),
		ValidArgsFunction: w.completeQueue,
		RunE:              func(cmd *cobra.Command, args []string) error { return w.addSchedule(cmd, &f, args) },
	}
	fs := c.Flags()
	fs.StringVar(&f.spec.Zone, "tz", "", "time zone of CRON, like Europe/Paris (default UTC)")
	fs.StringVar(&f.spec.Missed, "missed", "", "skip, run-once or run-all (default skip)")
	fs.Var(numberValue[int]{&f.spec.MissedCap, 0, schedule.MaxCap}, "missed-cap", "most tasks of run-all, at most 1000 (default 10)")
	fs.StringVar(&f.spec.Class, "class", "", "critical, high, normal or low (default normal)")
	fs.StringVar(&f.ttl, "ttl", "", "do not start a task after this, at most 30d (default 7d)")
	fs.StringVar(&f.spec.Order, "order-key", "", "tasks of one key run one after the other")
	fs.StringVar(&f.spec.OnDead, "on-dead", "", "after a dead task with the same order key: skip or block (default skip)")
	fs.StringArrayVar(&f.labels, "label", nil, "label key=value of the tasks (repeatable)")
	fs.StringArrayVar(&f.spec.Require, "require", nil, "a label that the node must have (repeatable)")
	fs.StringArrayVar(&f.spec.Prefer, "prefer", nil, "a label that the node should have (repeatable)")
	fs.StringVar(&f.spec.Type, "type", "", "content type of the body")
	fs.Var(numberValue[uint32]{&f.spec.Retries, 0, math.MaxUint32}, "retries", "attempts of the handler (default its own)")
	oneOf(c, "on-dead", "skip", "block")
	oneOf(c, "missed", "skip", "run-once", "run-all")
	oneOf(c, "class", "critical", "high", "normal", "low")
	return c
}

func (w *app) addSchedule(cmd *cobra.Command, f *scheduleFlags, args []string) error {
	words := args
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		words, f.spec.Args = args[:dash], args[dash:]
	}
	if len(words) < 4 || len(words) > 5 {
		return usage("schedule add takes a queue, a name, a cron text in quotes, a kind and one body: @FILE or -; arguments for the handler follow --")
	}
	f.spec.Queue, f.spec.Name, f.spec.Cron, f.spec.Kind = words[0], words[1], words[2], words[3]
	var err error
	if f.spec.TTL, err = parseSpan("ttl", f.ttl); err != nil {
		return err
	}
	if f.spec.Labels, err = parseLabels(f.labels); err != nil {
		return err
	}
	if len(words) == 5 {
		var r wire.Request
		file, err := w.openBody(words[4], &r)
		if err != nil {
			return err
		}
		defer file.Close()
		if r.Stream != nil {
			return usage("the body of a schedule can have at most 32 KiB: put it where the handler can fetch it")
		}
		f.spec.Body = r.Body
	}
	s, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Schedule, error) { return c.AddSchedule(ctx, f.spec) })
	if err != nil {
		return err
	}
	w.infof("%s: next due at %s", sanitize(s.Name), formatNext(s))
	return w.show(view{value: s, human: func(p *printer) { p.table(scheduleTable(w, []wire.Schedule{s})) }})
}

// formatNext formats the next due time in the schedule's own time zone.
func formatNext(s wire.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case s.Going != "":
		return "moving to " + s.Going
	case s.Next == nil:
		return "-"
	}
	return s.Next.Format("2006-01-02 15:04 MST")
}

func scheduleTable(w *app, all []wire.Schedule) *table {
	t := newTable(col("QUEUE"), col("NAME"), col("CRON"), col("ZONE"), col("KIND"), col("NEXT"), num("FIRED"), num("SKIPPED"), col("LAST"),
		wideOnly("MISSED"), wideOnly("LAST TASK"), wideOnly("PROBLEM"))
	for _, s := range all {
		missed := s.Missed
		if s.MissedCap > 0 {
			missed += fmt.Sprintf(" %d", s.MissedCap)
		}
		problem := ""
		if s.Problem != nil {
			problem = prose.Text(*s.Problem)
		}
		t.row(s.Queue, s.Name, s.Cron, s.Zone, s.Kind, formatNext(s), int(s.Fired), int(s.Skipped), w.ago(s.Last), missed, s.LastTask, problem)
	}
	return t
}

func scheduleList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the schedules that this node keeps",
		Long: `List the schedules that this node keeps: those of the queues whose home it is, and
those that are moving to another home. Times are in UTC.`,
		Example: "  balefire-node schedule ls\n  balefire-node schedule ls -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Schedule, error) { return c.Schedules(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Schedule]{Items: all}, lines: lines(all), human: func(p *printer) { p.table(scheduleTable(w, all)) }})
		},
	}
}

var oneSchedule = exactly(2, "the names of a queue and of its schedule")

func scheduleRemove(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "rm QUEUE NAME", Short: "Remove a schedule; its tasks stay",
		Example: "  balefire-node schedule rm build nightly", Args: oneSchedule, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.RemoveSchedule(ctx, args[0], args[1]) })
		},
	}
}

func schedulePause(w *app, on bool) *cobra.Command {
	c := &cobra.Command{
		Use: "pause QUEUE NAME", Short: "Pause a schedule until it is resumed",
		Example: "  balefire-node schedule pause build nightly", Args: oneSchedule, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Schedule, error) {
				return c.PauseSchedule(ctx, args[0], args[1], on)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) { p.table(scheduleTable(w, []wire.Schedule{s})) }})
		},
	}
	if !on {
		c.Use, c.Short = "resume QUEUE NAME", "Resume a paused schedule with the next time from now"
		c.Example = "  balefire-node schedule resume build nightly"
	}
	return c
}
