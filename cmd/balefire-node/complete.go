package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
)

// completeTimeout bounds what somebody who pressed the tab key waits for.
const completeTimeout = time.Second

// completePeer offers the names of peers for the first argument.
func (w *world) completePeer(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	c, err := w.node()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	peers, err := c.Peers(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, p := range peers {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.State))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTask offers the ids of the last tasks.
func (w *world) completeTask(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	c, err := w.node()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	page, err := c.Tasks(ctx, node.Query{Limit: 20})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var ids []string
	for _, t := range page.Items {
		ids = append(ids, cobra.CompletionWithDesc(t.ID, t.Kind+" "+t.State))
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
