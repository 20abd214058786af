package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

func queueCommand(w *app) *cobra.Command {
	c := group("queue", "Show shared queues, change their settings and move their homes",
		`Tasks of a shared queue run on any member that has a handler: send queue:NAME
KIND. The home of the queue is the one node that decides which member runs which
task; its settings are changed there.`,
		queueList(w), queueShow(w), queueSet(w), queueMembers(w),
		queuePause(w), queueResume(w), queueUnblock(w), queueDrain(w), queueHandOff(w), queueSeize(w))
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && slices.Contains([]string{"rm", "remove", "delete"}, args[0]) {
			return usage("a queue cannot be removed: one without tasks costs nothing, and queue pause stops its grants")
		}
		return run(cmd, args)
	}
	return c
}

// callShared is call for requests that need a node with shared queues.
func callShared[T any](cmd *cobra.Command, w *app, question func(context.Context, *client.Client) (T, error)) (T, error) {
	v, err := call(cmd, w, question)
	if p, ok := errors.AsType[*wire.Problem](err); ok && p.Unrouted() {
		return v, &codedError{exitNotFound, errors.New("this node does not support shared queues: the running program is older than this command; restart the node with this version")}
	}
	return v, err
}

// callQueue sends one request about one queue.
func callQueue(cmd *cobra.Command, w *app, name string, question func(*client.Client, context.Context, string) (wire.Queue, error)) (wire.Queue, error) {
	return callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Queue, error) { return question(c, ctx, name) })
}

var oneQueue = exactly(1, "the name of a queue")

func queueList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the shared queues that this node knows",
		Long: `List the shared queues that this node knows. Only the home of a queue knows how
many tasks wait and are owned: other nodes show a dash.`,
		Example: "  balefire-node queue ls\n  balefire-node queue ls -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			qs, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Queue, error) { return c.Queues(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Queue]{Items: qs}, lines: lines(qs), human: func(p *printer) { p.table(queueTable(w, qs)) }})
		},
	}
}

func queueTable(w *app, qs []wire.Queue) *table {
	t := newTable(col("QUEUE"), col("HOME"), col("STATE"), col("STRATEGY"), num("WAITING"), num("OWNED"), num("MEMBERS"),
		wideOnly("GOING"), wideOnly("LIMIT"), wideOnly("PER NODE"), wideOnly("GENERATION"), wideOnly("CHANGED"), wideOnly("HOME ID"))
	for _, q := range qs {
		var waiting, owned, members, going any = "", "", "", ""
		if q.Here {
			waiting, owned, members, going = q.Waiting, q.Owned, availableMembers(q.Members), q.Going
		}
		t.row(q.Name, homeName(q), queueState(q), q.Strategy, waiting, owned, members,
			going, formatLimit(q.Concurrency), formatLimit(q.NodeConcurrency), q.Generation, w.ago(q.Changed), q.HomeID)
	}
	return t
}

func homeName(q wire.Queue) string {
	if q.Here {
		return q.Home + " (this node)"
	}
	return q.Home
}

func queueState(q wire.Queue) string {
	switch {
	case q.Alarm != nil:
		return "home " + strings.ToLower(q.Alarm.State)
	case q.Paused && q.Draining:
		return "paused, draining"
	case q.Paused:
		return "paused"
	case q.Draining:
		return "draining"
	}
	return "open"
}

// availableMembers counts the members that can be granted tasks.
func availableMembers(ms []wire.QueueMember) int {
	n := 0
	for _, m := range ms {
		if m.Alive && !m.Draining {
			n++
		}
	}
	return n
}

// formatLimit formats a limit; 0 is no limit.
func formatLimit(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func queueShow(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "show QUEUE", Short: "Show a queue: its tasks, its settings and its members",
		Long: `Show the home of a queue, the number of its tasks, its settings and its members.
If its home is down, that comes first, with what waits for it and what can be
done.`,
		Example: "  balefire-node queue show build\n  balefire-node queue show build -o yaml", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := callQueue(cmd, w, args[0], (*client.Client).Queue)
			if err != nil {
				return err
			}
			return w.show(view{value: q, human: func(p *printer) { printQueue(p, q) }})
		},
	}
}

