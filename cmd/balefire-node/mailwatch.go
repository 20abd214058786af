package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func mailWatch(w *app) *cobra.Command {
	e := watcher{w: w, mail: "*"}
	var past bool
	c := &cobra.Command{
		Use: "watch [BOX]", Short: "Print what happens to the mail of this node",
		Long: `Print what happens to the mail of a mailbox or a topic, or of all boxes, until it is
interrupted, across restarts of the node: mail that is accepted, delivered, done,
dead or refused, here or on its way to another node. Watching changes nothing. With
--past it begins with the events of this start that the node still has, of the last
4096. The exit code is 6 after --timeout.`,
		Example:     "  balefire-node mail watch ceo\n  balefire-node mail watch topic:orders --past -o jsonl\n  balefire-node mail watch --kind mail.dead",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: between(0, 1, "a mailbox or a topic, or nothing for all"), ValidArgsFunction: w.completeBox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				e.mail = args[0]
			}
			if !w.humanOutput() && w.flags.output != formatJSONL {
				return usage("mail watch never ends and cannot be written as %s: use table or jsonl", w.flags.output)
			}
			return do(cmd, w, func(ctx context.Context, c *client.Client) error {
				if len(args) > 0 {
					w.warnNoBox(ctx, c, args[0])
				}
				if e.client = c; !past {
					if err := e.skipPast(ctx); err != nil {
						return err
					}
				}
				return e.run(ctx)
			})
		},
	}
	c.Flags().BoolVar(&past, "past", false, "begin with the events that the node still has")
	c.Flags().StringVar(&e.kind, "kind", "", "only kinds with this prefix, like mail.dead or mail.re")
	return c
}

// warnNoBox says that this node has no such box, whose events a command waits for.
func (w *app) warnNoBox(ctx context.Context, c *client.Client, name string) {
	var err error
	if topic, is := strings.CutPrefix(name, proto.TopicPrefix); is {
		_, err = c.Topic(ctx, topic)
	} else if !strings.Contains(name, "@") {
		_, err = c.Mailbox(ctx, strings.TrimPrefix(name, "agent:"))
	}
	if isNoBox(err) {
		w.infof("… there is no %s here now: waiting for what happens to it", sanitize(name))
	}
}

// skipPast lets the watcher begin with what happens next.
func (e *watcher) skipPast(ctx context.Context) error {
	for {
		page, err := e.page(ctx, 0)
		if err != nil {
			return err
		}
		e.boot, e.after = page.Boot, page.Next
		if len(page.Items) < eventPage {
			return nil
		}
	}
}

func mailHistory(w *app) *cobra.Command {
	var f mailQuery
	c := &cobra.Command{
		Use: "history BOX", Short: "List all that a box keeps, newest first",
		Long: `List the mails that a mailbox or a topic still has, the newest first. A topic keeps
its mail until its retention takes it, also what its subscriptions have read (DONE).
A mailbox keeps what waits, its dead letters, and for some time what is DONE: see
mailbox set --keep. Looking changes nothing.`,
		Example: "  balefire-node mail history topic:orders --since 1h\n  balefire-node mail history ceo --since 2h --until 1h -o jsonl", Args: exactly(1, "a mailbox or a topic"), ValidArgsFunction: w.completeBox,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := f.query(w.clock.Now())
			if err != nil {
				return err
			}
			if name, sub, both := strings.Cut(args[0], "/"); both {
				return usage("%.80q: use NAME for a mailbox, or topic:TOPIC; a subscription keeps nothing of its own, see mail ls %s/%s", args[0], sanitizeLine(name), sanitizeLine(sub))
			}
			q.State = "KEPT"
			r := readable{box: args[0]}
			page, err := w.boxMails(cmd, r, q, f.all)
			if err != nil {
				return err
			}
			if strings.HasPrefix(r.box, proto.TopicPrefix) {
				r.sub = "*" // its mails have subjects
			}
			return w.show(mailsView(w, r, page))
		},
	}
	f.add(c)
	return c
}

// page returns the next events of the node, or of its mail.
func (e *watcher) page(ctx context.Context, wait time.Duration) (wire.EventPage, error) {
	if e.mail != "" {
		return e.client.MailEvents(ctx, e.mail, e.after, eventPage, wait)
	}
	return e.client.EventPage(ctx, e.after, eventPage, wait)
}
