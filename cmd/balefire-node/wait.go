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

func waitCommand(w *app) *cobra.Command {
	var what string
	c := &cobra.Command{
		Use: "wait --for ready|peer=NAME|task=ID", Short: "Wait for a condition",
		Long:        "Wait until the node is ready, a peer is connected, or a task has ended. The exit\ncode is 6 after --timeout. The node may be started later.",
		Example:     "  balefire-node wait --for ready --timeout 30s\n  balefire-node wait --for peer=laptop && balefire-node send laptop ping --wait",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			check, err := condition(what)
			if err != nil {
				return err
			}
			c, err := w.node()
			if err != nil {
				return err
			}
			return w.waitUntil(cmd.Context(), c, what, check)
		},
	}
	c.Flags().StringVar(&what, "for", "ready", "ready, peer=NAME or task=ID")
	return c
}

// A check reports whether the condition is met, and if not why. An error ends the wait.
type check func(ctx context.Context, c *client.Client) (done bool, why string, err error)

func condition(what string) (check, error) {
	kind, name, named := strings.Cut(what, "=")
	switch {
	case what == "ready":
		return func(ctx context.Context, c *client.Client) (bool, string, error) {
			err := c.Ready(ctx)
			return err == nil, fmt.Sprint(err), nil
		}, nil
	case kind == "peer" && named && name != "":
		return func(ctx context.Context, c *client.Client) (bool, string, error) {
			p, err := c.Peer(ctx, name)
			return p.State == "CONNECTED", fmt.Sprintf("%s is %s", name, p.State), err
		}, nil
	case kind == "task" && named && !taskRE.MatchString(name):
		return nil, usage("--for task=%.60q: that is not a task id: use an id from task ls, or the beginning of one", name)
	case kind == "task" && named:
		return func(ctx context.Context, c *client.Client) (bool, string, error) {
			t, err := c.Task(ctx, name)
			if err == nil && ended(t) && t.State != "SUCCESS" {
				err = &codedError{endCode(t), fmt.Errorf("task %s is %s: %s", t.ID, t.State, reasonOf(t))}
			}
			return ended(t), "it is " + t.State, err
		}, nil
	}
	return nil, usage("--for %.60q: it must be ready, peer=NAME or task=ID", what)
}

// waitUntil polls until the condition is met, and prints now and then why it is not.
func (w *app) waitUntil(ctx context.Context, c *client.Client, what string, is check) error {
	ctx, cancel := w.withTimeout(ctx)
	defer cancel()
	told, said := w.clock.Mono(), 0
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	why := "the node has not answered yet"
	for {
		done, reason, err := is(ctx, c)
		switch {
		case err == nil && done:
			return nil
		case ctx.Err() != nil: // interrupted during the request: the previous reason is better
		case isAny(err, client.ErrNodeDown, wire.ErrStarting):
			why = err.Error()
		case err != nil:
			return err
		default:
			why = reason
		}
		if now := w.clock.Mono(); now-told >= w.nextNotice(said) {
			w.infof("… waiting for %s: %s", what, sanitize(why))
			told, said = now, said+1
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return &codedError{exitTimeout, fmt.Errorf("wait for %s: timeout after %s: %s", what, w.flags.timeout, why)}
			}
			return fmt.Errorf("wait for %s: %s: %w", what, why, ctx.Err())
		case <-tick.C:
		}
	}
}
