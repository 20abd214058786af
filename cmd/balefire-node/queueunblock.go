package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func queueUnblock(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "unblock QUEUE KEY", Short: "Unblock the tasks of one ordering key after a dead task",
		Long: `Unblock the tasks of one ordering key that are blocked because the task before
them died and its on_dead is block. queue show lists such keys. Run this on the
home of the queue.`,
		Example: "  balefire-node queue unblock build repo-7", Args: exactly(2, "the name of a queue and an ordering key"), ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeQueue(cmd, args[0], "the tasks of "+sanitize(args[1])+" unblocked", func(c *client.Client, ctx context.Context, name string) (wire.Queue, error) {
				return c.UnblockLane(ctx, name, args[1])
			})
		},
	}
}
