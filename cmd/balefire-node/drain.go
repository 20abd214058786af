package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func drainCommand(w *app) *cobra.Command {
	var off, wait bool
	c := &cobra.Command{
		Use: "drain", Short: "Have this node be given nothing new, and hand over its queues",
		Long: `Have this node be given no new work of shared queues, before it is switched off or
its lid is closed: what it has not started goes back, and the queues whose home it
is go to the best nodes that are there. What runs here goes on. With --wait it ends
when nothing of that is left to do; asked again it tells how far it is. With --off
the node takes work again, as it does after a start.`,
		Example: "  balefire-node drain\n  balefire-node drain --wait --timeout 10s\n  balefire-node drain --off", Args: cobra.NoArgs,
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if off && wait {
				return usage("--wait with --off: there is nothing to wait for")
			}
			d, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (node.Drained, error) { return c.Drain(ctx, !off) })
			if err == nil && wait {
				d, err = w.waitDrained(cmd, d)
			}
			if err != nil {
				return err
			}
			return w.show(view{value: d, human: func(p *printer) { printDrained(p, d) }})
		},
	}
	c.Flags().BoolVar(&off, "off", false, "take work again")
	c.Flags().BoolVar(&wait, "wait", false, "end when nothing runs here and nothing is on its way to another home")
	return c
}

// waitDrained waits until a node that drains has nothing left to do.
func (w *app) waitDrained(cmd *cobra.Command, d node.Drained) (node.Drained, error) {
	c, err := w.node()
	if err != nil {
		return d, err
	}
	err = w.waitUntil(cmd.Context(), c, "the node to be drained", func(ctx context.Context, c *client.Client) (bool, string, error) {
		next, err := c.Drain(ctx, true)
		if err == nil {
			d = next
		}
		return err == nil && d.Running+d.Going+len(d.Kept) == 0, drainSummary(d), err
	})
	return d, err
}

func drainSummary(d node.Drained) string {
	word := fmt.Sprintf("%d handlers at work, %d tasks and queues on their way to another home", d.Running, d.Going)
	if len(d.Kept) > 0 {
		word += ", nobody there to take over " + strings.Join(d.Kept, ", ")
	}
	return word
}

func printDrained(p *printer, d node.Drained) {
	if !d.On {
		p.line("this node takes work again")
		return
	}
	p.line("this node is given nothing new: %s", drainSummary(d))
}

func stopCommand(w *app) *cobra.Command {
	var handoff bool
	c := &cobra.Command{
		Use: "stop", Short: "Stop the node of this machine, with --handoff after it has handed over its queues",
		Long: `Stop the node that runs here as SIGTERM does, and wait until it has stopped: running
handlers have the time of limits.graceful_timeout, leases go back at once, and no
attempt is spent. With --handoff it first hands over the homes of its queues with
all tasks in them, within --timeout (default 30s); when nobody is there to take one
over it does not stop, and says so. Without it its queues wait until it is back.

A service manager that restarts whatever has ended starts it again.`,
		Example: "  balefire-node stop\n  balefire-node stop --handoff --timeout 1m", Args: cobra.NoArgs,
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := w.node()
			if err != nil {
				return err
			}
			before, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			end := w.showWaiting("stopping")
			defer end()
			if err := c.Stop(cmd.Context(), handoff, w.flags.timeout); err != nil {
				return err
			}
			return w.waitStopped(cmd.Context(), c, before.Started)
		},
	}
	c.Flags().BoolVar(&handoff, "handoff", false, "first hand over the homes of its queues")
	return c
}

// waitStopped waits until the node that was started then is gone.
func (w *app) waitStopped(ctx context.Context, c *client.Client, started time.Time) error {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		s, err := c.Status(ctx)
		if errors.Is(err, client.ErrNodeDown) || err == nil && !s.Started.Equal(started) {
			w.infof("the node has stopped")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of the node: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
