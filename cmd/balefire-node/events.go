package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

const (
	eventWait      = 30 * time.Second       // one question of a follower
	eventPage      = 1000                   // events of one answer
	reconnectDelay = 500 * time.Millisecond // between two looks for a node that is away
)

func eventsCommand(w *app) *cobra.Command {
	e := watcher{w: w}
	c := &cobra.Command{
		Use: "events", Short: "Show what happened on this node, and follow it",
		Long: `Show what happened on this node since it started: peers that came and went, paths
that changed, members that were suspected, work. It keeps the last 4096 events; a
line tells when some were dropped before the next one.

With --follow it goes on as things happen, also when the node is started again:
numbers begin anew then. It ends with 6 when --timeout is over.`,
		Example:     "  balefire-node events --kind peer.\n  balefire-node events --follow -o jsonl",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.follow && !w.humanOutput() && w.flags.output != formatJSONL {
				return usage("--follow never ends, so it has no %s: take table or jsonl", w.flags.output)
			}
			ctx, cancel := w.withTimeout(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			e.client = c
			if !e.follow {
				return e.printPast(ctx)
			}
			return e.run(ctx)
		},
	}
	c.Flags().BoolVarP(&e.follow, "follow", "f", false, "go on as things happen")
	c.Flags().Uint64Var(&e.after, "after", 0, "only what came after the event of this number")
	c.Flags().StringVar(&e.kind, "kind", "", "only kinds that begin so, as peer. or path.changed")
	return c
}

// A watcher shows the events of one node.
type watcher struct {
	w      *app
	client *client.Client
	follow bool
	after  uint64
	kind   string

	boot        uint64 // of the node at the last look; 0: none yet
	headerShown bool   // the heading of the table is there
}

// printPast shows what there is, in one document where the format is one.
func (e *watcher) printPast(ctx context.Context) error {
	all := node.EventPage{Items: []node.NodeEvent{}}
	for {
		page, err := e.client.EventPage(ctx, e.after, eventPage, 0)
		if err != nil {
			return err
		}
		if all.Boot == 0 {
			all.Boot, all.Missed = page.Boot, page.Missed
		}
		e.after, all.Next = page.Next, page.Next
		if e.w.humanOutput() || e.w.flags.output == formatJSONL {
			if err := e.print(page); err != nil {
				return err
			}
		}
		all.Items = append(all.Items, e.filter(page.Items)...)
		if len(page.Items) < eventPage {
			break
		}
	}
	if e.w.humanOutput() || e.w.flags.output == formatJSONL {
		return nil
	}
	return e.w.show(view{value: all})
}

// run shows what happens until ctx is done, across starts of the node.
func (e *watcher) run(ctx context.Context) error {
	told := time.Duration(-1)
	for {
		page, err := e.client.EventPage(ctx, e.after, eventPage, eventWait)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && e.boot != 0 && isUnreachable(err):
			if now := e.w.clock.Mono(); told < 0 || now-told >= 10*quietInterval {
				e.w.infof("… the node is away: waiting for it")
				told = now
			}
			pause(ctx, reconnectDelay)
			continue
		case err != nil:
			return err
		case e.boot != 0 && page.Boot != e.boot:
			e.w.infof("… the node was started anew: numbers begin again")
			e.boot, e.after = page.Boot, 0
			continue
		}
		told, e.boot, e.after = -1, page.Boot, page.Next
		if err := e.print(page); err != nil {
			return err
		}
	}
}

// isUnreachable reports whether the node stops, has stopped, or died while it answered.
func isUnreachable(err error) bool {
	_, said := errors.AsType[*api.Problem](err)
	return !said || isAny(err, client.ErrNodeDown, node.ErrDraining)
}

func (e *watcher) filter(events []node.NodeEvent) []node.NodeEvent {
	if e.kind == "" {
		return events
	}
	var out []node.NodeEvent
	for _, v := range events {
		if strings.HasPrefix(v.Kind, e.kind) {
			out = append(out, v)
		}
	}
	return out
}

// print shows a page, its gap first.
func (e *watcher) print(page node.EventPage) error {
	events := e.filter(page.Items)
	all := lines(events)
	if page.Missed > 0 {
		all = append([]any{api.Missed{Missed: page.Missed}}, all...)
	}
	if len(all) == 0 {
		return nil
	}
	return e.w.show(view{value: page, lines: all, human: func(p *printer) {
		if !e.headerShown {
			p.line("%s", eventLine("SEQ", "TIME", "KIND", "PEER", "WHAT"))
			e.headerShown = true
		}
		if page.Missed > 0 {
			p.line("… %d events were dropped here", page.Missed)
		}
		for _, v := range events {
			p.line("%s", eventLine(fmt.Sprint(v.Seq), v.Time.Local().Format("15:04:05.000"), v.Kind, orDash(v.Peer), eventText(v, p.wide)))
		}
	}})
}

// eventLine aligns by fixed widths: what comes later is not known yet.
func eventLine(seq, at, kind, peer, text string) string {
	return fmt.Sprintf("%6s  %-12s  %s  %s  %s", seq, at, padded(kind, 20), padded(peer, 12), text)
}

func padded(s string, n int) string { return s + strings.Repeat(" ", max(n-displayWidth(s), 0)) }

// eventText is the text of an event on one line, with its fields where there is room.
func eventText(v node.NodeEvent, wide bool) string {
	text := strings.ReplaceAll(v.Text, "\n", " ")
	if v.Task != "" {
		text += "  task " + shortTask(v.Task)
	}
	if wide {
		for _, k := range slices.Sorted(maps.Keys(v.Fields)) {
			text += fmt.Sprintf("  %s=%s", k, strings.ReplaceAll(v.Fields[k], "\n", " "))
		}
	}
	return text
}
