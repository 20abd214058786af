package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

// maxLeases is the most leases in one response.
const maxLeases = 1000

func leaseCommand(w *app) *cobra.Command {
	return group("lease", "Show who owns which task of a shared queue",
		`A lease is the right of one node to run one task of a shared queue. The home of
the queue grants it; its owner renews it while the handler runs.`,
		leaseList(w), leaseShow(w), leaseConflicts(w), leaseRelease(w))
}

func leaseList(w *app) *cobra.Command {
	var f wire.LeaseFilter
	c := &cobra.Command{
		Use: "ls", Short: "List the leases that this node granted, then those that it owns",
		Long: `List the leases that this node granted as a home, then those that it owns. PEER is
the other side. An expired lease is not lost yet: its owner may still commit the
result until the task is granted to another node.`,
		Example: "  balefire-node lease ls\n  balefire-node lease ls --queue build --owner laptop", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.Limit < 1 || f.Limit > maxLeases {
				return usage("--limit %d: it must be 1 to %d", f.Limit, maxLeases)
			}
			ls, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Lease, error) { return c.Leases(ctx, f) })
			if err != nil {
				return err
			}
			if err := w.show(view{value: wire.Page[wire.Lease]{Items: ls}, lines: lines(ls), human: func(p *printer) { p.table(leaseTable(w, ls)) }}); err != nil {
				return err
			}
			if len(ls) == f.Limit {
				w.infof("there may be more: use --queue or --owner, or raise --limit")
			}
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.Queue, "queue", "", "only leases of this queue")
	fs.StringVar(&f.Owner, "owner", "", "only leases of this owner: a name or an id")
	fs.StringVar(&f.Role, "role", "", "home: granted by this node; owner: owned by it (default both)")
	fs.IntVar(&f.Limit, "limit", 50, "at most this many")
	completeWords(c, "role", wire.RoleHome, wire.RoleOwner)
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flags exist
	_ = c.RegisterFlagCompletionFunc("owner", w.completePeerFlag)
	return c
}

func leaseTable(w *app, ls []wire.Lease) *table {
	t := newTable(col("TASK"), col("QUEUE"), col("KIND"), col("ROLE"), col("PEER"), col("STATE"), col("EPOCH"), num("ENDS IN"),
		wideOnly("HELD FOR"), wideOnly("ATTEMPTS"), wideOnly("ABANDONS"), wideOnly("CANCEL"), wideOnly("PEER ID"))
	for _, l := range ls {
		t.row(shortTask(l.Task), l.Queue, l.Kind, l.Role, l.Peer, l.State, l.Epoch, w.formatLeaseEnd(l),
			w.ago(l.Granted), l.Attempts, l.Abandons, yesNo(l.Cancel), l.PeerID)
	}
	return t
}

// formatLeaseEnd returns when a lease expires, or that it has expired.
func (w *app) formatLeaseEnd(l wire.Lease) string {
	switch {
	case l.Lapsed:
		return "over"
	case l.Until == nil:
		return ""
	}
	return formatDuration(l.Until.Sub(w.clock.Now()))
}

// A leaseReport is what a node knows about the lease of one task.
type leaseReport struct {
	Leases    []wire.Lease         `json:"leases"`
	Conflicts []wire.LeaseConflict `json:"conflicts"`
}

