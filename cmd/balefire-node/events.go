package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

const (
	eventWait      = 30 * time.Second       // how long one request waits for events
	eventPage      = 1000                   // events per request
	reconnectDelay = 500 * time.Millisecond // delay before reconnecting to a node that is down
)

func eventsCommand(w *app) *cobra.Command {
	e := watcher{w: w}
	c := &cobra.Command{
		Use: "events", Short: "Show and follow the events of this node",
		Long: `Show the events of this node since it started: connections and disconnections of
peers, path changes, suspected members, tasks. The node keeps the last 4096
events; a line marks a gap where older ones were dropped. What happens to a single
mail, such as mail.accepted, has mail watch.

With --follow it prints new events until it is interrupted, across restarts of the
node; event numbers start at 1 again then. The exit code is 6 after --timeout.`,
		Example:     "  balefire-node events --kind peer.\n  balefire-node events --follow -o jsonl",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.follow && !w.humanOutput() && w.flags.output != formatJSONL {
				return usage("--follow never ends and cannot be written as %s: use table or jsonl", w.flags.output)
			}
			return do(cmd, w, func(ctx context.Context, c *client.Client) error {
				e.client = c
				if !e.follow {
					return e.printPast(ctx)
				}
				return e.run(ctx)
			})
		},
	}
	c.Flags().BoolVarP(&e.follow, "follow", "f", false, "print new events as they happen")
	c.Flags().Var(numberValue[uint64]{&e.after, 0, math.MaxUint64}, "after", "only events after this number")
	c.Flags().StringVar(&e.kind, "kind", "", "only kinds with this prefix, like peer. or path.changed")
	return c
}

// A watcher prints the events of one node.
type watcher struct {
	w      *app
	client *client.Client
	follow bool
	after  uint64
	kind   string
	mail   string // the box whose events are meant, *: all; empty: the events of the node

	boot        uint64 // of the node at the last request; 0: none yet
	headerShown bool   // the table header has been printed
}

// printPast prints the events so far, in the single-document formats as one document.
func (e *watcher) printPast(ctx context.Context) error {
	all := wire.EventPage{Items: []wire.NodeEvent{}}
	for {
		page, err := e.page(ctx, 0)
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

// run prints events until ctx is done, across restarts of the node.
func (e *watcher) run(ctx context.Context) error {
	told := time.Duration(-1)
	for {
		page, err := e.page(ctx, eventWait)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && e.boot != 0 && isUnreachable(err):
			if now := e.w.clock.Mono(); told < 0 || now-told >= 10*quietInterval {
				e.w.infof("… the node is not running: waiting for it")
				told = now
			}
			clock.Pause(ctx, reconnectDelay)
			continue
		case err != nil:
			return err
		case e.boot != 0 && page.Boot != e.boot:
			e.w.infof("… the node was restarted: event numbers start at 1 again")
			e.boot, e.after = page.Boot, 0
			continue
		}
		told, e.boot, e.after = -1, page.Boot, page.Next
		if err := e.print(page); err != nil {
			return err
		}
	}
}

// isUnreachable reports whether the node is stopping or starting, has stopped, or died while it
// answered.
func isUnreachable(err error) bool {
	_, said := errors.AsType[*wire.Problem](err)
	return !said || isAny(err, client.ErrNodeDown, wire.ErrDraining, wire.ErrStarting)
}

func (e *watcher) filter(events []wire.NodeEvent) []wire.NodeEvent {
	if e.kind == "" {
		return events
	}
	var out []wire.NodeEvent
	for _, v := range events {
		if strings.HasPrefix(v.Kind, e.kind) {
			out = append(out, v)
		}
	}
	return out
}

// print prints a page, its gap first.
func (e *watcher) print(page wire.EventPage) error {
	events := e.filter(page.Items)
	all := lines(events)
	if page.Missed > 0 {
		all = append([]any{wire.Missed{Missed: page.Missed}}, all...)
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

// eventLine uses fixed widths because later events are not known yet.
func eventLine(seq, at, kind, peer, text string) string {
	return fmt.Sprintf("%6s  %-12s  %s  %s  %s", seq, at, padded(kind, 20), padded(peer, 12), text)
}

func padded(s string, n int) string { return s + strings.Repeat(" ", max(n-displayWidth(s), 0)) }

// eventText returns the text of an event on one line, in wide output with its fields.
func eventText(v wire.NodeEvent, wide bool) string {
	text := strings.ReplaceAll(prose.Event(v), "\n", " ")
	if wide {
		for _, k := range slices.Sorted(maps.Keys(v.Fields)) {
			text += fmt.Sprintf("  %s=%s", k, strings.ReplaceAll(v.Fields[k], "\n", " "))
		}
	}
	return text
}
