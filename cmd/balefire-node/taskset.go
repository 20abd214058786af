package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func taskSet(w *app) *cobra.Command {
	var class, queue string
	c := &cobra.Command{
		Use: "set ID --class CLASS | --queue QUEUE", Short: "Change a task that waits in a shared queue",
		Long: `Change a task that waits in a shared queue.

--class gives it another class, at once. It is done on the home of the queue.

--queue puts it into another queue, where the task was made: what its origin signed
for the one queue it signs anew for the other, so the task ends as CANCELLED and a
new one repeats it. One that runs is stopped first; one that ends otherwise
meanwhile stays as it is.`,
		Example: "  balefire-node task set 01a1f84f --class critical\n  balefire-node task set 01a1f84f --queue night", Args: oneTask, ValidArgsFunction: w.completeLive,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case class == "" && queue == "":
				return usage("nothing to set: give --class or --queue")
			case class != "":
				t, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.Task, error) { return c.SetClass(ctx, args[0], class) })
				if err != nil {
					return err
				}
				return w.show(view{value: t, human: func(p *printer) { p.line("task %s has class %s", t.ID, t.Class) }})
			}
			s, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.Submitted, error) {
				return c.MoveTask(ctx, args[0], queue)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) {
				p.line("%s goes on as %s in queue %s", shortTask(args[0]), s.ID, queue)
			}})
		},
	}
	c.Flags().StringVar(&class, "class", "", "critical, high, normal or low")
	c.Flags().StringVar(&queue, "queue", "", "name of the other queue")
	c.MarkFlagsMutuallyExclusive("class", "queue")
	completeWords(c, "class", "critical", "high", "normal", "low")
	return c
}

func taskProgress(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "progress [ID]", Short: "Say, from a handler, that its task makes progress",
		Long: `Say that the handler of a task of a shared queue makes progress. A program that a
handler runs calls it without an id: its own stands in BALEFIRE_TASK_ID. From the
first time on it must be called again within five minutes: a handler that shows no
progress for so long is stopped, and its task is given to another node.`,
		Example: "  balefire-node task progress", Args: between(0, 1, "at most one task id"), ValidArgsFunction: w.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			id := w.env("BALEFIRE_TASK_ID")
			if len(args) > 0 {
				id = args[0]
			}
			if id == "" {
				return usage("no task: name one, or call it from a program that a handler runs")
			}
			return do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.Progress(ctx, id) })
		},
	}
}
