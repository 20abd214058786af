package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func taskCommand(w *app) *cobra.Command {
	return group("task", "Show and manage tasks",
		"Show the tasks that this node sent or accepted, follow them, cancel them, repeat\nthem, fetch their results and receipts. A task is given by its id or a unique\nbeginning of it.",
		taskList(w), taskShow(w), taskWatch(w), taskResult(w), taskReceipts(w), taskCancel(w), taskSet(w), taskProgress(w), taskRetry(w), taskPurge(w))
}

func taskList(w *app) *cobra.Command {
	var f queryFlags
	c := &cobra.Command{
		Use: "ls", Short: "List tasks, newest first",
		Example: "  balefire-node task ls --peer laptop --state pending,running\n  balefire-node task ls --since 1h -o jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.query(w.clock.Now())
			if err != nil {
				return err
			}
			c, err := w.node()
			if err != nil {
				return err
			}
			page, err := f.pages(cmd.Context(), w, q, c.Tasks)
			if err != nil {
				return err
			}
			return w.show(tasksView(w, page))
		},
	}
	f.add(c, true)
	w.addWatch(c)
	return c
}

// tasksView shows a page of tasks.
func tasksView(w *app, page wire.Page[wire.Task]) view {
	return view{value: page, lines: lines(page.Items), human: func(p *printer) {
		t := newTable(col("ID"), col("STATE"), col("KIND"), col("CLASS"), col("ROLE"), col("PEER"), num("AGE"), num("TRIES"), col("REASON"), wideOnly("FULL ID"), wideOnly("BODY"), wideOnly("KEY"))
		for _, k := range page.Items {
			t.row(shortTask(k.ID), k.State, k.Kind, k.Class, k.Role, k.Peer, w.ago(&k.Created), k.Attempts, p.truncate(prose.Ending(k.Ending), 60), k.ID, formatSize(k.BodySize), k.Key)
		}
		p.table(t)
		if page.Next != "" {
			w.infof("there are more: use --cursor %s or --all", page.Next)
		}
	}}
}

func taskShow(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a task with its history",
		Example: "  balefire-node task show 01a1f84f", Args: oneTask, ValidArgsFunction: w.completeTask,
		RunE: onNode(w, func(ctx context.Context, c *client.Client, args []string) error {
			t, err := c.Task(ctx, args[0])
			if err != nil {
				return err
			}
			return w.show(taskView(w, t))
		}),
	}
}

// taskView shows one task: first its fields, then its events.
func taskView(w *app, t wire.Task) view {
	return view{value: t, human: func(p *printer) {
		p.line("task    %s   kind %s   class %s   %s", t.ID, t.Kind, t.Class, otherSide(t))
		state := fmt.Sprintf("state   %s   attempts %d   epoch %s", t.State, t.Attempts, t.Epoch)
		if !ended(t) {
			state += "   ttl " + formatDuration(t.NotAfter.Sub(w.clock.Now())) + " left"
			if t.Due != nil && t.Due.After(w.clock.Now()) {
				state += "   not before " + formatTime(*t.Due)
			}
		}
		p.line("%s", state)
		p.line("body    %s   result %s   receipts %s", formatSize(t.BodySize), resultSize(t), strings.Join(t.Receipts, ", "))
		for _, x := range t.Transfers {
			p.line("moving  %s", prose.Transfer(&x))
		}
		for _, m := range []struct{ name, text string }{
			{"reason", prose.Ending(t.Ending)}, {"key", t.Key}, {"order", t.Order}, {"trace", t.Trace}, {"again", t.RedriveOf}, {"then", t.RedrivenAs},
		} {
			if m.text != "" {
				p.line("%-7s %s", m.name, sanitizeLine(m.text))
			}
		}
		events := newTable(col("TIME"), col("NODE"), col("STATE"), num("TRY"), col("DETAIL"))
		for _, e := range t.Events {
			detail := prose.Cause(e.Cause, e.Code, e.Detail)
			if e.Folded > 0 {
				detail = fmt.Sprintf("… %d more", e.Folded)
			}
			events.row(e.Time.Local().Format("15:04:05.000"), e.Node, e.State, e.Attempt, detail)
		}
		p.table(events)
		if t.Stderr != "" {
			p.line("stderr:\n%s", quoteLines(t.Stderr))
		}
	}}
}

// resultSize returns the size of a result and whether it is truncated.
func resultSize(t wire.Task) string {
	if t.Truncated {
		return formatSize(t.ResultSize) + " (truncated: the handler wrote more)"
	}
	return formatSize(t.ResultSize)
}