func leaseShow(w *app) *cobra.Command {
	var queue string
	c := &cobra.Command{
		Use: "show TASK", Short: "Show the lease of one task, and rejected claims to it",
		Long: `Show the lease of one task. A node that is the home of the queue and runs the task
itself has two: the one that it granted and the one that it owns.`,
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
	c.Flags().StringVar(&queue, "queue", "", "search only this queue: of more than 1000 leases only the first are searched")
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flag exists
	return c
}

// findLease returns the lease of the task whose id begins with prefix.
func findLease(ctx context.Context, c *client.Client, queue, task string) (leaseReport, error) {
	var r leaseReport
	ls, err := c.Leases(ctx, wire.LeaseFilter{Queue: queue, Limit: maxLeases})
	if err != nil {
		return r, err
	}
	r.Leases = slices.DeleteFunc(slices.Clone(ls), func(l wire.Lease) bool { return !strings.HasPrefix(l.Task, task) })
	switch {
	case len(r.Leases) == 0 && len(ls) == maxLeases:
		return r, &codedError{exitNotFound, fmt.Errorf("%s is not among the first %d leases: search one queue with --queue", task, maxLeases)}
	case len(r.Leases) == 0:
		return r, &codedError{exitNotFound, fmt.Errorf("this node neither granted nor owns a lease of %s: see balefire-node lease ls, or task show for its history", task)}
	}
	id := r.Leases[0].Task
	if slices.ContainsFunc(r.Leases, func(l wire.Lease) bool { return l.Task != id }) {
		return r, usage("%s is the beginning of several ids of tasks with leases: give more of it", task)
	}
	conflicts, err := c.LeaseConflicts(ctx)
	r.Conflicts = slices.DeleteFunc(conflicts, func(x wire.LeaseConflict) bool { return x.Task != id })
	if r.Conflicts == nil {
		r.Conflicts = []wire.LeaseConflict{}
	}
	return r, err
}

func printLease(p *printer, r leaseReport) {
	w := p.app
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
		if l.Role == wire.RoleHome {
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
			row("cancel", "requested")
		}
	}
	if len(r.Conflicts) > 0 {
		p.line("")
		p.table(conflictTable(w, r.Conflicts))
	}
}

func leaseConflicts(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "conflicts", Short: "List the newest rejected claims",
		Long: `List the newest rejected claims, oldest first: to tasks by nodes that were gone
for too long and came back with a result, or that claimed what they do not own;
and to mail by readers that settled it after it had ended, or after another
reader was given it. None of them had an effect.`,
		Example: "  balefire-node lease conflicts -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cs, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.LeaseConflict, error) {
				return c.LeaseConflicts(ctx)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.LeaseConflict]{Items: cs}, lines: lines(cs), human: func(p *printer) { p.table(conflictTable(w, cs)) }})
		},
	}
}

func conflictTable(w *app, cs []wire.LeaseConflict) *table {
	t := newTable(num("AGO"), col("TASK/MAIL"), col("QUEUE/BOX"), col("CLAIMED BY"), col("EPOCH/LEASE"), col("RESULT"), col("CAUSE"), wideOnly("DIGEST"), wideOnly("PEER ID"))
	for _, c := range cs {
		t.row(w.ago(&c.Time), shortTask(cmp.Or(c.Task, c.Mail)), cmp.Or(c.Queue, c.Box), c.Peer, c.Epoch, c.State, prose.Cause(string(c.Cause), "", ""), c.Digest, c.PeerID)
	}
	return t
}

func leaseRelease(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "release TASK", Short: "Revoke the lease of one task",
		Long: `Revoke the lease of one task, on the home of its queue: the task waits again and
is granted to any node that can run it. The owner is not asked: its handler may
have done half of the work, and its result is rejected once the task is granted
again. An abandon is spent, unless its owner never answered: the tenth makes the
task a dead letter.`,
		Example: "  balefire-node lease release 01a1f84f --yes", Args: oneTask, ValidArgsFunction: w.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := w.confirm("release " + args[0]); err != nil {
				return err
			}
			l, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Lease, error) { return c.ReleaseLease(ctx, args[0]) })
			if err != nil {
				return err
			}
			w.infof("%s: revoked from %s", sanitize(l.Task), sanitize(l.Peer))
			return w.show(view{value: l, human: func(p *printer) { printLease(p, leaseReport{Leases: []wire.Lease{l}}) }})
		},
	}
}

