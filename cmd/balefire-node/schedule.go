package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func scheduleCommand(w *app) *cobra.Command {
	return group("schedule", "Have tasks made for a queue by the clock",
		`A schedule makes a task for a queue each time that it is due, once in the whole
mesh. The home of the queue keeps it and makes the tasks; it goes along when the
queue moves. All of it is done there.`,
		scheduleAdd(w), scheduleList(w), scheduleRemove(w), schedulePause(w, true), schedulePause(w, false))
}

// scheduleFlags are the flags of schedule add that are no fields of a schedule.
type scheduleFlags struct {
	spec   node.ScheduleSpec
	labels []string
}

func scheduleAdd(w *app) *cobra.Command {
	var f scheduleFlags
	c := &cobra.Command{
		Use: "add QUEUE NAME CRON KIND [@FILE | -] [-- ARG...]", Short: "Have a task made each time that CRON says",
		Long: `Have a task made for a queue each time that CRON says: minute, hour, day of the
month, month and day of the week in quotes, or a word like @daily, read in the
time zone --tz. It begins with the first time from now. Where the hour is not *,
it goes by the clock on the wall: a time that is left out when the clocks go
forward comes at once behind the gap, one that comes twice when they go back
comes the first time.

--missed says what becomes of times that went by for more than a minute while the
home was down: skip leaves them out, run-once makes up for the newest, run-all for
the newest --missed-cap of them.`,
		Example: `  balefire-node schedule add build nightly '0 2 * * *' shell --tz Europe/Paris -- make all
  balefire-node schedule add build report '@hourly' report @query.sql --missed run-once`,
		Args:              between(4, -1, "a queue, a name, a cron text and a kind: schedule add QUEUE NAME CRON KIND [@FILE | -] [-- ARG...]"),
		ValidArgsFunction: w.completeQueue,
		RunE:              func(cmd *cobra.Command, args []string) error { return w.addSchedule(cmd, &f, args) },
	}
	fs := c.Flags()
	fs.StringVar(&f.spec.Zone, "tz", "", "time zone of CRON, as Europe/Paris (default UTC)")
	fs.StringVar(&f.spec.Missed, "missed", "", "skip, run-once or run-all (default skip)")
	fs.IntVar(&f.spec.MissedCap, "missed-cap", 0, "of run-all, at most 1000 (default 10)")
	fs.StringVar(&f.spec.Class, "class", "", "critical, high, normal or low (default normal)")
	fs.StringVar(&f.spec.TTL, "ttl", "", "no start of a task after this, at most 720h (default 168h)")
	fs.StringVar(&f.spec.Order, "order-key", "", "tasks of one key run one after the other")
	fs.StringVar(&f.spec.OnDead, "on-dead", "", "what follows a dead task of the same order key: skip or block (default skip)")
	fs.StringArrayVar(&f.labels, "label", nil, "key=value to find the tasks by (repeatable)")
	fs.StringArrayVar(&f.spec.Require, "require", nil, "a label that the node must have (repeatable)")
	fs.StringArrayVar(&f.spec.Prefer, "prefer", nil, "a label that the node should have (repeatable)")
	fs.StringVar(&f.spec.Type, "type", "", "content type of the body")
	fs.Uint32Var(&f.spec.Retries, "retries", 0, "attempts that the handler may make (default its own)")
	completeWords(c, "missed", "skip", "run-once", "run-all")
	completeWords(c, "class", "critical", "high", "normal", "low")
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
	for _, l := range f.labels {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return usage("--label %.60q: write it as key=value", l)
		}
		if f.spec.Labels == nil {
			f.spec.Labels = map[string]string{}
		}
		f.spec.Labels[k] = v
	}
	if len(words) == 5 {
		var r node.Request
		file, err := w.openBody(words[4], &r)
		if err != nil {
			return err
		}
		defer file.Close()
		if r.Stream != nil {
			return usage("the body of a schedule has at most 32 KiB: put it where the handler can fetch it")
		}
		f.spec.Body = r.Body
	}
	s, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (node.Schedule, error) { return c.AddSchedule(ctx, f.spec) })
	if err != nil {
		return err
	}
	w.infof("%s: is due next at %s", sanitize(s.Name), formatNext(s))
	return w.show(view{value: s, human: func(p *printer) { p.table(scheduleTable(w, []node.Schedule{s})) }})
}

// formatNext writes when a schedule is due, in its own zone's name.
func formatNext(s node.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case s.Going != "":
		return "on its way to " + s.Going
	case s.Next == nil:
		return "-"
	}
	return s.Next.Format("2006-01-02 15:04 MST")
}

func scheduleTable(w *app, all []node.Schedule) *table {
	t := newTable(col("QUEUE"), col("NAME"), col("CRON"), col("ZONE"), col("KIND"), col("NEXT"), num("FIRED"), num("SKIPPED"), col("LAST"),
		wideOnly("MISSED"), wideOnly("LAST TASK"), wideOnly("PROBLEM"))
	for _, s := range all {
		missed := s.Missed
		if s.MissedCap > 0 {
			missed += fmt.Sprintf(" %d", s.MissedCap)
		}
		t.row(s.Queue, s.Name, s.Cron, s.Zone, s.Kind, formatNext(s), int(s.Fired), int(s.Skipped), w.ago(s.Last), missed, s.LastTask, s.Problem)
	}
	return t
}

func scheduleList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the schedules that this node keeps",
		Long: `List the schedules that this node keeps: those of the queues whose home it is, and
those on their way to another home. Times are in UTC.`,
		Example: "  balefire-node schedule ls\n  balefire-node schedule ls -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]node.Schedule, error) { return c.Schedules(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: node.Page[node.Schedule]{Items: all}, lines: lines(all), human: func(p *printer) { p.table(scheduleTable(w, all)) }})
		},
	}
}

var oneSchedule = exactly(2, "the names of a queue and of its schedule")

func scheduleRemove(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "rm QUEUE NAME", Short: "Remove a schedule; the tasks that it made stay",
		Example: "  balefire-node schedule rm build nightly", Args: oneSchedule, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.RemoveSchedule(ctx, args[0], args[1]) })
		},
	}
}

func schedulePause(w *app, on bool) *cobra.Command {
	c := &cobra.Command{
		Use: "pause QUEUE NAME", Short: "Have a schedule make nothing until it is resumed",
		Example: "  balefire-node schedule pause build nightly", Args: oneSchedule, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (node.Schedule, error) {
				return c.PauseSchedule(ctx, args[0], args[1], on)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) { p.table(scheduleTable(w, []node.Schedule{s})) }})
		},
	}
	if !on {
		c.Use, c.Short = "resume QUEUE NAME", "Have a paused schedule go on with the first time from now"
		c.Example = "  balefire-node schedule resume build nightly"
	}
	return c
}