// otherSide returns the target of a task, or its origin. A task for a queue is at the home
// of the queue.
func otherSide(t wire.Task) string {
	switch _, queued := proto.QueueOf(t.Target); {
	case t.Role != "home":
		return "from " + t.Peer
	case queued:
		return "to " + t.Target + " at " + t.Peer
	}
	return "to " + t.Peer
}

func taskWatch(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Follow a task to its end and print its result",
		Long:    "Follow a task to its end and print its result on standard output. The exit code\nis the outcome, as with send --wait.",
		Example: "  balefire-node task watch 01a1f84f --timeout 1m", Args: oneTask, ValidArgsFunction: w.completeLive,
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: onNode(w, func(ctx context.Context, c *client.Client, args []string) error {
			return w.follow(ctx, c, args[0])
		}),
	}
}

func taskResult(w *app) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use: "result ID", Short: "Fetch the result of a task",
		Long:    "Write the result of an ended task to standard output, or atomically to a file.",
		Example: "  balefire-node task result 01a1f84f --out report.pdf", Args: oneTask, ValidArgsFunction: w.completeEnded,
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: onNode(w, func(ctx context.Context, c *client.Client, args []string) error {
			r, t, err := c.Result(ctx, args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			defer w.warnTruncated(t)
			if out == "" {
				return w.writeResult(args[0], r)
			}
			n, err := writeFileAtomic(out, r)
			if err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
			w.infof("%s, %s, of task %s", out, formatSize(n), shortTask(t.ID))
			return nil
		}),
	}
	c.Flags().StringVar(&out, "out", "", "file to write")
	return c
}

// writeFileAtomic writes a temporary file next to path and renames it when it is complete.
func writeFileAtomic(path string, r io.Reader) (n int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".balefire-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	if n, err = io.Copy(f, r); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return n, err
}

func taskCancel(w *app) *cobra.Command {
	var f queryFlags
	var hard, dry bool
	var reason string
	c := &cobra.Command{
		Use: "cancel [ID...]", Short: "Cancel tasks",
		Long: `Cancel tasks: those with these ids, or those that the flags select among the
tasks that have not ended. A waiting task never starts; a running one is asked
to stop, or with --hard killed with all its processes. It is CANCELLED once none
of its processes runs.`,
		Example: "  balefire-node task cancel 01a1f84f --hard --reason 'wrong file'\n  balefire-node task cancel --peer laptop --kind resize --dry-run", Args: taskIDs(0, -1), ValidArgsFunction: w.completeLive,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := f.ids(cmd, w, args, func(s proto.TaskState) bool { return !s.Terminal() })
			if err != nil || dry {
				return w.printDryRun(ids, err)
			}
			if len(args) == 0 && len(ids) > 0 {
				if err := w.confirm("cancel " + counted(len(ids), "task", "tasks")); err != nil {
					return err
				}
			}
			return eachTask(cmd, w, "cancel", ids, len(args) == 1, func(ctx context.Context, c *client.Client, id string) (wire.Task, error) {
				return c.Cancel(ctx, id, hard, reason)
			}, func(p *printer, _ string, t wire.Task) {
				if ended(t) {
					p.line("task %s is %s", t.ID, t.State)
					return
				}
				p.line("task %s is %s, cancellation requested", t.ID, t.State)
			})
		},
	}
	f.add(c, false)
	c.Flags().BoolVar(&hard, "hard", false, "kill all its processes at once")
	c.Flags().StringVar(&reason, "reason", "", "reason, for the record of the task")
	c.Flags().BoolVar(&dry, "dry-run", false, "only list")
	return c
}

func taskRetry(w *app) *cobra.Command {
	var f queryFlags
	var dry bool
	c := &cobra.Command{
		Use: "retry [ID...]", Short: "Submit ended tasks again, as new tasks",
		Long: `Submit ended tasks again: those with these ids, or those that the flags select
among the tasks that ended without success. Each becomes a new task with a new
id and the same idempotency key that refers to the one it repeats.`,
		Example: "  balefire-node task retry 01a1f84f\n  balefire-node task retry --peer laptop --state failed --since 1h --dry-run", Args: taskIDs(0, -1), ValidArgsFunction: w.completeEnded,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := f.ids(cmd, w, args, func(s proto.TaskState) bool { return s.Terminal() && s != proto.Success })
			if err != nil || dry {
				return w.printDryRun(ids, err)
			}
			return eachTask(cmd, w, "retry", ids, false, func(ctx context.Context, c *client.Client, id string) (wire.Submitted, error) {
				return c.Retry(ctx, id)
			}, func(p *printer, id string, s wire.Submitted) {
				p.line("%s is repeated by %s for %s", shortTask(id), s.ID, s.Target)
			})
		},
	}
	f.add(c, false)
	c.Flags().BoolVar(&dry, "dry-run", false, "only list")
	return c
}

