package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
)

func whyCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "why TASK|MAIL|PEER|BOX|queue:NAME", Short: "Explain what a task, a mail, a peer, a queue or a box is waiting for",
		Long:    "Follow a task from the disk of this node to its handler, or a mail to its reader,\nand print the one thing that it is waiting for and what to do about it. BOX is a\nmailbox, agent:NAME or agent:NAME@NODE, topic:TOPIC, or topic:TOPIC/SUB.",
		Example: "  balefire-node why 01a1f84f\n  balefire-node why laptop\n  balefire-node why queue:build\n  balefire-node why agent:ceo", Args: exactly(1, "the id of a task or a mail, its beginning, the name of a peer, queue:NAME, or a box"), ValidArgsFunction: w.completeSubject,
		RunE: onNode(w, func(ctx context.Context, c *client.Client, args []string) error {
			b, err := c.Why(ctx, args[0])
			if _, _, box := strings.Cut(args[0], ":"); err != nil && box && isNoBox(err) {
				return &hintedError{err, "list what exists: balefire-node mailbox ls, topic ls, queue ls"}
			}
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
					p.line("next automatic retry within %s", formatDuration(b.Next.Sub(w.clock.Now())))
				}
			}})
		}),
	}
}
