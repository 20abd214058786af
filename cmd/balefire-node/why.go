package main

import (
	"github.com/spf13/cobra"

	"github.com/balefire/balefire/cmd/balefire-node/prose"
)

func whyCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "why TASK|PEER|queue:NAME", Short: "Explain what a task, a peer or a queue is waiting for",
		Long:    "Follow a task from the disk of this node to its handler, and print the one thing\nthat it is waiting for and what to do about it.",
		Example: "  balefire-node why 01a1f84f\n  balefire-node why laptop\n  balefire-node why queue:build", Args: exactly(1, "the id of a task, its beginning, the name of a peer, or queue:NAME"), ValidArgsFunction: w.completeSubject,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			b, err := c.Why(ctx, args[0])
			if err != nil {
				return err
			}
			return w.show(view{value: b, human: func(p *printer) {
				p.line("%s  %s", b.Subject, b.State)
				for _, s := range b.Steps {
					p.line("  %s", prose.Text(s))
				}
				p.line("because  %s", prose.Text(b.Cause))
				if fix := prose.Fix(b.Cause); fix != "" {
					p.line("to do    %s", fix)
				}
				if b.Next != nil {
					p.line("next automatic retry in %s", formatDuration(b.Next.Sub(w.clock.Now())))
				}
			}})
		},
	}
}
