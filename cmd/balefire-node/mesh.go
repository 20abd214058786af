package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func meshCommand(w *app) *cobra.Command {
	return group("mesh", "Look at the mesh as a whole",
		"Look at the members of the mesh as this node sees them, how far all agree about\nthem, and tidy up.",
		meshMembers(w), meshSummary(w), meshPrune(w), meshConverge(w), meshRecover(w), meshOwnershipEvents(w), meshTimeline(w))
}

func meshMembers(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "members [MEMBER]", Short: "List the members, or show one",
		Long: `List every member: ALIVE, SUSPECT when it does not answer, DEAD when nobody reaches
it, LEFT when it said goodbye, UNKNOWN when nothing was heard since this node
started. WORK says whether it may be given work of shared queues: after an absence
only when it has stayed for a while.`,
		Example: "  balefire-node mesh members\n  balefire-node mesh members laptop -o yaml", Args: between(0, 1, "nothing, or the name or id of one member"),
		ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				m, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.Member, error) { return c.Member(ctx, args[0]) })
				if err != nil {
					return err
				}
				return w.show(view{value: m, human: func(p *printer) { printMember(p, m) }})
			}
			ms, err := call(cmd, w, func(ctx context.Context, c *client.Client) ([]node.Member, error) { return c.Members(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: node.Page[node.Member]{Items: ms}, lines: lines(ms), human: func(p *printer) { p.table(memberTable(w, ms)) }})
		},
	}
}

func memberTable(w *app, ms []node.Member) *table {
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

func memberPath(m node.Member) string {
	if m.Connected && m.Path == "" {
		return "connected"
	}
	return m.Path
}

func formatLoad(l *node.Load) string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", l.Busy, l.Slots)
}

func printMember(p *printer, m node.Member) {
	w := p.world
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
		row("accusers", fmt.Sprintf("%d say that it does not answer", m.Accusers))
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
		Long: `Show how many members there are in which state, how they are reached, whether this
node is cut off, and how many of the others know the same as it does. What a person
should look at comes first.`,
		Example: "  balefire-node mesh summary", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.MeshSummary, error) { return c.MeshSummary(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) { printMesh(p, s) }})
		},
	}
}

func printMesh(p *printer, s node.MeshSummary) {
	for _, r := range s.Risks {
		p.line("! %s", r)
	}
	p.line("mesh      %s", s.Mesh)
	p.line("members   %s", formatMembers(s))
	p.line("paths     %s", formatPaths(s))
	if word := nodeProblem(s); word != "" {
		p.line("this node %s", word)
	}
	p.line("digest    %.12s  (members with the same know the same: balefire-node mesh converge)", orDash(s.Root))
	p.line("health    %d%s", s.LocalHealth, formatHealth(s.LocalHealth))
	p.line("since start: %d false suspicions taken back, %d changes held back by dwell windows", s.Refuted, s.Suppressed)
}

// formatMembers counts the members by state.
func formatMembers(s node.MeshSummary) string {
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

func formatPaths(s node.MeshSummary) string {
	return fmt.Sprintf("%d direct, %d relayed", s.Direct, s.Relayed)
}

// nodeProblem says what is wrong with this node's own place in the mesh.
func nodeProblem(s node.MeshSummary) string {
	switch {
	case s.Isolated && len(s.Accusers) > 0:
		return "is isolated: " + strings.Join(s.Accusers, " and ") + " say that it does not answer, and it claims nothing new from shared queues"
	case s.Isolated:
		return "is isolated: it hears from nobody, and claims nothing new from shared queues"
	case s.Paused:
		return "is paused: it claims nothing new from shared queues"
	}
	return ""
}

func formatHealth(n int) string {
	if n == 0 {
		return ": good"
	}
	return ": this node or its network is slow, so it is slower to accuse others"
}

func meshPrune(w *app) *cobra.Command {
	var older string
	var limit int
	var dry bool
	c := &cobra.Command{
		Use: "prune", Short: "Remove the rows of members that are dead for long",
		Long: `Remove what this node remembers of members that are dead for long, the oldest
first. It only says which ones they are, unless --yes is given. A member that comes
back is known again: this takes no membership away.`,
		Example: "  balefire-node mesh prune --older-than 30d\n  balefire-node mesh prune --older-than 30d --limit 10 --yes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			age, err := parseSpan("older-than", older)
			if err != nil {
				return err
			}
			if limit < 0 {
				return usage("--limit %d: it is 0 or more", limit)
			}
			return w.pruneMembers(cmd, age, limit, dry || !w.flags.yes)
		},
	}
	c.Flags().StringVar(&older, "older-than", "", "dead for at least this long, as 36h or 30d (default: what the node does by itself)")
	c.Flags().IntVar(&limit, "limit", 0, "at most so many (default: the node's own limit)")
	c.Flags().BoolVar(&dry, "dry-run", false, "only list them, even with --yes")
	return c
}

func (w *app) pruneMembers(cmd *cobra.Command, age time.Duration, limit int, dry bool) error {
	done, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.Pruned, error) {
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
		Use: "converge", Short: "Exchange what is known with every connected member, now",
		Long: `Let this node exchange what it knows of the members with every one that it is
connected with, and tell who knows the same then. It happens by itself all the time;
this is for somebody who does not want to wait. It ends with 1 when a member did not
answer.`,
		Example: "  balefire-node mesh converge", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop := w.showWaiting("asking the members")
			done, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.Convergence, error) { return c.Converge(ctx) })
			stop()
			if err != nil {
				return err
			}
			err = w.show(view{value: done, human: func(p *printer) {
				p.line("%d of %d know the same, after %s", len(done.Agree), done.Asked, formatSeconds(done.Took))
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
