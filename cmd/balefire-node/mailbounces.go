package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func mailBounces(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "bounces", Short: "List the mail that was not delivered and whose sender is not told",
		Long: `List the mail of this node that was not delivered and whose sender is not told,
because no mailbox takes the bounce: the events mail.bounced of this start that the
node still has, of the last 4096. With -o json each has the text of its bounce. All
other bounces are in the mailboxes of their senders.`,
		Example: "  balefire-node mail bounces\n  balefire-node mail bounces -o json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doMail(cmd, w, func(ctx context.Context, c *client.Client) error {
				e := watcher{w: w, client: c, kind: wire.EventMailBounced}
				return e.printPast(ctx)
			})
		},
	}
}
