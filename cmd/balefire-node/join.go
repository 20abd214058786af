package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/store"
)

func joinCommand(w *app) *cobra.Command {
	var name, code, file string
	var listen []string
	var lan bool
	c := &cobra.Command{
		Use: "join TICKET|-|--ticket-file FILE|--lan", Short: "Join the mesh that a ticket invites to, or one on the LAN",
		Long: `Show a ticket to the node that made it and become a member of its mesh. This
node must not be running, the other one must be. The node's key is made when
there is none. A ticket is a secret until it is used: given as - it is read from
standard input, where a terminal does not show it, and with --ticket-file from a
file. So it stays in no history, and no other user sees it among the processes.

With --lan no ticket is needed: the members on the local network are asked, and a
person accepts this machine on one of them (peers pending, peers accept), where
the same code is shown as here. --code names the member that may let it in
(status -o wide shows it there); without it you are asked before a mesh is joined,
for whoever is on the network may answer. It waits until it is let in, or ends
with 6 when --timeout is over.`,
		Example: `  balefire-node join -
  balefire-node join --ticket-file ticket.txt
  balefire-node join --lan --code K7QM-2ZPA-77WD --name field-10 --timeout 10m`,
		Args: between(0, 1, "- to read a ticket from standard input, one ticket, or --lan"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case lan && len(args) > 0:
				return usage("--lan takes no ticket: choose one of them")
			case lan:
				if !cmd.Flags().Changed("timeout") {
					w.flags.timeout = 0 // a person decides on the other side
				}
				return w.join(cmd, listen, "waiting to be let in", func(ctx context.Context, cfg node.Config) (node.Joined, error) {
					return node.JoinLAN(ctx, cfg, node.LANOptions{
						Name: name, Code: code, Progress: func(text string) { w.infof("%s", sanitize(text)) },
						Agree: func(code, mesh string) error {
							return w.confirm(fmt.Sprintf("join mesh %s of the member with the code %s", mesh, code))
						},
					})
				})
			case file != "" && len(args) > 0:
				return usage("--ticket-file and a ticket: choose one of them")
			case file == "" && len(args) == 0:
				return usage("a ticket is missing: - to read it from standard input, --ticket-file FILE, or --lan without one")
			}
			ticket, err := w.ticketFrom(cmd.Context(), file, args)
			if err != nil {
				return err
			}
			return w.join(cmd, listen, "asking the inviter", func(ctx context.Context, cfg node.Config) (node.Joined, error) {
				j, err := node.Join(ctx, cfg, ticket, name)
				if err != nil {
					err = joinHint(err)
				}
				return j, err
			})
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of this node in the mesh; the other side may have fixed another (default: the machine's)")
	c.Flags().StringVar(&file, "ticket-file", "", "read the ticket from this file")
	c.Flags().BoolVar(&lan, "lan", false, "ask the members on the local network, without a ticket")
	c.Flags().StringVar(&code, "code", "", "with --lan: code of the member that may let this machine in (default: you are asked)")
	addListen(c, &listen)
	return c
}

// join makes this stopped node a member in the way that ask goes.
func (w *app) join(cmd *cobra.Command, listen []string, doing string, ask func(context.Context, node.Config) (node.Joined, error)) (err error) {
	p, err := w.locate()
	if err != nil {
		return err
	}
	_, missing := os.Lstat(p.Dir)
	wrote, err := writeConfig(p.File, listen)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || !wrote || exists(filepath.Join(p.Dir, "identity")) {
			return // it is a node, or was there before
		}
		_ = os.Remove(p.File)
		if missing != nil && filepath.Dir(p.File) == p.Dir {
			_ = os.Remove(p.Dir) // if nothing else is in it
		}
	}()
	l, p, err := w.config()
	if err != nil {
		return err
	}
	ctx, cancel := w.withTimeout(cmd.Context())
	defer cancel()
	cfg := l.Node(p.Dir)
	cfg.Version, cfg.Logger = version, w.quietLogger()
	stop := w.showWaiting(doing)
	j, err := ask(ctx, cfg)
	stop()
	if err != nil {
		return err
	}
	return w.show(view{value: j, human: func(out *printer) {
		if w.flags.quiet {
			out.line("%s", j.Name)
			return
		}
		out.line("%s is a member of mesh %s, invited by %s", j.Name, j.Mesh, j.Inviter)
		out.line("next: balefire-node run")
	}})
}

// joinHint adds what to do to an error that only says that nobody answered.
func joinHint(err error) error {
	if isAny(err, node.ErrInvalid, node.ErrRefused, node.ErrPaired, store.ErrLocked, context.Canceled) {
		return err
	}
	return &codedError{exitError, fmt.Errorf("%w\nthe node that made the ticket must be running, and this machine must reach one of its addresses", err)}
}

// ticketFrom reads a ticket from a file, or from the arguments.
func (w *app) ticketFrom(ctx context.Context, file string, args []string) (string, error) {
	if file == "" {
		return w.ticket(ctx, args[0])
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return readTicket(f, file)
}

// ticket reads a ticket from standard input where it is given as -.
func (w *app) ticket(ctx context.Context, arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	if w.inTTY {
		w.infof("paste the ticket, it is not shown:")
	}
	in, err := w.readHidden(ctx)
	if err != nil {
		return "", fmt.Errorf("read the ticket: %w", err)
	}
	return readTicket(in, "standard input")
}

// readTicket reads the first line of r, which is named where.
func readTicket(r io.Reader, where string) (string, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if errors.Is(err, context.Canceled) {
		return "", err
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", usage("%s holds no ticket: %w", where, orEOF(err))
	}
	return line, nil
}

func orEOF(err error) error {
	if err == nil {
		return fmt.Errorf("the first line is empty")
	}
	return err
}