func meshRecover(w *app) *cobra.Command {
	var owner string
	var dry bool
	c := &cobra.Command{
		Use: "recover", Short: "Revoke the leases of dead nodes now",
		Long: `Revoke the leases that this node granted to owners that are dead or have left,
so that other nodes get the tasks now. A node does this automatically when the
members declare an owner dead; use this when you know it sooner: --owner names a
node that does not answer. Without --yes it only lists the leases. An abandon is
spent of each, unless its owner never answered: the tenth makes a task a dead
letter. Tasks that may have been started and may be started only once stay leased.`,
		Example: "  balefire-node mesh recover\n  balefire-node mesh recover --owner field-09 --yes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dry = dry || !w.flags.yes
			r, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) (wire.Recovered, error) {
				return c.RecoverLeases(ctx, owner, dry)
			})
			if err != nil {
				return err
			}
			return w.show(view{value: r, human: func(p *printer) { printRecovered(p, r) }})
		},
	}
	c.Flags().StringVar(&owner, "owner", "", "only leases of this node, which must not be alive: a name or an id")
	c.Flags().BoolVar(&dry, "dry-run", false, "only list, even with --yes")
	_ = c.RegisterFlagCompletionFunc("owner", w.completePeerFlag) // the flag is there
	return c
}

func printRecovered(p *printer, r wire.Recovered) {
	did := "revoked"
	if r.DryRun {
		did = "would revoke"
	}
	p.line("%s %d leases", did, len(r.Taken))
	if len(r.Taken) > 0 {
		p.table(leaseTable(p.app, r.Taken))
	}
	if len(r.Kept) > 0 {
		p.line("\n%d stay: they may have been started and may be started only once", len(r.Kept))
		p.table(leaseTable(p.app, r.Kept))
	}
	if r.DryRun && len(r.Taken) > 0 && !p.app.flags.yes {
		p.app.infof("to revoke them, add --yes")
	}
}

// ownershipPage is the most events in one response.
const ownershipPage = 1000

func meshOwnershipEvents(w *app) *cobra.Command {
	var after uint64
	var task, queue, kind string
	c := &cobra.Command{
		Use: "ownership-events", Short: "Show the ownership events of this node",
		Long: `Show the ownership events that this node saw, oldest first: grants, leases that
ended, late results, queues that moved. Each node has its own list: see mesh
timeline for the merged list of all nodes.`,
		Example: "  balefire-node mesh ownership-events --task 01a1f84f\n  balefire-node mesh ownership-events --queue build -o jsonl > here.jsonl", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callShared(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.OwnershipEvent, error) {
				return allOwnershipEvents(ctx, c, after)
			})
			if err != nil {
				return err
			}
			task = strings.ToLower(task)
			all = slices.DeleteFunc(all, func(e wire.OwnershipEvent) bool {
				return !strings.HasPrefix(e.Task, task) || queue != "" && e.Queue != queue || !strings.HasPrefix(e.Kind, kind)
			})
			return w.show(view{value: wire.Page[wire.OwnershipEvent]{Items: all}, lines: lines(all), human: func(p *printer) { p.table(ownershipTable(all)) }})
		},
	}
	fs := c.Flags()
	fs.Var(numberValue[uint64]{&after, 0, math.MaxUint64}, "after", "only events after this number")
	fs.StringVar(&task, "task", "", "only events of this task: its id or the beginning of it")
	fs.StringVar(&queue, "queue", "", "only leases of this queue")
	fs.StringVar(&kind, "kind", "", "only kinds with this prefix, like granted or moved_")
	_ = c.RegisterFlagCompletionFunc("queue", w.completeQueueFlag) // the flags exist
	_ = c.RegisterFlagCompletionFunc("task", w.completeTask)
	return c
}

// allOwnershipEvents reads all events after a number, page by page.
func allOwnershipEvents(ctx context.Context, c *client.Client, after uint64) ([]wire.OwnershipEvent, error) {
	all := []wire.OwnershipEvent{}
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

func ownershipTable(es []wire.OwnershipEvent) *table {
	t := newTable(num("NUMBER"), col("TIME"), col("KIND"), col("TASK"), col("QUEUE"), col("PEER"), col("EPOCH"), col("CAUSE"), wideOnly("PEER ID"))
	for _, e := range es {
		t.row(e.Number, e.Time.Local().Format(time.DateTime), e.Kind, shortTask(e.Task), e.Queue, e.Peer, e.Epoch, prose.Ownership(e), e.PeerID)
	}
	return t
}
