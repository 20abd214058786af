package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func drainCommand(w *app) *cobra.Command {
	var off, wait bool
	c := &cobra.Command{
		Use: "drain", Short: "Accept no new tasks of shared queues and hand over the queues of this node",
		Long: `Stop granting tasks of shared queues to this node, before it is switched off or
suspended: tasks that it has not started are released, and the queues whose home
it is are handed over to the best connected nodes. Running tasks continue. With
--wait the command waits until no handler runs and everything is handed over; run
it again to see the progress. With --off the node accepts tasks again, as it does
after a restart.`,
		Example: "  balefire-node drain\n  balefire-node drain --wait --timeout 10s\n  balefire-node drain --off", Args: cobra.NoArgs,
		Annotations: map[string]string{annotationWaits: "yes"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if off && wait {
				return usage("--wait with --off: nothing to wait for")
			}
			d, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Drained, error) { return c.Drain(ctx, !off) })
			if err == nil && wait {
				d, err = w.waitDrained(cmd, d)
			}
			if err != nil {
				return err
			}
			return w.show(view{value: d, human: func(p *printer) { printDrained(p, d) }})
		},
	}
	c.Flags().BoolVar(&off, "off", false, "accept tasks again")
	c.Flags().BoolVar(&wait, "wait", false, "wait until no handler runs and everything is handed over")
	return c
}

// waitDrained waits until a draining node has nothing left to do.
func (w *app) waitDrained(cmd *cobra.Command, d wire.Drained) (wire.Drained, error) {
	c, err := w.node()
	if err != nil {
		return d, err
	}
	err = w.waitUntil(cmd.Context(), c, "the node to drain", func(ctx context.Context, c *client.Client) (bool, string, error) {
		next, err := c.Drain(ctx, true)
		if err == nil {
			d = next
		}
		return err == nil && d.Running+d.Going+len(d.Kept) == 0, drainSummary(d), err
	})
	return d, err
}

func drainSummary(d wire.Drained) string {
	word := counted(d.Running, "handler", "handlers") + " running, " + counted(d.Going, "task or queue", "tasks and queues") + " being handed over"
	if len(d.Kept) > 0 {
		word += ", no node available to take over " + strings.Join(d.Kept, ", ")
	}
	return word
}

func printDrained(p *printer, d wire.Drained) {
	if !d.On {
		p.line("this node accepts tasks again")
		return
	}
	p.line("this node is draining: %s", drainSummary(d))
}

func stopCommand(w *app) *cobra.Command {
	var handoff bool
	c := &cobra.Command{
		Use: "stop", Short: "Stop the node of this machine, with --handoff after handing over its queues",
		Long: `Stop the running node like SIGTERM does, and wait until it has stopped: running
handlers have limits.graceful_timeout to finish, leases are released, and no
attempt is spent. With --handoff it first hands over its queues with all their
tasks, within --timeout (default 30s); if no node can take over a queue, it
reports that and does not stop. Without --handoff its queues wait until it is
back.

A service manager with a restart policy may start it again.`,
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
	c.Flags().BoolVar(&handoff, "handoff", false, "first hand over the queues whose home it is")
	return c
}

// waitStopped waits until the node with that boot is gone.
func (w *app) waitStopped(ctx context.Context, c *client.Client, started time.Time) error {
	ctx, cancel := w.withTimeout(ctx)
	defer cancel()
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
			return fmt.Errorf("wait until the node has stopped: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
