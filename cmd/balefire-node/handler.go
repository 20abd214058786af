package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
)

func handlerCommand(w *app) *cobra.Command {
	return group("handler", "Say what this machine does for others",
		"A handler is what this node does for a kind of task, and who may ask for it.\nNothing is done for anybody who is not allowed by name or role.",
		handlerAdd(w), handlerList(w), handlerRemove(w))
}

func handlerAdd(w *app) *cobra.Command {
	var s node.HandlerSpec
	c := &cobra.Command{
		Use: "add KIND --allow PEER|role:ROLE [--exec PROGRAM | -- PROGRAM ARG...]", Short: "Add a handler, or replace it",
		Long: `Add a handler to the running node; it stays over restarts. The program is started
without a shell, with its words as they are written here. The task's body is its
standard input, its standard output is the result; exit 0 is success, 75 asks to
be tried again, 65 says that no retry will help.

With --args the sender's arguments are appended, but none that begins with - unless
--allow-flags says so: a flag can make a harmless program run another one.
A program that writes more than --max-output is stopped and fails for good, unless
--on-overflow cut says that the beginning is enough. A handler of the profile
dangerous must be named under dangerous in this node's own configuration file.`,
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
			if cmd.Flags().Changed("timeout") {
				w.infof("! --timeout is how long this command waits: the limit of one run is --run-timeout")
			}
			return w.addHandler(cmd, s)
		},
	}
	addHandlerFlags(c, &s)
	return c
}

func (w *app) addHandler(cmd *cobra.Command, s node.HandlerSpec) error {
	if err := s.Validate(); err != nil {
		return usage("%w", err)
	}
	ctx, cancel := w.withTimeout(cmd.Context())
	defer cancel()
	c, err := w.node()
	if err != nil {
		return err
	}
	if err := c.AddHandler(ctx, s); err != nil {
		return err
	}
	w.infof("handler %s is there for %s", s.Kind, strings.Join(s.Allow, ", "))
	hs, _ := c.Handlers(ctx) // it is there whether or not this can be asked
	for _, h := range hs {
		switch {
		case h.Kind != s.Kind:
			continue
		case h.Problem != "": // it may be installed later
			w.infof("but no task of it can be started yet: %s", h.Problem)
		}
		if h.Warning != "" {
			w.infof("! %s", h.Warning)
		}
	}
	return nil
}

func addHandlerFlags(c *cobra.Command, s *node.HandlerSpec) {
	f := c.Flags()
	f.StringArrayVar(&s.Exec, "exec", nil, "program, then one word of its arguments each (repeatable)")
	f.StringSliceVar(&s.Allow, "allow", nil, "who may ask for it: PEER, peer:ID or role:ROLE (repeatable)")
	f.StringVar(&s.Type, "type", "", "command, or built in: discard, echo, sha256 (default command)")
	f.BoolVar(&s.Args, "args", false, "append the sender's arguments; one that begins with - is refused")
	f.BoolVar(&s.AllowFlags, "allow-flags", false, "with --args: take also arguments that begin with -")
	f.StringVar(&s.Body, "body", "", "how the program gets the body: stdin or file (default stdin)")
	f.StringVar(&s.Profile, "profile", "", "read-only, dev-write or dangerous (default dev-write)")
	f.Var(limitValue{&s.Timeout}, "run-timeout", "limit of one run, as 90s or 1d, 0 for none (default 10m)")
	f.IntVar(&s.Concurrency, "concurrency", 0, "runs at the same time (default the node's slots)")
	f.IntVar(&s.MaxAttempts, "max-attempts", 0, "runs before it is a dead letter (default 3)")
	f.IntVar(&s.MaxRetries, "max-retries", 0, "attempts that a sender may ask for with --retries (default those of --max-attempts)")
	f.StringVar(&s.Lanes, "lanes", "", "whose tasks with one --order-key follow each other: origin (those of each), or shared (those of all) (default origin)")
	f.StringVar(&s.OnCrash, "on-crash", "", "when a run was cut off: retry, probe or park (default park)")
	f.Var(sizeValue{&s.MaxBody}, "max-body", "largest body, as 64MiB (default the node's limit)")
	f.Var(sizeValue{&s.MaxOutput}, "max-output", "output that a run may write, as 64MiB (default 10MiB)")
	f.StringVar(&s.OnOverflow, "on-overflow", "", "when a run writes more than that: fail or cut (default fail)")
	f.StringSliceVar(&s.Env, "env", nil, "name of a variable of the node that the program sees (repeatable)")
	f.StringVar(&s.RunAs, "run-as", "", "USER or USER:GROUP that the program runs as, which cannot read the node's keys (default the node's user)")
	f.StringVar(&s.Dir, "work-dir", "", "folder to run in (default a fresh one each time)")
}

func handlerList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the handlers",
		Example: "  balefire-node handler ls", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			hs, err := c.Handlers(ctx)
			if err != nil {
				return err
			}
			return w.show(view{value: node.Page[node.Handler]{Items: hs}, lines: lines(hs), human: func(p *printer) {
				t := newTable(col("KIND"), col("TYPE"), col("ALLOW"), num("RUNNING"), num("WAITING"), col("ON CRASH"), col("EXEC"), wideOnly("PROFILE"), wideOnly("TIMEOUT"), wideOnly("ATTEMPTS"))
				for _, h := range hs {
					t.row(h.Kind, h.Type, strings.Join(h.Allow, ","), h.Running, h.Waiting, h.OnCrash, strings.Join(h.Exec, " "), h.Profile, h.Timeout, h.MaxAttempts)
				}
				p.table(t)
			}})
		},
	}
}

func handlerRemove(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "rm KIND", Short: "Remove a handler",
		Long:    "Remove a handler that was added by command. Its waiting tasks stay until there\nis one again or their time is over.",
		Example: "  balefire-node handler rm uname", Args: exactly(1, "the kind of a handler"), ValidArgsFunction: w.completeKind,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			if err := c.RemoveHandler(ctx, args[0]); err != nil {
				return err
			}
			w.infof("handler %s is gone", args[0])
			return nil
		},
	}
}
