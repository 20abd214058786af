package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func topicCommand(w *app) *cobra.Command {
	return group("topic", "Create topics, show them and publish to them",
		`What is published to a topic is delivered to each of its subscriptions: see
balefire-node sub. TOPIC is its name, with or without topic: before it.`,
		topicAdd(w), topicList(w), topicShow(w), topicSet(w), topicPublish(w), topicPurge(w), topicHandOff(w), topicRemove(w))
}

var oneTopic = exactly(1, "the name of a topic")

// topicBox returns the box of a topic that is named with or without its prefix.
func topicBox(name string) string {
	return proto.TopicPrefix + strings.TrimPrefix(name, proto.TopicPrefix)
}

func topicAdd(w *app) *cobra.Command {
	var f boxFlags
	c := &cobra.Command{
		Use: "add TOPIC", Short: "Create a topic on this node",
		Long: `Create a topic on this node. By default it keeps mail for 7 days or up to its
limits and then drops the oldest, read or not; with --interest it keeps each mail
until every subscription has read it.`,
		Example: "  balefire-node topic add orders --age 7d --bytes 1GiB\n  balefire-node topic add jobs --interest --allow role:send", Args: oneTopic, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := f.settings(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return w.showBox(cmd, "created", printTopic, func(ctx context.Context, c *client.Client) (wire.Box, error) {
				old, err := c.Topic(ctx, args[0])
				if err == nil {
					return old, &codedError{exitRefused, fmt.Errorf("%s exists: change it with balefire-node topic set", old.Name)}
				}
				if !isNoBox(err) {
					return old, err
				}
				return c.SetTopic(ctx, args[0], s)
			})
		},
	}
	f.add(c, true)
	return c
}

func topicSet(w *app) *cobra.Command {
	var f boxFlags
	var z seizeFlags
	c := &cobra.Command{
		Use: "set TOPIC", Short: "Change the settings of a topic",
		Long:    "Change the settings of a topic. Settings without a flag do not change; 0 or an\nempty list is the default.\n\n" + seizeHelp("topic"),
		Example: "  balefire-node topic set orders --age 30d\n  balefire-node topic set orders --interest=false\n  balefire-node topic set orders --seize --from field-09 --accept-loss", Args: oneTopic, ValidArgsFunction: w.completeTopic,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, some, err := f.settings(cmd.Flags().Changed)
			done, missing := z.set(&s, args[0])
			if err := wantSetting(some || s.Seize != nil, errors.Join(err, missing), "--age 30d"); err != nil {
				return err
			}
			return w.showBox(cmd, done, printTopic, func(ctx context.Context, c *client.Client) (wire.Box, error) {
				if s.Seize == nil {
					if old, err := c.Topic(ctx, args[0]); err != nil {
						return old, err
					}
				}
				return c.SetTopic(ctx, args[0], s)
			})
		},
	}
	f.add(c, true)
	z.add(w, c)
	return c
}

func topicList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the topics of this node",
		Example: "  balefire-node topic ls\n  balefire-node topic ls -o jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Box, error) { return c.Topics(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Box]{Items: all}, lines: lines(all), human: func(p *printer) {
				t := newTable(col("TOPIC"), col("STATE"), num("MAILS"), num("SIZE"), num("OLDEST"), num("SUBSCRIPTIONS"), num("DEAD"), num("DROPPED"), wideOnly("NEXT"), wideOnly("ALLOW"), wideOnly("ALLOW READ"))
				for _, v := range all {
					dead := 0
					for _, s := range v.Subscriptions {
						dead += s.Dead
					}
					t.row(v.Name, boxState(v, wire.Subscription{}), v.Waiting, formatSize(v.Bytes), w.ago(v.Oldest), len(v.Subscriptions), dead, v.Ended.Dropped, v.Next, joined(v.Settings.Allow), joined(v.Settings.AllowRead))
				}
				p.table(t)
			}})
		},
	}
}

func topicShow(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "show TOPIC", Short: "Show a topic: its mail, its settings and its subscriptions",
		Example: "  balefire-node topic show orders", Args: oneTopic, ValidArgsFunction: w.completeTopic,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.showBox(cmd, "", printTopic, func(ctx context.Context, c *client.Client) (wire.Box, error) { return c.Topic(ctx, args[0]) })
		},
	}
}

func printTopic(p *printer, v wire.Box) {
	p.line("%s  %s", v.Name, boxState(v, wire.Subscription{}))
	row := p.rows()
	printMails(row, p.app, v)
	row("next", "number %d", v.Next)
	printLimitsOf(row, v)
	printAllowed(row, v)
	if len(v.Subscriptions) > 0 {
		p.line("")
		p.table(subTable([]wire.Box{v}))
	}
}

func topicPublish(w *app) *cobra.Command {
	var f mailFlags
	c := &cobra.Command{
		Use: "publish TOPIC SUBJECT [BODY | @FILE | -]", Short: "Publish a mail to a topic",
		Long: `Send a mail with a subject to a topic, on whichever node that is: mail send
topic:TOPIC --subject SUBJECT. A subject is words with dots between them, such
as eu.created. The body is a text, a file (@FILE), standard input (-) or empty.`,
		Example: "  balefire-node topic publish orders eu.created @order.json\n  balefire-node topic publish orders eu.paid 'order 7' --key order-7",
		Args:    between(2, 3, "a topic, a subject and a body: topic publish TOPIC SUBJECT [BODY | @FILE | -]"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 2 {
				return bodies(begun)
			}
			return w.completeTopic(cmd, args, begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] == "" {
				return usage("the subject is empty: name one, such as eu.created; mail send %s sends a mail without one", topicBox(args[0]))
			}
			f.mail.Subject = args[1]
			return w.sendMail(cmd, &f, topicBox(args[0]), args[2:])
		},
	}
	f.ofTopic(c)
	return c
}

func topicHandOff(w *app) *cobra.Command {
	return handOffCommand(w, "topic", "orders", "TOPIC", oneTopic, w.completeTopic, topicBox)
}

func topicPurge(w *app) *cobra.Command {
	return purgeCommand(w, "topic", "orders", "TOPIC", oneTopic, w.completeTopic, topicBox)
}

func topicRemove(w *app) *cobra.Command {
	return removeCommand(w, &cobra.Command{
		Use: "rm TOPIC", Short: "Remove a topic with its mail and its subscriptions",
		Long:    "Remove a topic with its mail, its subscriptions and their dead letters.",
		Example: "  balefire-node topic rm orders --yes", Args: oneTopic, ValidArgsFunction: w.completeTopic,
	}, func(args []string) string { return topicBox(args[0]) }, func(ctx context.Context, c *client.Client, args []string) error { return c.RemoveTopic(ctx, args[0]) })
}
