package main

import (
	"github.com/spf13/cobra"
)

func healthCommand(w *app) *cobra.Command {
	var ready bool
	c := &cobra.Command{
		Use: "health", Short: "Tell by the exit code whether the node is well",
		Long:    "For the health check of a container or a monitor: it prints nothing when the node\nis well. Exit code 3: no node is running; 1: it runs, but is not\nwell. A node that is starting is alive; --ready ends with 8 then and says how far it\nis.",
		Example: "  balefire-node health --ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			if ready {
				return c.Ready(ctx)
			}
			return c.Healthy(ctx)
		},
	}
	c.Flags().BoolVar(&ready, "ready", false, "is it ready for work, not only alive")
	return c
}
