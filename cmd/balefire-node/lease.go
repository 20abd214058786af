package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

// maxLeases is how many leases one answer holds at most.
const maxLeases = 1000

func leaseCommand(w *app) *cobra.Command {
	return group("lease", "Look at who owns which task of a shared queue",
		`A lease is the right of one node to run one task of a shared queue. The home of the
queue gives it, its owner renews it while the handler lives.`,
		leaseList(w), leaseShow(w), leaseConflicts(w), leaseRelease(w))
}

func leaseList(w *app) *cobra.Command {
	var f node.LeaseFilter
	c := &cobra.Command{
		Use: "ls", Short: "List the leases that this node gave, then those that it has",
		Long: `List the leases that this node gave as a home, then those that it has as an owner.
PEER is the other side. A lease that is over is not lost yet: its owner may still
commit while nobody else has the task.`,
		Example: "  balefire-node lease ls\n  balefire-node lease ls --queue build --owner laptop", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Limit > maxLeases {
				return usage("--limit %d: it is 1 to %d", f.Limit, maxLeases)
			}
			ls, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]node.Lease, error) { return c.Leases(ctx, f) })
			if err != nil {
				return err
			}
			if err := w.show(view{value: node.Page[node.Lease]{Items: ls}, lines: lines(ls), human: func(p *printer) { p.table(leaseTable(w, ls)) }}); err != nil {
				return err
			}
			if len(ls) == f.Limit {
				w.infof("there may be more: choose with --queue or --owner, or raise --limit")
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.Queue, "queue", "", "only of this queue")
	fs.StringVar(&f.Owner, "owner", "", "only those of this owner: a name or an id")
	fs.StringVar(&f.Role, "role", "", "home: given by this node; owner: that it has (default both)")
	fs.IntVar(&f.Limit, "limit", 50, "at most so many")
	completeWords(c, "role", node.RoleHome, node.RoleOwner)
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flags are there
	_ = c.RegisterFlagCompletionFunc("owner", w.completePeerFlag)
	return c
}

func leaseTable(w *app, ls []node.Lease) *table {
	t := newTable(col("TASK"), col("QUEUE"), col("KIND"), col("ROLE"), col("PEER"), col("STATE"), col("EPOCH"), num("ENDS IN"),
		wideOnly("HELD FOR"), wideOnly("ATTEMPTS"), wideOnly("ABANDONS"), wideOnly("CANCEL"), wideOnly("PEER ID"))
	for _, l := range ls {
		t.row(shortTask(l.Task), l.Queue, l.Kind, l.Role, l.Peer, l.State, l.Epoch, w.formatLeaseEnd(l),
			w.ago(l.Granted), l.Attempts, l.Abandons, yesNo(l.Cancel), l.PeerID)
	}
	return t
}

// formatLeaseEnd says when a lease ends, or that it is over.
func (w *app) formatLeaseEnd(l node.Lease) string {
	switch {
	case l.Lapsed:
		return "over"
	case l.Until == nil:
		return ""
	}
	return formatDuration(l.Until.Sub(w.clock.Now()))
}

// A leaseReport is what a node knows of the lease of one task.
type leaseReport struct {
	Leases    []node.Lease         `json:"leases"`
	Conflicts []node.LeaseConflict `json:"conflicts"`
}

func leaseShow(w *app) *cobra.Command {
	var queue string
	c := &cobra.Command{
		Use: "show TASK", Short: "Show the lease of one task, and claims to it that did not count",
		Long: `Show the lease of one task. A node that is the home of the queue and works on it
itself has two: the one that it gave and the one that it has.`,
		Example: "  balefire-node lease show 01a1f84f", Args: oneTask, ValidArgsFunction: w.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (leaseReport, error) {
				return findLease(ctx, c, queue, strings.ToLower(args[0]))
			})
			if err != nil {
				return err
			}
			return w.show(view{value: r, human: func(p *printer) { printLease(p, r) }})
		},
	}
	c.Flags().StringVar(&queue, "queue", "", "look in this queue alone: of more than 1000 leases only the first are looked at")
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flag is there
	return c
}

