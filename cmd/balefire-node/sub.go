package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func subCommand(w *app) *cobra.Command {
	return group("sub", "Create the subscriptions of topics, show them and move them",
		`A subscription is a reader group of a topic: it is given each mail that its filter
selects, whether it is read at that moment or not. Its mail is read with mail read
topic:TOPIC/SUB.`,
		subAdd(w), subList(w), subShow(w), subSet(w), subSeek(w), subPause(w, true), subPause(w, false), subRemove(w))
}

var oneSub = exactly(2, "a topic and a subscription")

func subAdd(w *app) *cobra.Command {
	var f readerFlags
	c := &cobra.Command{
		Use: "add TOPIC SUB", Short: "Create a subscription of a topic",
		Long: `Create a subscription of a topic of this node. --filter selects subjects: * is one
word and > at the end the rest; it never changes. --from is where it begins: new
(the default), first, last (the newest mail of each subject), a number, or a time.

With --to the node delivers the mail into a box, of this node or another one: it
sends each mail on with the same write as its acknowledgment, in order.`,
		Example: `  balefire-node sub add orders billing --filter 'eu.>' --from first --mode failover
  balefire-node sub add orders audit --from 2026-11-22T14:00:00Z
  balefire-node sub add orders copy --filter 'eu.>' --to agent:audit@beta`,
		Args: oneSub, ValidArgsFunction: w.completeTopic,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := f.settings(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return w.changeSub(cmd, args, "created", func(ctx context.Context, c *client.Client) (wire.Box, error) {
				v, err := c.Topic(ctx, args[0])
				if err != nil {
					return v, err
				}
				if _, err := findSub(v, args[1]); err == nil {
					return v, &codedError{exitRefused, fmt.Errorf("%s/%s exists: change it with balefire-node sub set, or move it with sub seek", v.Name, args[1])}
				}
				return c.SetSubscription(ctx, args[0], args[1], s)
			})
		},
	}
	c.Flags().StringVar(&f.filter, "filter", "", "subjects, such as 'eu.>' (default all)")
	c.Flags().StringVar(&f.from, "from", "", "new, first, last, a number, or a time (default new)")
	completeWords(c, "from", "new", "first", "last")
	f.addTo(c)
	f.add(c)
	return c
}

func subSet(w *app) *cobra.Command {
	var f readerFlags
	c := &cobra.Command{
		Use: "set TOPIC SUB", Short: "Change the settings of a subscription",
		Long:    "Change the settings of a subscription. Settings without a flag do not change; 0 is\nthe default. Its filter never changes: add another subscription.",
		Example: "  balefire-node sub set orders billing --attempts 5 --mode shared", Args: oneSub, ValidArgsFunction: w.completeSub,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, some, err := f.settings(cmd.Flags().Changed)
			if err := wantSetting(some, err, "--attempts 5"); err != nil {
				return err
			}
			return w.changeSub(cmd, args, "changed", func(ctx context.Context, c *client.Client) (wire.Box, error) {
				v, err := c.Topic(ctx, args[0])
				if err == nil {
					_, err = findSub(v, args[1])
				}
				if err != nil {
					return v, err
				}
				return c.SetSubscription(ctx, args[0], args[1], s)
			})
		},
	}
	f.addTo(c)
	f.add(c)
	return c
}

// findSub returns a subscription of a topic.
func findSub(v wire.Box, name string) (wire.Subscription, error) {
	i := slices.IndexFunc(v.Subscriptions, func(s wire.Subscription) bool { return s.Name == name })
	if i < 0 {
		return wire.Subscription{}, &codedError{exitNotFound, fmt.Errorf("there is no %s/%.64s: create it with balefire-node sub add %s %.64s", v.Name, name, strings.TrimPrefix(v.Name, proto.TopicPrefix), name)}
	}
	return v.Subscriptions[i], nil
}

// changeSub changes a subscription and shows the result.
func (w *app) changeSub(cmd *cobra.Command, args []string, done string, change func(context.Context, *client.Client) (wire.Box, error)) error {
	v, err := callMail(cmd, w, change)
	if err != nil {
		return err
	}
	s, err := findSub(v, args[1])
	if err != nil {
		return err
	}
	w.infof("%s/%s: %s", sanitize(v.Name), sanitize(s.Name), done)
	return w.show(subView(v, s))
}

func subView(v wire.Box, s wire.Subscription) view {
	return view{value: s, human: func(p *printer) {
		p.line("%s/%s  %s", v.Name, s.Name, boxState(wire.Box{}, s))
		row := p.rows()
		if s.Waiting != nil {
			row("mails", "%d waiting", *s.Waiting)
		}
		printReader(row, v, s)
		printReaderSettings(row, s.Settings)
	}}
}

