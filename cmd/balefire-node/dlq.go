package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

func dlqCommand(w *app) *cobra.Command {
	return group("dlq", "List, retry and remove dead letters",
		"Dead letters are tasks that are not retried automatically. Each has its reason,\nits attempts and the last error output of its program. With --mailbox they are the\nmails of a mailbox or a subscription that could not be handled.",
		dlqList(w), dlqShow(w), dlqRetry(w), dlqPurge(w), dlqExport(w))
}

func dlqList(w *app) *cobra.Command {
	var f queryFlags
	var box string
	c := &cobra.Command{
		Use: "ls", Short: "List the dead letters, newest first",
		Long:    "List the dead letters, newest first; with --mailbox those of a mailbox or a\nsubscription, oldest first.",
		Example: "  balefire-node dlq ls --peer laptop\n  balefire-node dlq ls --mailbox ceo", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if box != "" {
				return w.deadMail(cmd, &f, box)
			}
			page, err := w.deadLetters(cmd.Context(), &f)
			if err != nil {
				return err
			}
			return w.show(tasksView(w, page))
		},
	}
	f.add(c, true)
	w.addMailbox(c, &box)
	return c
}

func (w *app) deadLetters(ctx context.Context, f *queryFlags) (wire.Page[wire.Task], error) {
	q, err := f.query(w.clock.Now())
	if err != nil {
		return wire.Page[wire.Task]{}, err
	}
	c, err := w.node()
	if err != nil {
		return wire.Page[wire.Task]{}, err
	}
	return f.pages(ctx, w, q, c.DeadLetters)
}

func dlqShow(w *app) *cobra.Command {
	c := taskShow(w)
	c.ValidArgsFunction = w.completeDead
	c.Short, c.Example = "Show a dead letter with its history", "  balefire-node dlq show 01a1f84f"
	return c
}

func dlqRetry(w *app) *cobra.Command {
	var f queryFlags
	var mails redriveFlags
	r := wire.Redrive{}
	c := &cobra.Command{
		Use: "retry [ID...]", Short: "Submit dead letters again, as new tasks",
		Long: `Submit dead letters again: those with these ids or those that the flags select, at
most 1000 at once. Each becomes a new task that refers to the one it repeats.

With --mailbox the dead letters of a mailbox or a subscription are sent again as
new mails: those with these numbers, or all that were not sent again yet.`,
		Example: `  balefire-node dlq retry 01a1f84f
  balefire-node dlq retry --peer laptop --since 1h --dry-run
  balefire-node dlq retry --mailbox ceo --rate 10`, Args: taskIDs(0, 1000), ValidArgsFunction: w.completeDead,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case mails.box != "":
				return mails.retry(cmd, w, args)
			case cmd.Flags().Changed("to") || cmd.Flags().Changed("rate"):
				return usage("--to and --rate are for the dead letters of a mailbox: add --mailbox BOX")
			}
			q, err := f.query(w.clock.Now())
			if err != nil {
				return err
			}
			r.IDs, r.Query = args, q
			switch filtered := r.All || f.chosen(cmd); {
			case len(args) > 0 && filtered:
				return usage("give either ids or flags that select dead letters, not both")
			case len(args) == 0 && !filtered:
				return usage("no dead letters selected: give ids, flags that select some, or --all")
			}
			return do(cmd, w, func(ctx context.Context, c *client.Client) error {
				done, err := c.RetryDead(ctx, r)
				if err != nil {
					return err
				}
				return w.printRedriven(done)
			})
		},
	}
	f.add(c, false)
	mails.add(w, c)
	c.Flags().BoolVar(&r.All, "all", false, "all of them")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "only print what would be done")
	return c
}

func (w *app) printRedriven(done wire.Redriven) error {
	err := w.show(view{value: done, lines: lines(done.Items), human: func(p *printer) {
		t := newTable(col("DEAD LETTER"), col("REPEATED BY"), col("PROBLEM"))
		for _, i := range done.Items {
			row := []any{i.ID, "", ""}
			switch {
			case i.Task != nil:
				row[1] = i.Task.ID
			case done.DryRun && i.Problem == nil:
				row[1] = "a new task"
			}
			if i.Problem != nil {
				row[2] = prose.Plain(i.Problem.Detail)
			}
			t.row(row...)
		}
		p.table(t)
	}})
	if done.More {
		w.infof("there are more than one request can take: run the command again")
	}
	if done.DryRun {
		w.infof("%d would be repeated; nothing was done", len(done.Items)-done.Failed)
	}
	if err == nil && done.Failed > 0 {
		err = fmt.Errorf("%d of %d were not repeated", done.Failed, len(done.Items))
		if done.DryRun {
			err = fmt.Errorf("%d of %d cannot be repeated", done.Failed, len(done.Items))
		}
	}
	return err
}

func dlqPurge(w *app) *cobra.Command {
	var f queryFlags
	var dry bool
	c := &cobra.Command{
		Use: "purge", Short: "Remove dead letters",
		Long:    "Remove the dead letters that the flags select. The removal is written to the\naudit log.",
		Example: "  balefire-node dlq purge --before 30d --dry-run", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.states) == 0 {
				f.states = deadStates
			}
			for _, s := range f.states {
				if !slices.Contains(deadStates, strings.ToUpper(s)) {
					return usage("--state %.20q: the states of dead letters are %s", s, strings.Join(deadStates, ", "))
				}
			}
			return w.purge(cmd, &f, dry)
		},
	}
	f.add(c, false)
	c.Flags().BoolVar(&dry, "dry-run", false, "only count")
	return c
}

// deadStates are the states of dead letters.
var deadStates = []string{"FAILED", "TIMEOUT", "DEAD_LETTER", "EXPIRED"}

func dlqExport(w *app) *cobra.Command {
	var f queryFlags
	var out string
	c := &cobra.Command{
		Use: "export", Short: "Write dead letters as JSON lines",
		Long:    "Write the dead letters that the flags select as JSON lines to standard output or\nto a file. They are not removed.",
		Example: "  balefire-node dlq export --out dead.jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			f.all, f.sort, f.reverse = true, sortAge, true
			page, err := w.deadLetters(cmd.Context(), &f)
			if err != nil {
				return err
			}
			dst := w.out
			if out != "" {
				file, err := createNew(out)
				if err != nil {
					return fmt.Errorf("export: %w", err)
				}
				defer func() { err = errors.Join(err, file.Close()) }()
				dst = io.Writer(file)
			}
			for _, t := range page.Items {
				if err := writeJSON(dst, t, ""); err != nil {
					return fmt.Errorf("export: %w", err)
				}
			}
			w.infof("%s", counted(len(page.Items), "dead letter", "dead letters"))
			return nil
		},
	}
	f.add(c, false)
	c.Flags().StringVar(&out, "out", "", "new file to write to")
	return c
}
