package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func statusCommand(w *app) *cobra.Command {
	c := &cobra.Command{
		Use: "status", Short: "Show the status of this node",
		Long:    "Show this node, its problems, the mesh, its peers, its tasks by state, and\nthe mail that waits for other nodes.",
		Example: "  balefire-node status\n  balefire-node status -o json", Args: thisNodeOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := call(cmd, w, getStatus)
			if err != nil {
				return err
			}
			return w.show(view{value: s, human: func(p *printer) { printStatus(p, s) }})
		},
	}
	w.addWatch(c)
	return c
}

// thisNodeOnly checks that no other node is named.
func thisNodeOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s shows this node: for another one use balefire-node peers show %.40s", cmd.CommandPath(), args[0])
	}
	return nil
}

// A statusReport is the status of a node with a summary of the mesh.
type statusReport struct {
	wire.Status
	Summary *wire.MeshSummary `json:"summary,omitempty"`
}

func getStatus(ctx context.Context, c *client.Client) (statusReport, error) {
	s, err := c.Status(ctx)
	if err != nil {
		return statusReport{}, err
	}
	m, err := c.MeshSummary(ctx)
	if errors.Is(err, wire.ErrNotFound) { // the node is older than this program
		return statusReport{Status: s}, nil
	}
	return statusReport{Status: s, Summary: &m}, err
}

func printStatus(p *printer, s statusReport) {
	w := p.app
	p.line("%s  %s  running %s  %s  store %s %s", s.Name, shortID(s.ID), w.ago(&s.Started), s.Version, s.Store.Engine, formatSize(s.Store.DiskBytes))
	if p.wide {
		p.line("id %s\nmesh %s", s.ID, s.Mesh)
		if id, err := proto.ParsePeerID(s.ID); err == nil {
			p.line("code %s, for machines that join on the LAN", pairing.JoinCode(id))
		}
		for _, a := range s.Addrs {
			p.line("listens on %s", a)
		}
	}
	printWarnings(p, s)
	p.line("")
	if len(s.Peers) == 0 {
		p.line("no peers yet: create a ticket with balefire-node invite")
	} else {
		p.table(peerTable(w, s.Peers))
	}
	p.line("")
	t := newTable(col("TASKS"), num("PENDING"), num("ACCEPTED"), num("RUNNING"), num("RETRYING"), num("OTHER"))
	for _, side := range []struct {
		name   string
		counts map[string]int
	}{{"sent from here", s.Outbox}, {"accepted", s.Inbox}} {
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
	p.line("%s", fmt.Sprintf("%d of %d slots busy, %d results to deliver", s.Busy, s.Slots, s.Results))
	if s.Mail != nil && s.Mail.Outgoing > 0 {
		p.line("mail for other nodes: %d waiting (balefire-node mail outgoing)", s.Mail.Outgoing)
	}
	if s.Mail != nil && s.Mail.RemoteReaders > 0 {
		p.line("readers on other nodes: %d sessions (balefire-node mailbox show NAME)", s.Mail.RemoteReaders)
	}
}

// printWarnings prints the problems that need attention, each once, and then the mesh in
// one line.
func printWarnings(p *printer, s statusReport) {
	warnings := s.Warnings
	if s.Summary != nil {
		warnings = append(slices.Clip(warnings), s.Summary.Risks...)
	}
	var lines []string
	for _, n := range warnings {
		if line := prose.Line(n); !slices.Contains(lines, line) {
			lines = append(lines, line)
			p.line("! %s", line)
		}
	}
	if s.Summary == nil {
		return
	}
	if word := nodeProblem(*s.Summary); word != "" {
		p.line("! this node %s", word)
	}
	p.line("")
	p.line("members %s   paths %s", formatMembers(*s.Summary), formatPaths(*s.Summary))
}
