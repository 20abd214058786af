package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/wire"
)

func handlerCommand(w *app) *cobra.Command {
	return group("handler", "Manage what this machine does for others",
		"A handler defines what this node does for a kind of task and which peers may ask\nfor it. Peers that are not allowed by name or role are refused.",
		handlerAdd(w), handlerList(w), handlerRemove(w))
}

func handlerAdd(w *app) *cobra.Command {
	var s wire.HandlerSpec
	c := &cobra.Command{
		Use: "add KIND --allow PEER|role:ROLE [--exec PROGRAM | -- PROGRAM ARG...]", Short: "Add or replace a handler",
		Long: `Add a handler to the running node; it persists across restarts. The program is
started without a shell, with exactly the arguments given here. The task's body
is its standard input, its standard output is the result. Exit code 0 is
success, 75 asks for a retry, 65 is a permanent failure.

With --args the sender's arguments are appended. Arguments that begin with - are
refused without --allow-flags: a flag can make a harmless program run another
one. A program that writes more than --max-output is stopped and fails
permanently; with --on-overflow cut the result is truncated instead. A handler
with the profile dangerous must be listed under dangerous in this node's own
configuration file.`,
		Example: `  balefire-node handler add uname --allow laptop -- uname
  balefire-node handler add ingest --allow role:work --exec /usr/local/bin/ingest --run-timeout 1h
  balefire-node handler add ping --type echo --allow role:work`,
		Args: between(1, -1, "a kind, and after -- the program with its arguments"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				s.Exec, args = append(s.Exec, args[dash:]...), args[:dash]
			}
			if len(args) != 1 {
				return usage("handler add takes one kind; the program follows --")
			}
			s.Kind = args[0]
			if len(s.Exec) > 1 && slices.Contains(s.Exec[1:], "{body}") && s.Body != "file" {
				w.infof("! the program gets {body} as it is: it becomes the path of the body with --body file alone")
			}
			if cmd.Flags().Changed("timeout") {
				w.infof("! --timeout bounds this command: the limit of one run is --run-timeout")
			}
			return w.addHandler(cmd, s)
		},
	}
	addHandlerFlags(c, &s)
	return c
}

func (w *app) addHandler(cmd *cobra.Command, s wire.HandlerSpec) error {
	if len(s.Allow) == 0 {
		return usage("nobody may use it: give --allow PEER or --allow role:ROLE")
	}
	if err := executor.Validate(s); err != nil {
		return usage("%w", err)
	}
	return do(cmd, w, func(ctx context.Context, c *client.Client) error {
		if err := c.AddHandler(ctx, s); err != nil {
			return err
		}
		w.infof("handler %s added for %s", s.Kind, strings.Join(s.Allow, ", "))
		hs, _ := c.Handlers(ctx) // the handler was added even if this request fails
		for _, h := range hs {
			switch {
			case h.Kind != s.Kind:
				continue
			case h.Problem != nil: // the program may be installed later
				w.infof("but its tasks cannot be started yet: %s", prose.Line(*h.Problem))
			}
			for _, n := range h.Warnings {
				w.infof("! %s", prose.Line(n))
			}
		}
		return nil
	})
}

func addHandlerFlags(c *cobra.Command, s *wire.HandlerSpec) {
	f := c.Flags()
	f.StringArrayVar(&s.Exec, "exec", nil, "program, then one argument each (repeatable)")
	f.StringSliceVar(&s.Allow, "allow", nil, "who may use it: PEER, peer:ID or role:ROLE (repeatable)")
	f.StringVar(&s.Type, "type", "", strings.Join(executor.Types(), ", ")+" (default command)")
	f.BoolVar(&s.Args, "args", false, "append the sender's arguments; one that begins with - is refused")
	f.BoolVar(&s.AllowFlags, "allow-flags", false, "with --args: also accept arguments that begin with -")
	f.StringVar(&s.Body, "body", "", "how the program gets the body: stdin or file (default stdin)")
	f.StringVar(&s.Profile, "profile", "", "read-only, dev-write or dangerous (default dev-write)")
	f.Var(limitValue{&s.Timeout}, "run-timeout", "limit of one run, like 90s or 1d, 0 for none (default 10m)")
	f.Var(natural(&s.Concurrency), "concurrency", "runs at the same time (default the node's slots)")
	f.Var(natural(&s.MaxAttempts), "max-attempts", "runs before a task becomes a dead letter; 0: the default, 3")
	f.Var(natural(&s.MaxRetries), "max-retries", "most attempts that a sender may ask for with --retries (default: --max-attempts)")
	f.StringVar(&s.Lanes, "lanes", "", "which tasks with the same --order-key run in order: origin (those of each origin) or shared (those of all origins) (default origin)")
	f.StringVar(&s.OnCrash, "on-crash", "", "after the node crashed during a run: retry, probe or park (default park)")
	f.Var(sizeValue{&s.MaxBody}, "max-body", "largest body, like 64MiB (default the node's limit)")
	f.Var(sizeValue{&s.MaxOutput}, "max-output", "output that a run may write, like 64MiB (default 10MiB)")
	f.StringVar(&s.OnOverflow, "on-overflow", "", "when a run writes more than that: fail or cut (default fail)")
	f.Var(envValue{&s.Env}, "env", "NAMEs of environment variables that the node passes to the program, comma-separated, or NAME=VALUE (repeatable)")
	f.StringVar(&s.RunAs, "run-as", "", "USER or USER:GROUP that the program runs as; it must not be able to read the node's keys (default the node's user)")
	f.StringVar(&s.Dir, "work-dir", "", "folder to run in (default a new one for each run)")
}

func handlerList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the handlers",
		Example: "  balefire-node handler ls", Args: cobra.NoArgs,
		RunE: onNode(w, func(ctx context.Context, c *client.Client, _ []string) error {
			hs, err := c.Handlers(ctx)
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Handler]{Items: hs}, lines: lines(hs), human: func(p *printer) {
				t := newTable(col("KIND"), col("TYPE"), col("ALLOW"), num("RUNNING"), num("WAITING"), col("ON CRASH"), col("EXEC"), wideOnly("PROFILE"), wideOnly("TIMEOUT"), wideOnly("ATTEMPTS"))
				for _, h := range hs {
					t.row(h.Kind, h.Type, strings.Join(h.Allow, ","), h.Running, h.Waiting, h.OnCrash, strings.Join(h.Exec, " "), h.Profile, h.Timeout, h.MaxAttempts)
				}
				p.table(t)
				for _, h := range hs {
					if h.Problem != nil {
						p.line("! the tasks of %s cannot be started: %s", h.Kind, prose.Line(*h.Problem))
					}
				}
			}})
		}),
	}
}

func handlerRemove(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "rm KIND", Short: "Remove a handler",
		Long:    "Remove a handler that was added with handler add. Its waiting tasks stay until the\nhandler is added again or they expire.",
		Example: "  balefire-node handler rm uname", Args: exactly(1, "the kind of a handler"), ValidArgsFunction: w.completeKind,
		RunE: onNode(w, func(ctx context.Context, c *client.Client, args []string) error {
			if err := c.RemoveHandler(ctx, args[0]); err != nil {
				return err
			}
			w.infof("handler %s removed", args[0])
			return nil
		}),
	}
}