// printDryRun prints the tasks that a command with --dry-run would change.
func (w *app) printDryRun(ids []string, err error) error {
	if err != nil {
		return err
	}
	return w.show(view{value: wire.Page[string]{Items: append([]string{}, ids...)}, lines: lines(ids), human: func(p *printer) {
		for _, id := range ids {
			p.line("%s", id)
		}
		w.infof("%s", counted(len(ids), "task", "tasks"))
	}})
}

// eachTask applies an action to one task after the other, also after one that is refused or
// not there, and shows the results: a single one as it is, several as a list.
func eachTask[T any](cmd *cobra.Command, w *app, verb string, ids []string, alone bool, do func(context.Context, *client.Client, string) (T, error), tell func(*printer, string, T)) error {
	c, err := w.node()
	if err != nil {
		return err
	}
	done, changed, failed := []T{}, []string{}, ""
	for _, id := range ids {
		ctx, cancel := w.withTimeout(cmd.Context())
		v, why := do(ctx, c, id)
		cancel()
		if why == nil {
			done, changed = append(done, v), append(changed, id)
			continue
		}
		if err == nil {
			err, failed = why, id
		}
		if !isAny(why, wire.ErrRefused, wire.ErrNotFound) {
			err, failed = why, id
			break
		}
	}
	if err != nil && len(ids) > 1 {
		err = fmt.Errorf("%s %s (%d of %d done): %w", verb, failed, len(done), len(ids), err)
	}
	if err != nil && len(done) == 0 {
		return err
	}
	v := view{value: wire.Page[T]{Items: done}, lines: lines(done), human: func(p *printer) {
		for i, d := range done {
			tell(p, changed[i], d)
		}
		if len(ids) == 0 {
			w.infof("no task is selected")
		}
	}}
	if alone && len(done) == 1 {
		v.value = done[0]
	}
	return errors.Join(w.show(v), err)
}

func taskPurge(w *app) *cobra.Command {
	var f queryFlags
	var dry bool
	c := &cobra.Command{
		Use: "purge", Short: "Remove the records of ended tasks",
		Long:    "Remove the records, bodies and results of ended tasks. Tasks that have not ended\nstay, and so do dead letters unless --state names their states. The removal is\nwritten to the audit log.",
		Example: "  balefire-node task purge --state success --before 7d --dry-run", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range f.states {
				if s, err := proto.ParseTaskState(name); err == nil && !s.Terminal() {
					return usage("--state %.20q: only ended tasks are removed", name)
				}
			}
			return w.purge(cmd, &f, dry)
		},
	}
	f.add(c, false)
	c.Flags().BoolVar(&dry, "dry-run", false, "only count")
	return c
}

func (w *app) purge(cmd *cobra.Command, f *queryFlags, dry bool) error {
	q, err := f.query(w.clock.Now())
	if err != nil {
		return err
	}
	if !dry {
		if err := w.confirm("purge"); err != nil {
			return err
		}
	}
	return do(cmd, w, func(ctx context.Context, c *client.Client) error {
		done, err := c.Purge(ctx, q, dry)
		if err != nil {
			return err
		}
		return w.show(view{value: done, human: func(p *printer) {
			did := "removed"
			if done.DryRun {
				did = "would remove"
			}
			p.line("%s %s", did, counted(done.Tasks, "task", "tasks"))
		}})
	})
}

// shortTask returns the part of a task's id that people read: the time and the first random
// digits.
func shortTask(id string) string { return id[:min(len(id), 18)] }

// truncate shortens text for a table.
func truncate(text string, n int) string {
	r := []rune(text)
	if len(r) <= n {
		return text
	}
	return string(r[:n-1]) + "…"
}

// parsePast parses a time in the past: an age or a time.
func parsePast(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	d, err := parseSpan(flag, text)
	if err != nil {
		return time.Time{}, usage("--%s %.40q: use 7d, 90m or 2006-01-02T15:04:05Z07:00", flag, text)
	}
	return now.Add(-time.Duration(d)), nil
}
