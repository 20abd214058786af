package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func mailboxCommand(w *app) *cobra.Command {
	return group("mailbox", "Create mailboxes, show them and change their settings",
		`A mailbox keeps the mail for an agent on this node until somebody has read it and
acknowledged it. NAME is agent:NAME@NODE for other nodes, and agent:NAME for the
programs of this one; a mailbox of the mesh (add --named) is agent:NAME on every
node. Commands about a mailbox run on its node.`,
		mailboxAdd(w), mailboxList(w), mailboxShow(w), mailboxSet(w), mailboxPause(w, true), mailboxPause(w, false), mailboxPurge(w), mailboxHandOff(w), mailboxUnblock(w), mailboxRemove(w))
}

// callMail is call for requests about mail.
func callMail[T any](cmd *cobra.Command, w *app, question func(context.Context, *client.Client) (T, error)) (T, error) {
	v, err := call(cmd, w, question)
	return v, mailFailure(err)
}

// doMail is callMail for a request that returns no value.
func doMail(cmd *cobra.Command, w *app, order func(context.Context, *client.Client) error) error {
	return mailFailure(do(cmd, w, order))
}

// mailFailure adds to an error about mail what can be done about it.
func mailFailure(err error) error {
	p, ok := errors.AsType[*wire.Problem](err)
	switch {
	case !ok:
		return err
	case p.Unrouted():
		return &codedError{exitNotFound, &hintedError{&noMailError{p}, ""}}
	}
	return &hintedError{err, mailHints[p.Code]}
}

// A noMailError is the answer of a node that is older than mail.
type noMailError struct{ problem *wire.Problem }

func (e *noMailError) Error() string {
	return "this node does not support mail: the running program is older than this command; restart the node with this version"
}

func (e *noMailError) Unwrap() error { return e.problem }

// mailHints are the hints for mail where it has others than tasks.
var mailHints = map[wire.Code]string{
	wire.CodeInternal:    hints[wire.CodeInternal],
	wire.CodeUnhealthy:   hints[wire.CodeUnhealthy],
	wire.CodeDraining:    hints[wire.CodeDraining],
	wire.CodeStarting:    hints[wire.CodeStarting],
	wire.CodeTimeout:     hints[wire.CodeTimeout],
	wire.CodeUnknown:     "if you gave --dedupe, retry with the same one: the mail is sent once; otherwise look whether it is there: balefire-node mail ls",
	wire.CodeFull:        "read or purge what waits there, raise its limits (--mails, --bytes), or free disk space",
	wire.CodeKeyConflict: "repeat the first mail unchanged, or use another --dedupe",
}

// A readable is what mail is read from: a mailbox, or a subscription of a topic.
type readable struct{ box, sub string }

func (r readable) String() string {
	if r.sub == "" {
		return r.box
	}
	return r.box + "/" + r.sub
}

// parseReadable reads BOX: a mailbox, or topic:TOPIC/SUBSCRIPTION.
func parseReadable(text string) (readable, error) {
	name, sub, both := strings.Cut(text, "/")
	switch topic := strings.HasPrefix(text, proto.TopicPrefix); {
	case topic && (!both || sub == ""):
		return readable{}, usage("%.80q is a topic: name one of its subscriptions, as in %s/billing", text, strings.TrimSuffix(sanitizeLine(text), "/"))
	case !topic && both:
		return readable{}, usage("%.80q: use NAME for a mailbox, or topic:TOPIC/SUBSCRIPTION", text)
	case name == "":
		return readable{}, usage("the name of a mailbox is empty")
	}
	return readable{name, sub}, nil
}

var (
	oneMailbox = exactly(1, "the name of a mailbox")
	setMailbox = between(1, -1, "the name of a mailbox, and the arguments of --exec")
	oneBox     = exactly(1, "a mailbox, or topic:TOPIC/SUBSCRIPTION")
)