func subList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls [TOPIC]", Short: "List the subscriptions of a topic, or of all topics",
		Long:    "List the subscriptions of a topic, or of all topics of this node. How many mails\nwait for each is counted only if a topic is given.",
		Example: "  balefire-node sub ls orders", Args: between(0, 1, "the name of a topic, or nothing"), ValidArgsFunction: w.completeTopic,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Box, error) {
				if len(args) == 0 {
					return c.Topics(ctx)
				}
				v, err := c.Topic(ctx, args[0])
				return []wire.Box{v}, err
			})
			if err != nil {
				return err
			}
			items := []listedSub{}
			for _, v := range all {
				for _, s := range v.Subscriptions {
					items = append(items, listedSub{v.Name, s})
				}
			}
			return w.show(view{value: wire.Page[listedSub]{Items: items}, lines: lines(items), human: func(p *printer) { p.table(subTable(all)) }})
		},
	}
}

// A listedSub is a subscription in a list of those of several topics.
type listedSub struct {
	Topic string `json:"topic"`
	wire.Subscription
}

// subTable lists the subscriptions of topics.
func subTable(topics []wire.Box) *table {
	t := newTable(col("SUBSCRIPTION"), col("STATE"), col("FILTER"), col("MODE"), num("WAITING"), num("LEASED"), num("RETRYING"), num("DEAD"), num("BLOCKED"), col("READERS"))
	for _, v := range topics {
		for _, s := range v.Subscriptions {
			var waiting any = ""
			if s.Waiting != nil {
				waiting = *s.Waiting
			}
			t.row(v.Name+"/"+s.Name, boxState(wire.Box{}, s), orZero(s.Settings.Filter), orZero(s.Settings.Mode), waiting, s.Leased, s.Retrying, s.Dead, s.Blocked, readers(s))
		}
	}
	return t
}

func subShow(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "show TOPIC SUB", Short: "Show a subscription: its mail, its readers and its settings",
		Example: "  balefire-node sub show orders billing", Args: oneSub, ValidArgsFunction: w.completeSub,
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) (wire.Box, error) { return c.Topic(ctx, args[0]) })
			if err != nil {
				return err
			}
			s, err := findSub(v, args[1])
			if err != nil {
				return err
			}
			return w.show(subView(v, s))
		},
	}
}

func subSeek(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "seek TOPIC SUB TO", Short: "Move a subscription: what it reads next",
		Long: `Move a subscription to TO: new, first, last (the newest mail of each subject), a
number, or a time. What was leased before is stale; what lies before TO counts as
read. This is written to the audit log.`,
		Example: "  balefire-node sub seek orders billing first\n  balefire-node sub seek orders billing 2026-11-22T14:00:00Z",
		Args:    exactly(3, "a topic, a subscription, and where to move it: new, first, last, a number, or a time"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 2 {
				return []string{"new", "first", "last"}, cobra.ShellCompDirectiveNoFileComp
			}
			return w.completeSub(cmd, args, begun)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.changeSub(cmd, args, "moved", func(ctx context.Context, c *client.Client) (wire.Box, error) {
				return c.SeekSubscription(ctx, args[0], args[1], args[2])
			})
		},
	}
}

func subPause(w *app, on bool) *cobra.Command {
	return pauseCommand(on, "paused", &cobra.Command{
		Use: "pause TOPIC SUB", Short: "Stop the deliveries of a subscription",
		Long:    "Deliver nothing to the readers of a subscription until it is resumed.",
		Example: "  balefire-node sub pause orders billing", Args: oneSub, ValidArgsFunction: w.completeSub,
	}, func(cmd *cobra.Command, args []string, done string) error {
		return w.changeSub(cmd, args, done, func(ctx context.Context, c *client.Client) (wire.Box, error) {
			return c.PauseBox(ctx, topicBox(args[0]), args[1], on)
		})
	})
}

func subRemove(w *app) *cobra.Command {
	return removeCommand(w, &cobra.Command{
		Use: "rm TOPIC SUB", Short: "Remove a subscription with its dead letters",
		Example: "  balefire-node sub rm orders billing --yes", Args: oneSub, ValidArgsFunction: w.completeSub,
	}, func(args []string) string { return topicBox(args[0]) + "/" + args[1] }, func(ctx context.Context, c *client.Client, args []string) error {
		return c.RemoveSubscription(ctx, args[0], args[1])
	})
}
