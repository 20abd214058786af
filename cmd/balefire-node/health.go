package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
)

func healthCommand(w *app) *cobra.Command {
	var ready bool
	c := &cobra.Command{
		Use: "health", Short: "Report by exit code whether the node is healthy",
		Long:    "For the health check of a container or a monitor: it prints nothing when the\nnode is healthy. Exit code 3: no node is running; 1: the node is unhealthy. A\nstarting node is healthy; with --ready it exits with 8 and prints the progress\nof the start.",
		Example: "  balefire-node health --ready", Args: cobra.NoArgs,
		RunE: onNode(w, func(ctx context.Context, c *client.Client, _ []string) error {
			if ready {
				return c.Ready(ctx)
			}
			return c.Healthy(ctx)
		}),
	}
	c.Flags().BoolVar(&ready, "ready", false, "check that the node accepts tasks, not only that it is healthy")
	return c
}
