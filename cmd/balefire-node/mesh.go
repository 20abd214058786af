package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

func meshCommand(w *app) *cobra.Command {
	return group("mesh", "Show the mesh as a whole",
		"Show the members of the mesh as this node sees them, check whether all members\nagree, and remove old entries.",
		meshMembers(w), meshSummary(w), meshPrune(w), meshConverge(w), meshRecover(w), meshOwnershipEvents(w), meshTimeline(w))
}

func meshMembers(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "members [MEMBER]", Short: "List the members, or show one",
		Long: `List every member: ALIVE, SUSPECT when it does not answer, DEAD when nobody
reaches it, LEFT when it said goodbye, UNKNOWN when it was not heard since this
node started. WORK is whether it may be granted tasks of shared queues: after an
absence only when it has been back for a while.`,
		Example: "  balefire-node mesh members\n  balefire-node mesh members laptop -o yaml", Args: between(0, 1, "nothing, or the name or id of one member"),
		ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				m, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Member, error) { return c.Member(ctx, args[0]) })
				if err != nil {
					return err
				}
				return w.show(view{value: m, human: func(p *printer) { printMember(p, m) }})
			}
			ms, err := call(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Member, error) { return c.Members(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Member]{Items: ms}, lines: lines(ms), human: func(p *printer) { p.table(memberTable(w, ms)) }})
		},
	}
}

func memberTable(w *app, ms []wire.Member) *table {
	t := newTable(col("MEMBER"), col("STATE"), num("FOR"), col("WORK"), col("PATH"), col("PHASE"), num("LOAD"), col("RELAYS"),
		num("ACCUSERS"), wideOnly("ROLES"), wideOnly("KINDS"), wideOnly("LABELS"), wideOnly("VERSION"), wideOnly("ID"))
	for _, m := range ms {
		name, accusers := m.Name, ""
		if m.Self {
			name += " (this node)"
		}
		if m.Accusers > 0 {
			accusers = fmt.Sprint(m.Accusers)
		}
		t.row(name, m.State, w.ago(m.Since), yesNo(m.Eligible), memberPath(m), strings.ToLower(m.Phase), formatLoad(m.Load), strings.Join(m.Relays, ","),
			accusers, strings.Join(m.Roles, ","), strings.Join(m.Kinds, ","), strings.Join(m.Labels, ","), m.Version, m.ID)
	}
	return t
}

func memberPath(m wire.Member) string {
	if m.Connected && m.Path == "" {
		return "connected"
	}
	return m.Path
}

func formatLoad(l *wire.Load) string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", l.Busy, l.Slots)
}

func printMember(p *printer, m wire.Member) {
	w := p.app
	p.line("%s  %s  %s", m.Name, m.State, m.ID)
	row := func(name, text string) {
		if text != "" {
			p.line("%-12s %s", name, text)
		}
	}
	row("for", w.ago(m.Since))
	row("work", yesNo(m.Eligible))
	row("path", memberPath(m))
	if m.Accusers > 0 {
		row("accusers", fmt.Sprintf("%d report that it does not answer", m.Accusers))
	}
	row("phase", strings.ToLower(m.Phase))
	row("up for", w.ago(m.Started))
	if l := m.Load; l != nil {
		row("load", fmt.Sprintf("cpu %s  memory %s  %d of %d slots busy  %d waiting", percent(l.CPU), percent(l.Memory), l.Busy, l.Slots, l.Waiting))
	}
	row("priority", fmt.Sprint(m.Priority))
	row("roles", strings.Join(m.Roles, ", "))
	row("kinds", strings.Join(m.Kinds, ", "))
	row("labels", strings.Join(m.Labels, ", "))
	row("relays", strings.Join(m.Relays, ", "))
	row("version", m.Version)
	row("boot", fmt.Sprintf("%d, incarnation %d", m.Boot, m.Incarnation))
}

func meshSummary(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "summary", Short: "Show the mesh at a glance, risks first",
		Long: `Show the number of members in each state, how they are reached, whether this
node is isolated, and how many members have the same view of the mesh. Problems
that need attention come first.`,
		Example: "  balefire-node mesh summary", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.MeshSummary, error) { return c.MeshSummary(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) { printMesh(p, s) }})
		},
	}
}