func printQueue(p *printer, q wire.Queue) {
	w := p.app
	if a := q.Alarm; a != nil {
		p.line("! %s", prose.Text(*a))
		p.line("! %s", prose.Fix(*a))
	}
	p.line("%s  %s", q.Name, queueState(q))
	row := p.rows()
	row("home", "%s  %s  generation %d", homeName(q), q.HomeID, q.Generation)
	if q.SeizedFrom != "" {
		row("seized", "from %s, which is no longer the home: when it comes back it hands over its tasks", q.SeizedFrom)
	}
	if q.Here {
		row("tasks", "%d waiting  %d owned%s", q.Waiting, q.Owned, formatMoving(q.Going))
	} else {
		row("tasks", "known only at its home%s", formatMoving(q.Going))
	}
	row("strategy", "%s", q.Strategy)
	printLimits(row, q.QueueRules)
	if len(q.Homes) > 0 {
		row("homes", "%s: the first that is available", strings.Join(q.Homes, ", "))
	}
	for _, m := range q.MemberRules {
		row("member", "%s", m.Node+formatRule(m))
	}
	if len(q.Labels) > 0 {
		row("labels", "%s", strings.Join(q.Labels, ", "))
	}
	if len(q.Allow) > 0 {
		row("allow", "%s", strings.Join(q.Allow, ", "))
	}
	for _, l := range q.Blocked {
		row("blocked", "key %s: %s blocked by %s, which died: balefire-node queue unblock %s %s", l.Key, counted(l.Waiting, "task is", "tasks are"), orDash(l.Died), q.Name, l.Key)
	}
	if q.Changed != nil {
		row("changed", "%s ago", w.ago(q.Changed))
	}
	if len(q.Members) > 0 {
		p.line("")
		p.table(memberRows(q.Members))
	}
}

func formatMoving(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("  %d being handed over to another home", n)
}

// printLimits prints how many tasks of a queue can be owned, and for how long.
func printLimits(row func(string, string, ...any), r wire.QueueRules) {
	if word := formatLimits(r.Concurrency, r.NodeConcurrency); word != "" {
		row("limit", "%s", word)
	}
	for _, k := range r.Kinds {
		row("limit", "%s: %s", k.Kind, formatLimits(k.Concurrency, k.NodeConcurrency))
	}
	if r.LeaseMs > 0 {
		row("lease", "%s", formatMillis(r.LeaseMs))
	}
	if r.OnLostLease != "" {
		row("lost lease", "%s", r.OnLostLease)
	}
}

// formatRule formats the settings of one member.
func formatRule(m wire.MemberRule) (word string) {
	for _, x := range []struct {
		name   string
		number int
	}{{"weight", m.Weight}, {"priority", m.Priority}, {"limit", m.Concurrency}} {
		if x.number > 0 {
			word += fmt.Sprintf("  %s %d", x.name, x.number)
		}
	}
	if m.Draining {
		word += "  draining"
	}
	return word
}

// formatLimits formats the limits of a queue or of a kind in it.
func formatLimits(all, each int) string {
	var parts []string
	if all > 0 {
		parts = append(parts, fmt.Sprintf("%d at a time", all))
	}
	if each > 0 {
		parts = append(parts, fmt.Sprintf("%d on each node", each))
	}
	return strings.Join(parts, ", ")
}

func queueMembers(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "members QUEUE", Short: "List the members of a queue",
		Long: `List the nodes that have handlers for a queue, as its home sees them. OWNED is
the number of tasks of this queue that each owns, BUSY the number of its slots
in use, for any queue or sender. A node that was gone is shown as away until it
has been back for a while.`,
		Example: "  balefire-node queue members build -o wide", Args: oneQueue, ValidArgsFunction: w.completeQueue,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := callQueue(cmd, w, args[0], (*client.Client).Queue)
			if err != nil {
				return err
			}
			ms := q.Members
			if ms == nil {
				ms = []wire.QueueMember{}
			}
			if err := w.show(view{value: wire.Page[wire.QueueMember]{Items: ms}, lines: lines(ms), human: func(p *printer) { p.table(memberRows(ms)) }}); err != nil {
				return err
			}
			if !q.Here {
				w.infof("only its home knows the members: run this on %s", sanitize(q.Home))
			}
			return nil
		},
	}
}

func memberRows(ms []wire.QueueMember) *table {
	t := newTable(col("MEMBER"), col("STATE"), num("OWNED"), num("BUSY"), num("PRIORITY"), col("KINDS"), col("LABELS"), wideOnly("ID"))
	for _, m := range ms {
		state := "away"
		switch {
		case m.Alive && m.Draining:
			state = "draining"
		case m.Alive:
			state = "ready"
		}
		t.row(m.Name, state, m.Owned, fmt.Sprintf("%d/%d", m.Busy, m.Slots), m.Priority, strings.Join(m.Kinds, ","), strings.Join(m.Labels, ","), m.ID)
	}
	return t
}
