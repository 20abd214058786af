package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/proto"
)

func statusCommand(w *world) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show this node at a glance",
		Long:    "Show this node, what is wrong with it, its peers and its tasks by state.",
		Example: "  balefire-node status\n  balefire-node status -o json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := w.within(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			s, err := c.Status(ctx)
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *paper) { tellStatus(p, s) }})
		},
	}
}

func tellStatus(p *paper, s node.Status) {
	w := p.world
	p.line("%s  %s  running %s  %s  store %s %s", s.Name, short(s.ID), w.ago(&s.Started), s.Version, s.Store.Engine, size(s.Store.DiskBytes))
	if p.wide {
		p.line("id %s\nmesh %s", s.ID, s.Mesh)
		for _, a := range s.Addrs {
			p.line("listens on %s", a)
		}
	}
	for _, warning := range s.Warnings {
		p.line("! %s", warning)
	}
	if s.Dead > 0 {
		p.line("! %d dead letters (balefire-node dlq ls)", s.Dead)
	}
	p.line("")
	if len(s.Peers) == 0 {
		p.line("no peers yet: balefire-node invite makes a ticket for one")
	} else {
		p.table(peerTable(w, s.Peers))
	}
	p.line("")
	t := newTable(col("TASKS"), num("PENDING"), num("ACCEPTED"), num("RUNNING"), num("RETRYING"), num("OTHER"))
	for _, side := range []struct {
		name   string
		counts map[string]int
	}{{"sent from here", s.Outbox}, {"taken over", s.Inbox}} {
		other := 0
		for state, n := range side.counts {
			if st, err := proto.ParseTaskState(state); err != nil || !st.Terminal() {
				other += n
			}
		}
		row := []any{side.name}
		for _, state := range []string{"PENDING", "ACCEPTED", "RUNNING", "RETRYING"} {
			row, other = append(row, side.counts[state]), other-side.counts[state]
		}
		t.row(append(row, max(other, 0))...)
	}
	p.table(t)
	p.line("%s", fmt.Sprintf("%d of %d slots busy, %d results on their way home", s.Busy, s.Slots, s.Results))
}