// findLease finds the lease of the task that a person named by the begin of its id.
func findLease(ctx context.Context, c *client.Client, queue, task string) (leaseReport, error) {
	var r leaseReport
	ls, err := c.Leases(ctx, node.LeaseFilter{Queue: queue, Limit: maxLeases})
	if err != nil {
		return r, err
	}
	r.Leases = slices.DeleteFunc(slices.Clone(ls), func(l node.Lease) bool { return !strings.HasPrefix(l.Task, task) })
	switch {
	case len(r.Leases) == 0 && len(ls) == maxLeases:
		return r, &codedError{exitNotFound, fmt.Errorf("%s is not among the first %d leases: look in one queue with --queue", task, maxLeases)}
	case len(r.Leases) == 0:
		return r, &codedError{exitNotFound, fmt.Errorf("this node neither gave nor has a lease of %s: see balefire-node lease ls, or task show for what became of it", task)}
	}
	id := r.Leases[0].Task
	if slices.ContainsFunc(r.Leases, func(l node.Lease) bool { return l.Task != id }) {
		return r, usage("%s begins the ids of several tasks with leases: write more of it", task)
	}
	conflicts, err := c.LeaseConflicts(ctx)
	r.Conflicts = slices.DeleteFunc(conflicts, func(x node.LeaseConflict) bool { return x.Task != id })
	if r.Conflicts == nil {
		r.Conflicts = []node.LeaseConflict{}
	}
	return r, err
}

func printLease(p *printer, r leaseReport) {
	w := p.world
	for i, l := range r.Leases {
		if i > 0 {
			p.line("")
		}
		p.line("%s  %s  %s", l.Task, l.Queue, orDash(l.Kind))
		row := func(name, text string) {
			if text != "" {
				p.line("%-9s %s", name, text)
			}
		}
		if l.Role == node.RoleHome {
			row("owner", l.Peer+"  "+l.PeerID)
		} else {
			row("home", l.Peer+"  "+l.PeerID)
		}
		row("state", l.State)
		row("epoch", l.Epoch)
		row("held for", w.ago(l.Granted))
		row("ends in", w.formatLeaseEnd(l))
		p.line("%-9s %d, leases lost %d", "attempts", l.Attempts, l.Abandons)
		if l.Cancel {
			row("cancel", "was asked for")
		}
	}
	if len(r.Conflicts) > 0 {
		p.line("")
		p.table(conflictTable(w, r.Conflicts))
	}
}

func leaseConflicts(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "conflicts", Short: "List the newest claims that did not count",
		Long: `List the newest claims to tasks that did not count, oldest first: a node that was
gone for too long and came back with a result, or one that said what it may not.
None of them had an effect.`,
		Example: "  balefire-node lease conflicts -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cs, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]node.LeaseConflict, error) {
				return c.LeaseConflicts(ctx)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: node.Page[node.LeaseConflict]{Items: cs}, lines: lines(cs), human: func(p *printer) { p.table(conflictTable(w, cs)) }})
		},
	}
}

func conflictTable(w *app, cs []node.LeaseConflict) *table {
	t := newTable(num("AGO"), col("TASK"), col("QUEUE"), col("CLAIMED BY"), col("EPOCH"), col("RESULT"), col("CAUSE"), wideOnly("DIGEST"), wideOnly("PEER ID"))
	for _, c := range cs {
		t.row(w.ago(&c.Time), shortTask(c.Task), c.Queue, c.Peer, c.Epoch, c.State, c.Cause, c.Digest, c.PeerID)
	}
	return t
}

func leaseRelease(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "release TASK", Short: "Take the lease of one task back by hand",
		Long: `Take the lease of one task back, on the home of its queue: the task waits again and
is given to whoever can. The owner is not asked: a handler that is at work there may
have done half of it, and its result counts no more once the task is given anew.
It spends no attempt.`,
		Example: "  balefire-node lease release 01a1f84f --yes", Args: oneTask, ValidArgsFunction: w.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.confirm("release " + args[0]); err != nil {
				return err
			}
			l, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (node.Lease, error) { return c.ReleaseLease(ctx, args[0]) })
			if err != nil {
				return err
			}
			w.infof("%s: taken back from %s", sanitize(l.Task), sanitize(l.Peer))
			return w.show(view{value: l, human: func(p *printer) { printLease(p, leaseReport{Leases: []node.Lease{l}}) }})
		},
	}
}

