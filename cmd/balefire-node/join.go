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
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

func joinCommand(w *app) *cobra.Command {
	var name, code, file string
	var listen []string
	var lan bool
	c := &cobra.Command{
		Use: "join TICKET|-|--ticket-file FILE|--lan", Short: "Join a mesh with a ticket, or a mesh on the LAN",
		Long: `Present a ticket to the node that created it and become a member of its mesh.
This node must not be running, the other one must be. The node's key is created
if there is none. A ticket is a secret until it is used: with - it is read from
standard input without echo, with --ticket-file from a file. That keeps it out
of the shell history and the process list. Name and id of the node are data:
they are printed with --quiet, too.

With --lan no ticket is needed: this machine asks the members on the local
network, and a person accepts it on one of them (peers pending, peers accept),
which shows the same code as this machine. --code is the code of the member that
may accept it (see status -o wide there). Without --code you are asked to
confirm before a mesh is joined, because anyone on the network can answer. The
command waits until the machine is accepted; after --timeout the exit code is 6.`,
		Example: `  balefire-node join -
  balefire-node join --ticket-file ticket.txt
  balefire-node join --lan --code K7QM-2ZPA-77WD --name field-10 --timeout 10m`,
		Args: between(0, 1, "- to read a ticket from standard input, one ticket, or --lan"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case lan && len(args) > 0:
				return usage("--lan and a ticket: use one of them")
			case lan:
				if !cmd.Flags().Changed("timeout") {
					w.flags.timeout = 0 // a person decides on the other side
				}
				return w.join(cmd, listen, "waiting to be accepted", func(ctx context.Context, j pairing.Joiner) (pairing.Joined, error) {
					return j.OnLAN(ctx, pairing.LANOptions{
						Name: name, Code: code, Progress: func(text string) { w.infof("%s", sanitize(text)) },
						Agree: func(code, mesh string) error {
							return w.confirm(fmt.Sprintf("join mesh %s of the member with the code %s", mesh, code))
						},
					})
				})
			case file != "" && len(args) > 0:
				return usage("--ticket-file and a ticket: use one of them")
			case file == "" && len(args) == 0:
				return usage("no ticket: use - to read it from standard input, --ticket-file FILE, or --lan to join without one")
			}
			ticket, err := w.ticketFrom(cmd.Context(), file, args)
			if err != nil {
				return err
			}
			return w.join(cmd, listen, "asking the inviter", func(ctx context.Context, j pairing.Joiner) (pairing.Joined, error) {
				joined, err := j.WithTicket(ctx, ticket, name)
				if err != nil {
					err = joinHint(err)
				}
				return joined, err
			})
		},
	}
	c.Flags().StringVar(&name, "name", "", "name of this node in the mesh; the inviter may have set another (default: the machine's)")
	c.Flags().StringVar(&file, "ticket-file", "", "read the ticket from this file")
	c.Flags().BoolVar(&lan, "lan", false, "ask the members on the local network, without a ticket")
	c.Flags().StringVar(&code, "code", "", "with --lan: code of the member that may accept this machine (default: ask)")
	addListen(c, &listen)
	return c
}

// join makes this stopped node a member by means of request.
func (w *app) join(cmd *cobra.Command, listen []string, doing string, ask func(context.Context, pairing.Joiner) (pairing.Joined, error)) (err error) {
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
			return // it already is a node, or had a folder
		}
		_ = os.Remove(p.File)
		if missing != nil && filepath.Dir(p.File) == p.Dir {
			_ = os.Remove(p.Dir) // only if it is empty
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
	j, err := ask(ctx, node.Joiner(cfg))
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

// joinHint adds a hint to an error that only states that no member answered.
func joinHint(err error) error {
	if isAny(err, wire.ErrInvalid, wire.ErrRefused, pairing.ErrPaired, store.ErrLocked, context.Canceled) {
		return err
	}
	return &codedError{exitError, fmt.Errorf("%w\nthe node that created the ticket must be running, and this machine must be able to reach one of its addresses", err)}
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

// ticket returns the argument, or reads the ticket from standard input if it is -.
func (w *app) ticket(ctx context.Context, arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	if w.inTTY {
		w.infof("paste the ticket (it is not shown):")
	}
	in, err := w.readHidden(ctx)
	if err != nil {
		return "", fmt.Errorf("read the ticket: %w", err)
	}
	return readTicket(in, "standard input")
}

// readTicket reads the first line of r. where names r in errors.
func readTicket(r io.Reader, where string) (string, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if errors.Is(err, context.Canceled) {
		return "", err
	}
	if line = strings.TrimSpace(line); line == "" {
		return "", usage("%s contains no ticket: %w", where, orEOF(err))
	}
	return line, nil
}

func orEOF(err error) error {
	if err == nil {
		return fmt.Errorf("the first line is empty")
	}
	return err
}