func mailboxAdd(w *app) *cobra.Command {
	var f mailboxFlags
	c := &cobra.Command{
		Use: "add NAME [ARG...]", Short: "Create a mailbox on this node",
		Long: `Create a mailbox on this node. Its programs may read it and send to it; other
nodes only if --allow and --allow-read say so.

The mailbox is this node's, and other nodes send to agent:NAME@NODE. With --named
it is one of the mesh, which every node finds as agent:NAME. Where a node has a
mailbox of its own with that name, agent:NAME is that one there.

With --exec the node itself reads it: it runs the program for each mail, whose
body is its standard input. Exit code 0 acknowledges the mail, 65 makes it a dead
letter, 75 and all others give it back. With --post it posts each mail to a URL:
2xx acknowledges, 429 and 5xx give it back, another 4xx makes it a dead letter.
With --forward the output is the body of a mail to another box, sent in the same
write as the acknowledgment.`,
		Example: `  balefire-node mailbox add ceo
  balefire-node mailbox add desk --named --allow '*'
  balefire-node mailbox add ceo --allow peer:beta --attempts 5 --lease 2m
  balefire-node mailbox add raw --exec ./enrich --forward agent:desk --concurrency 4`,
		Args: setMailbox, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := f.settings(cmd.Flags().Changed, args[1:])
			if err != nil {
				return err
			}
			return w.showBox(cmd, "created", printBox, func(ctx context.Context, c *client.Client) (wire.Box, error) {
				old, err := c.Mailbox(ctx, args[0])
				if err == nil && (!f.named || !strings.Contains(old.Name, "@")) {
					return old, &codedError{exitRefused, fmt.Errorf("%s exists: change it with balefire-node mailbox set", old.Name)}
				}
				if err != nil && !isNoBox(err) {
					return old, err
				}
				return w.setMailbox(ctx, c, args[0], &f.run, cmd.Flags().Changed, nil, s) // refused if this node has one of its own with the name
			})
		},
	}
	c.Flags().BoolVar(&f.named, "named", false, "a mailbox of the mesh, agent:NAME, whose home is this node")
	f.box.add(c, false)
	f.reader.add(c)
	f.run.add(c)
	return c
}

// isNoBox reports whether err says that a box does not exist.
func isNoBox(err error) bool {
	p, ok := errors.AsType[*wire.Problem](err)
	return ok && p.Code == wire.CodeNotFound && !p.Unrouted()
}

func mailboxSet(w *app) *cobra.Command {
	var f mailboxFlags
	var z seizeFlags
	c := &cobra.Command{
		Use: "set NAME [ARG...]", Short: "Change the settings of a mailbox",
		Long: `Change the settings of a mailbox, at once and also for what waits in it. Settings
without a flag do not change; an empty list is the default. An empty --exec or
--post removes the handler; another --exec or --post keeps the rest of its
settings, but for those that only programs have.

` + seizeHelp("mailbox"),
		Example: `  balefire-node mailbox set ceo --attempts 5 --allow peer:beta,role:work
  balefire-node mailbox set ceo --lease 0 --allow=''
  balefire-node mailbox set ceo --exec ''
  balefire-node mailbox set desk --seize --from field-09 --accept-loss --allow '*'`,
		Args: setMailbox, ValidArgsFunction: w.completeMailbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, some, err := f.settings(cmd.Flags().Changed, args[1:])
			done, missing := z.set(&s.BoxSettings, args[0])
			if err := wantSetting(some || s.Seize != nil, errors.Join(err, missing), "--attempts 5"); err != nil {
				return err
			}
			return w.showBox(cmd, done, printBox, func(ctx context.Context, c *client.Client) (wire.Box, error) {
				var old wire.Box
				if s.Seize == nil { // otherwise it is a new one
					var err error
					if old, err = c.Mailbox(ctx, args[0]); err != nil {
						return old, err
					}
				}
				return w.setMailbox(ctx, c, args[0], &f.run, cmd.Flags().Changed, old.Settings.Handler, s)
			})
		},
	}
	f.box.add(c, false)
	f.reader.add(c)
	f.run.add(c)
	z.add(w, c)
	return c
}

// showBox shows the mailbox or topic that a request returns, and says what the request has
// done if it is one that changes something.
func (w *app) showBox(cmd *cobra.Command, done string, human func(*printer, wire.Box), request func(context.Context, *client.Client) (wire.Box, error)) error {
	v, err := callMail(cmd, w, request)
	if err != nil {
		return err
	}
	if done != "" {
		w.infof("%s: %s", sanitize(v.Name), done)
		for _, n := range v.Warnings {
			w.infof("! %s", sanitize(prose.Line(n)))
		}
	}
	return w.show(view{value: v, human: func(p *printer) { human(p, v) }})
}

func mailboxList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the mailboxes of this node",
		Example: "  balefire-node mailbox ls\n  balefire-node mailbox ls -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Box, error) { return c.Mailboxes(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Box]{Items: all}, lines: lines(all), human: func(p *printer) { p.table(mailboxTable(w, all)) }})
		},
	}
}

