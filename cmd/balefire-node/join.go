package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/store"
)

func joinCommand(w *world) *cobra.Command {
	var name string
	var listen []string
	c := &cobra.Command{
		Use: "join TICKET|-", Short: "Join the mesh that a ticket invites to",
		Long: `Show a ticket to the node that made it and become a member of its mesh. This
node must not be running, the other one must be. The node's key is made when
there is none. A ticket given as - is read from standard input, so that it does
not stay in the shell's history.`,
		Example: `  balefire-node join BALE1AEBAGBAFAYDQQCIKBMGA2DQ…
  balefire-node join - < ticket.txt`,
		Args: exactly(1, "one ticket, or - to read it from standard input"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ticket, err := w.ticket(args[0])
			if err != nil {
				return err
			}
			p, err := w.places()
			if err != nil {
				return err
			}
			if _, err := writeConfig(p.File, listen); err != nil {
				return err
			}
			l, p, err := w.config()
			if err != nil {
				return err
			}
			ctx, cancel := w.within(cmd.Context())
			defer cancel()
			cfg := l.Node(p.Dir)
			cfg.Version, cfg.Logger = version, w.quietLogger()
			stop := w.patience("asking the inviter")
			j, err := node.Join(ctx, cfg, ticket, name)
			stop()
			if err != nil {
				return notJoined(err)
			}
			return w.show(view{value: j, human: func(out *paper) {
				out.line("%s is a member of mesh %s, invited by %s", j.Name, j.Mesh, j.Inviter)
				out.line("next: balefire-node run")
			}})
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of this node in the mesh; the inviter may have fixed another (default: the machine's)")
	addListen(c, &listen)
	return c
}

// notJoined adds what to do to an error that only says that nobody answered.
func notJoined(err error) error {
	if isAny(err, node.ErrInvalid, node.ErrRefused, node.ErrPaired, store.ErrLocked, context.Canceled) {
		return err
	}
	return &codedError{exitError, fmt.Errorf("%w\nthe node that made the ticket must be running, and this machine must reach one of its addresses", err)}
}

// ticket reads a ticket from standard input where it is given as -.
func (w *world) ticket(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	line, err := bufio.NewReader(w.in).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		return "", usage("standard input holds no ticket: %w", orEOF(err))
	}
	return line, nil
}

func orEOF(err error) error {
	if err == nil {
		return fmt.Errorf("the first line is empty")
	}
	return err
}
