package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func mailOutgoing(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "outgoing", Short: "List what waits here for boxes on other nodes",
		Long: `List the boxes on other nodes for which mail waits here, and why the node of a box
took no more when it was last asked. If nothing is said, its mail is on its way, or
there is no path to the node: see balefire-node why NODE.`,
		Example: "  balefire-node mail outgoing\n  balefire-node mail outgoing -o json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := callMail(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.MailSpool, error) { return c.Outgoing(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.MailSpool]{Items: all}, lines: lines(all), human: func(p *printer) { p.table(spoolTable(p, all)) }})
		},
	}
}

func spoolTable(p *printer, all []wire.MailSpool) *table {
	w := p.app
	t := newTable(col("BOX"), col("HOME"), num("MAILS"), num("SIZE"), num("OLDEST"), col("CLASS"), col("WHY"), num("ASKED IN"), wideOnly("HOME ID"))
	for _, s := range all {
		var stop wire.MailStop // the newest
		why, next := "", ""
		if len(s.Stops) > 0 {
			stop = s.Stops[0]
			why, next = stop.Code, formatDuration(stop.Until.Sub(w.clock.Now()))
		}
		if stop.Detail != "" {
			why += ": " + p.truncate(sanitizeLine(stop.Detail), 60)
		}
		t.row(s.Box, s.Home, s.Mails, formatSize(s.Bytes), w.ago(s.Oldest), stop.Class, why, next, s.HomeID)
	}
	return t
}