func mailboxTable(w *app, all []wire.Box) *table {
	t := newTable(col("MAILBOX"), col("STATE"), num("WAITING"), num("LEASED"), num("RETRYING"), num("DEAD"), num("OLDEST"), col("READERS"),
		wideOnly("SIZE"), wideOnly("BLOCKED"), wideOnly("DONE"), wideOnly("EXPIRED"), wideOnly("CANCELLED"), wideOnly("ALLOW"), wideOnly("ALLOW READ"))
	for _, v := range all {
		s := reader(v)
		t.row(v.Name, boxState(v, s), v.Waiting, s.Leased, s.Retrying, s.Dead, w.ago(v.Oldest), readers(s),
			formatSize(v.Bytes), s.Blocked, v.Ended.Done, v.Ended.Expired, v.Ended.Cancelled, joined(v.Settings.Allow), joined(v.Settings.AllowRead))
	}
	return t
}

// reader returns the only subscription of a mailbox.
func reader(v wire.Box) wire.Subscription {
	if len(v.Subscriptions) == 0 {
		return wire.Subscription{}
	}
	return v.Subscriptions[0]
}

// readers lists the readers of a subscription.
func readers(s wire.Subscription) string {
	var names []string
	for _, name := range s.Readers {
		names = append(names, cmp.Or(name, "unnamed"))
	}
	return strings.Join(names, ", ")
}

// boxState returns the state of a box and of one of its subscriptions as words.
func boxState(v wire.Box, s wire.Subscription) string {
	var words []string
	if orZero(s.Settings.Paused) {
		words = append(words, "paused")
	}
	if orZero(v.Settings.Draining) {
		words = append(words, "draining")
	}
	if len(words) == 0 {
		return "open"
	}
	return strings.Join(words, ", ")
}

// orZero returns what p points to, or the zero value.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// joined joins a list of settings with commas.
func joined(list *[]string) string { return strings.Join(orZero(list), ", ") }

func mailboxShow(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a mailbox: its mail, its readers and its settings",
		Example: "  balefire-node mailbox show ceo\n  balefire-node mailbox show ceo -o yaml", Args: oneMailbox, ValidArgsFunction: w.completeMailbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.showBox(cmd, "", printBox, func(ctx context.Context, c *client.Client) (wire.Box, error) { return c.Mailbox(ctx, args[0]) })
		},
	}
}

func mailboxPause(w *app, on bool) *cobra.Command {
	return pauseCommand(on, "paused; new mail waits", &cobra.Command{
		Use: "pause NAME", Short: "Stop the deliveries of a mailbox",
		Long:    "Deliver nothing from a mailbox until it is resumed. New mail is accepted and\nwaits; what is leased may be settled.",
		Example: "  balefire-node mailbox pause ceo", Args: oneMailbox, ValidArgsFunction: w.completeMailbox,
	}, func(cmd *cobra.Command, args []string, done string) error {
		return w.showBox(cmd, done, printBox, func(ctx context.Context, c *client.Client) (wire.Box, error) { return c.PauseBox(ctx, args[0], "", on) })
	})
}

// pauseCommand completes a command that pauses a box, or turns it into the one that resumes
// the box. run is given the words for what was done.
func pauseCommand(on bool, done string, c *cobra.Command, run func(cmd *cobra.Command, args []string, done string) error) *cobra.Command {
	if !on {
		done = "resumed"
		r := strings.NewReplacer("pause", "resume", "Stop", "Resume")
		c.Use, c.Short, c.Long, c.Example = r.Replace(c.Use), r.Replace(c.Short), "", r.Replace(c.Example)
	}
	c.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd, args, done) }
	return c
}

func mailboxPurge(w *app) *cobra.Command {
	return purgeCommand(w, "mailbox", "ceo", "NAME", oneMailbox, w.completeMailbox, func(name string) string { return name })
}

// purgeCommand returns the command that removes what waits in a box; box returns the box of
// an argument.
func purgeCommand(w *app, kind, example, arg string, args cobra.PositionalArgs, complete cobra.CompletionFunc, box func(string) string) *cobra.Command {
	var r wire.PurgeMail
	c := &cobra.Command{
		Use: "purge " + arg, Short: "Remove what waits in a " + kind,
		Long:    "Remove what waits in a " + kind + ", the oldest first. What is leased stays, and so do\ndead letters. " + map[string]string{"mailbox": "The senders are told.", "topic": "Senders are not told."}[kind],
		Example: fmt.Sprintf("  balefire-node %s purge %s --dry-run\n  balefire-node %s purge %s --limit 100 --reason outdated --yes", kind, example, kind, example), Args: args, ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !r.DryRun {
				if err := w.confirm("purge " + args[0]); err != nil {
					return err
				}
			}
			done, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.PurgedMail, error) {
				return c.PurgeMail(ctx, box(args[0]), r)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: done, human: func(p *printer) {
				did := "removed"
				if done.DryRun {
					did = "would remove"
				}
				p.line("%s %s", did, counted(done.Mails, "mail", "mails"))
			}})
		},
	}
	c.Flags().Var(natural(&r.Limit), "limit", "only the oldest so many; 0: all")
	c.Flags().StringVar(&r.Reason, "reason", "", "told to the senders")
	c.Flags().BoolVar(&r.DryRun, "dry-run", false, "only count")
	return c
}

