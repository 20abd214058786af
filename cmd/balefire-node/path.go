package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

func pathCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "path PEER", Short: "Explain how a peer is reached",
		Long: `Show every path to a peer that this node knows, with its measurements and its
score; which one is used, and why; and the results of hole punching.`,
		Example: "  balefire-node path laptop\n  balefire-node path laptop -o wide", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.PathReport, error) { return c.Path(ctx, args[0]) })
			if err != nil {
				return err
			}
			return w.show(view{value: r, human: func(p *printer) { tellPath(p, r) }})
		},
	}
}

func tellPath(p *printer, r wire.PathReport) {
	w, state := p.app, "not connected"
	if r.Connected {
		state = "connected"
	}
	p.line("%s  %s  %s", r.Peer, shortID(r.ID), state)
	p.line("because  %s", prose.Line(r.Cause))
	p.line("")
	if len(r.Candidates) == 0 {
		p.line("no path to it is being tried")
	} else {
		t := newTable(col(""), col("WAY"), col("STATE"), num("RTT"), num("LOSS"), num("RATE"), num("SCORE"), num("SINCE"), col("ADDRESS"), wideOnly("TERMS"))
		for _, c := range r.Candidates {
			t.row(candidateRow(w, c)...)
		}
		p.table(t)
	}
	if len(r.Punches) == 0 {
		return
	}
	p.line("")
	t := newTable(num("AGO"), col("HOLE PUNCH"), num("TOOK"))
	for _, h := range r.Punches {
		result := "failed: " + h.Detail
		if h.OK {
			result = "direct: " + h.Detail
		}
		t.row(w.ago(&h.Time), result, formatSeconds(h.Took))
	}
	p.table(t)
}

func candidateRow(w *app, c wire.PathCandidate) []any {
	addr := c.Addr
	if !w.wide() {
		addr = truncate(addr, 64)
	}
	used, way, state := " ", c.Network+" direct", "known"
	if c.InUse {
		used = "*"
	}
	if c.Relay != "" {
		way = "relay " + c.Relay
	}
	rtt, loss, rate, score := formatSeconds(c.RTT), "", "", ""
	if c.Connected {
		state, loss = "connected", percent(c.Loss)
	}
	if c.Rate > 0 {
		rate = formatSize(c.Rate) + "/s"
	}
	if c.Score != 0 {
		score = formatScore(c.Score)
	}
	return []any{used, way, state, rtt, loss, rate, score, w.ago(c.Since), addr, strings.Join(c.Terms, ", ")}
}