func meshRecover(w *app) *cobra.Command {
	var owner string
	var dry bool
	c := &cobra.Command{
		Use: "recover", Short: "Take back at once what dead nodes have of shared queues",
		Long: `Take back the leases that this node gave to owners that are dead or have left, so
that others get the tasks at once. A node does that by itself when the members call
an owner dead; this is for somebody who knows it sooner: --owner names a node that
does not answer. It only says which leases they are, unless --yes is given. No
attempt is spent. What may have been started, and may be started once only, stays.`,
		Example: "  balefire-node mesh recover\n  balefire-node mesh recover --owner field-09 --yes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dry = dry || !w.flags.yes
			r, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (node.Recovered, error) {
				return c.RecoverLeases(ctx, owner, dry)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: r, human: func(p *printer) { printRecovered(p, r) }})
		},
	}
	c.Flags().StringVar(&owner, "owner", "", "what this node has, which must not be alive: a name or an id")
	c.Flags().BoolVar(&dry, "dry-run", false, "only list them, even with --yes")
	_ = c.RegisterFlagCompletionFunc("owner", w.completePeerFlag) // the flag is there
	return c
}

func printRecovered(p *printer, r node.Recovered) {
	did := "took back"
	if r.DryRun {
		did = "would take back"
	}
	p.line("%s %d leases", did, len(r.Taken))
	if len(r.Taken) > 0 {
		p.table(leaseTable(p.world, r.Taken))
	}
	if len(r.Kept) > 0 {
		p.line("\n%d stay: they may have been started, and may be started once only", len(r.Kept))
		p.table(leaseTable(p.world, r.Kept))
	}
	if r.DryRun && len(r.Taken) > 0 && !p.world.flags.yes {
		p.world.infof("to take them back, add --yes")
	}
}

// ownershipPage is how many events one answer holds.
const ownershipPage = 1000

func meshOwnershipEvents(w *app) *cobra.Command {
	var after uint64
	var task, queue, kind string
	c := &cobra.Command{
		Use: "ownership-events", Short: "Show how tasks moved from node to node, as this node saw it",
		Long: `Show the timeline of ownership at this node, oldest first: what it granted and to
whom, leases that ended, results that came too late, queues that moved. Each node
tells its own; -o jsonl is for putting those of several together.`,
		Example: "  balefire-node mesh ownership-events --task 01a1f84f\n  balefire-node mesh ownership-events --queue build -o jsonl > here.jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]node.OwnershipEvent, error) {
				return allOwnershipEvents(ctx, c, after)
			})
			if err != nil {
				return err
			}
			task = strings.ToLower(task)
			all = slices.DeleteFunc(all, func(e node.OwnershipEvent) bool {
				return !strings.HasPrefix(e.Task, task) || queue != "" && e.Queue != queue || !strings.HasPrefix(e.Kind, kind)
			})
			return w.show(view{value: node.Page[node.OwnershipEvent]{Items: all}, lines: lines(all), human: func(p *printer) { p.table(ownershipTable(all)) }})
		},
	}
	fs := c.Flags()
	fs.Uint64Var(&after, "after", 0, "only what came after the event of this number")
	fs.StringVar(&task, "task", "", "only of this task: its id or the beginning of it")
	fs.StringVar(&queue, "queue", "", "only of this queue")
	fs.StringVar(&kind, "kind", "", "only kinds that begin so, as granted or moved_")
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flags are there
	_ = c.RegisterFlagCompletionFunc("task", w.completeTask)
	return c
}

// allOwnershipEvents reads what there is behind a number. What happens meanwhile is read
// to the end of a page.
func allOwnershipEvents(ctx context.Context, c *client.Client, after uint64) ([]node.OwnershipEvent, error) {
	all := []node.OwnershipEvent{}
	for {
		page, err := c.OwnershipEvents(ctx, after, ownershipPage)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < ownershipPage || page[len(page)-1].Number <= after {
			return all, nil
		}
		after = page[len(page)-1].Number
	}
}

func ownershipTable(es []node.OwnershipEvent) *table {
	t := newTable(num("NUMBER"), col("TIME"), col("KIND"), col("TASK"), col("QUEUE"), col("PEER"), col("EPOCH"), col("CAUSE"), wideOnly("PEER ID"))
	for _, e := range es {
		t.row(e.Number, e.Time.Local().Format(time.DateTime), e.Kind, shortTask(e.Task), e.Queue, e.Peer, e.Epoch, e.Cause, e.PeerID)
	}
	return t
}