// handOffLeft says what of a box is set again at its next home.
var handOffLeft = map[string]string{"mailbox": "set its handler there", "topic": "there, resume\nsubscriptions that deliver into a box (sub resume)"}

func mailboxHandOff(w *app) *cobra.Command {
	return handOffCommand(w, "mailbox", "desk", "NAME", oneMailbox, w.completeMailbox, func(name string) string { return name })
}

// handOffCommand returns the command that hands over a box; box returns the box of an argument.
func handOffCommand(w *app, kind, example, arg string, args cobra.PositionalArgs, complete cobra.CompletionFunc, box func(string) string) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use: "handoff " + arg + " --to NODE", Short: "Hand over a " + kind + " of the mesh to another home",
		Long: `Hand over a ` + kind + ` of the mesh, whose home is this node, to another node, with its
mail, settings, subscriptions and dead letters. Nothing is lost, and a mail that was
acknowledged does not come again; leases end. Meanwhile nobody sends to it or reads
it: mail of other nodes waits there. If it cannot be, the ` + kind + ` stays here. The
new home starts no program by the word of this one: ` + handOffLeft[kind] + `.`,
		Example:     fmt.Sprintf("  balefire-node %s handoff %s --to field-07", kind, example),
		Annotations: map[string]string{annotationWaits: "yes"}, Args: args, ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usage("name the node that is to be the home of %s, as in --to field-07", sanitizeLine(args[0]))
			}
			moved, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.MovedBox, error) {
				return c.HandOffBox(ctx, box(args[0]), to)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: moved, human: func(p *printer) {
				if p.line("%s: handed off to %s, with %d mails", moved.Box, moved.Home, moved.Mails); !moved.Served {
					p.line("%s serves it as soon as it has heard that it is the home", moved.Home)
				}
			}})
		},
	}
	c.Flags().StringVar(&to, "to", "", "name or id of the new home")
	_ = c.RegisterFlagCompletionFunc("to", w.completePeerFlag) // the flag exists
	return c
}

func mailboxUnblock(w *app) *cobra.Command {
	var u wire.UnblockMail
	c := &cobra.Command{
		Use: "unblock BOX KEY", Short: "Let the mails of one key go on after a dead letter",
		Long: `Deliver the mails of one ordering key again that wait behind a dead letter,
because the mailbox or subscription has the setting on-dead block. BOX is a
mailbox or topic:TOPIC/SUBSCRIPTION.`,
		Example: "  balefire-node mailbox unblock ceo order-7\n  balefire-node mailbox unblock topic:orders/billing order-7", Args: exactly(2, "a mailbox, or topic:TOPIC/SUBSCRIPTION, and a key"), ValidArgsFunction: w.completeBox,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := parseReadable(args[0])
			if err != nil {
				return err
			}
			u.Key = args[1]
			if err := doMail(cmd, w, func(ctx context.Context, c *client.Client) error { return c.UnblockMail(ctx, r.box, r.sub, u) }); err != nil {
				return err
			}
			w.infof("%s: the mails of key %s go on", sanitize(r.String()), sanitize(u.Key))
			return nil
		},
	}
	c.Flags().StringVar(&u.Origin, "origin", "", "name or id of the node whose mails are blocked, with the setting lanes origin (default this node)")
	_ = c.RegisterFlagCompletionFunc("origin", w.completePeerFlag) // the flag exists
	return c
}

func mailboxRemove(w *app) *cobra.Command {
	return removeCommand(w, &cobra.Command{
		Use: "rm NAME", Short: "Remove a mailbox with its mail and dead letters",
		Long:    "Remove a mailbox with all that waits in it and its dead letters. The senders of\nthe mail that waits are told.",
		Example: "  balefire-node mailbox rm ceo --yes", Args: oneMailbox, ValidArgsFunction: w.completeMailbox,
	}, func(args []string) string { return args[0] }, func(ctx context.Context, c *client.Client, args []string) error { return c.RemoveMailbox(ctx, args[0]) })
}

// removeCommand completes a command that removes something that has a name.
func removeCommand(w *app, c *cobra.Command, name func(args []string) string, remove func(context.Context, *client.Client, []string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if err := w.confirm("remove " + name(args)); err != nil {
			return err
		}
		if err := doMail(cmd, w, func(ctx context.Context, c *client.Client) error { return remove(ctx, c, args) }); err != nil {
			return err
		}
		w.infof("%s: removed", sanitize(name(args)))
		return nil
	}
	return c
}