func printMesh(p *printer, s wire.MeshSummary) {
	for _, r := range s.Risks {
		p.line("! %s", prose.Line(r))
	}
	p.line("mesh      %s", s.Mesh)
	p.line("members   %s", formatMembers(s))
	p.line("paths     %s", formatPaths(s))
	if word := nodeProblem(s); word != "" {
		p.line("this node %s", word)
	}
	p.line("digest    %.12s  (members with the same digest agree: balefire-node mesh converge)", orDash(s.Root))
	p.line("health    %d%s", s.LocalHealth, formatHealth(s.LocalHealth))
	p.line("since start: %d false suspicions refuted, %d changes delayed by dwell times", s.Refuted, s.Suppressed)
}

// formatMembers counts the members by state.
func formatMembers(s wire.MeshSummary) string {
	parts := []string{}
	for _, state := range []string{"ALIVE", "SUSPECT", "DEAD", "LEFT", "UNKNOWN"} {
		if n := s.States[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ToLower(state)))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprint(s.Members)
	}
	return fmt.Sprintf("%d: %s", s.Members, strings.Join(parts, ", "))
}

func formatPaths(s wire.MeshSummary) string {
	return fmt.Sprintf("%d direct, %d relayed", s.Direct, s.Relayed)
}

// nodeProblem describes what is wrong with this node's connection to the mesh.
func nodeProblem(s wire.MeshSummary) string {
	switch {
	case s.Isolated && len(s.Accusers) > 0:
		return "is isolated: " + strings.Join(s.Accusers, " and ") + " report that it does not answer, and it takes no new tasks from shared queues"
	case s.Isolated:
		return "is isolated: it hears from no member and takes no new tasks from shared queues"
	case s.Paused:
		return "is paused: it takes no new tasks from shared queues"
	}
	return ""
}

func formatHealth(n int) string {
	if n == 0 {
		return ": good"
	}
	return ": this node or its network is slow, so it waits longer before it suspects others"
}

func meshPrune(w *app) *cobra.Command {
	var older string
	var limit int
	var dry bool
	c := &cobra.Command{
		Use: "prune", Short: "Remove the entries of members that have been dead for long",
		Long: `Remove this node's entries of members that have been dead for long, oldest
first. Without --yes it only lists them. A member that comes back is added
again: this does not revoke any membership.`,
		Example: "  balefire-node mesh prune --older-than 30d\n  balefire-node mesh prune --older-than 30d --limit 10 --yes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			age, err := parseSpan("older-than", older)
			if err != nil {
				return err
			}
			return w.pruneMembers(cmd, time.Duration(age), limit, dry || !w.flags.yes)
		},
	}
	c.Flags().StringVar(&older, "older-than", "", "dead for at least this long, like 36h or 30d (default: the node's own setting)")
	c.Flags().Var(natural(&limit), "limit", "at most this many (default: the node's own limit)")
	c.Flags().BoolVar(&dry, "dry-run", false, "only list, even with --yes")
	return c
}

func (w *app) pruneMembers(cmd *cobra.Command, age time.Duration, limit int, dry bool) error {
	done, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Pruned, error) {
		return c.PruneMembers(ctx, age, limit, dry)
	})
	if err != nil {
		return err
	}
	return w.show(view{value: done, human: func(p *printer) {
		did := "removed"
		if done.DryRun {
			did = "would remove"
		}
		p.line("%s %d members", did, len(done.Members))
		for _, m := range done.Members {
			p.line("  %s", m)
		}
		if done.DryRun && len(done.Members) > 0 && !w.flags.yes {
			w.infof("to remove them, add --yes")
		}
	}})
}

func meshConverge(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "converge", Short: "Synchronize with every connected member now",
		Long: `Synchronize the membership state with every connected member now, and report
which members agree afterwards. This happens automatically all the time; use
this when you do not want to wait. The exit code is 1 when a member did not
answer.`,
		Example: "  balefire-node mesh converge", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop := w.showWaiting("asking the members")
			done, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Convergence, error) { return c.Converge(ctx) })
			stop()
			if err != nil {
				return err
			}
			err = w.show(view{value: done, human: func(p *printer) {
				p.line("%d of %d agree, after %s", len(done.Agree), done.Asked, formatSeconds(done.Took))
				for _, f := range done.Failed {
					p.line("! %s", f)
				}
			}})
			if err == nil && len(done.Failed) > 0 {
				return fmt.Errorf("%d of %d did not answer", len(done.Failed), done.Asked)
			}
			return err
		},
	}
}
