package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func taskSet(w *app) *cobra.Command {
	var class, queue string
	c := &cobra.Command{
		Use: "set ID --class CLASS | --queue QUEUE", Short: "Change a task that waits in a shared queue",
		Long: `Change a task that waits in a shared queue.

--class changes its class at once. Run this on the home of the queue.

--queue moves it to another queue. Run this on the node that created the task: the
origin signs a new task for the other queue, and the old one ends as CANCELLED. A
running task is stopped first; one that ends before that is not changed.`,
		Example: "  balefire-node task set 01a1f84f --class critical\n  balefire-node task set 01a1f84f --queue night", Args: oneTask, ValidArgsFunction: w.completeLive,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case class == "" && queue == "":
				return usage("nothing to set: give --class or --queue")
			case class != "":
				t, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Task, error) { return c.SetClass(ctx, args[0], class) })
				if err != nil {
					return err
				}
				return w.show(view{value: t, human: func(p *printer) { p.line("task %s has class %s", t.ID, t.Class) }})
			}
			s, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Submitted, error) {
				return c.MoveTask(ctx, args[0], queue)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) {
				p.line("%s continues as %s in queue %s", shortTask(args[0]), s.ID, queue)
			}})
		},
	}
	c.Flags().StringVar(&class, "class", "", "critical, high, normal or low")
	c.Flags().StringVar(&queue, "queue", "", "name of the other queue")
	c.MarkFlagsMutuallyExclusive("class", "queue")
	oneOf(c, "class", "critical", "high", "normal", "low")
	return c
}

func taskProgress(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "progress [ID]", Short: "Report progress of a task from its handler",
		Long: `Report that the handler of a task of a shared queue makes progress. A program
that is run by a handler calls it without an id: the id is in BALEFIRE_TASK_ID.
After the first report it must report again within limits.stall_after of the node
(5 minutes): otherwise it is stopped and its task is granted to another node.`,
		Example: "  balefire-node task progress", Args: between(0, 1, "at most one task id"), ValidArgsFunction: w.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			id := w.env("BALEFIRE_TASK_ID")
			if len(args) > 0 {
				id = args[0]
			}
			if id == "" {
				return usage("no task: give its id, or run this in a program of a handler")
			}
			return do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.Progress(ctx, id) })
		},
	}
}
