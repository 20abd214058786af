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

// completeWish offers the codes of the machines that ask to be let in.
func (w *world) completeWish(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	c, err := w.node()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	wishes, err := c.Wishes(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var codes []string
	for _, v := range wishes {
		codes = append(codes, cobra.CompletionWithDesc(v.Code, v.Name))
	}
	return codes, cobra.ShellCompDirectiveNoFileComp
}

// completePeerFlag offers the names of peers for a flag.
func (w *world) completePeerFlag(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return w.completePeer(cmd, nil, begun)
}

// completeQueue offers the names of shared queues for the first argument.
func (w *world) completeQueue(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return w.completeQueueFlag(cmd, nil, begun)
}

// completeQueueFlag does so for a flag.
func (w *world) completeQueueFlag(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	names, err := w.queueNames(cmd.Context(), "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTarget offers the peers and the queues that a task may be sent to.
func (w *world) completeTarget(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	names, how := w.completePeer(cmd, args, begun)
	if len(args) > 0 || how == cobra.ShellCompDirectiveError {
		return names, how
	}
	queues, err := w.queueNames(cmd.Context(), "queue:")
	if err != nil {
		return names, how // an older node has none
	}
	return append(names, queues...), how
}

// queueNames returns the names of the queues, each behind a prefix.
func (w *world) queueNames(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	c, err := w.node()
	if err != nil {
		return nil, err
	}
	queues, err := c.Queues(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, q := range queues {
		names = append(names, cobra.CompletionWithDesc(prefix+q.Name, queueState(q)+" at "+q.Home))
	}
	return names, nil
}
