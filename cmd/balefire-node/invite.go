package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/wire"
)

func inviteCommand(w *app) *cobra.Command {
	var o wire.InviteOptions
	var ttl string
	var qr bool
	c := &cobra.Command{
		Use: "invite", Short: "Create a ticket that lets one machine join",
		Long: `Create a ticket. It admits one node, once, until it expires. The joining machine
must be able to reach this one. The ticket is a secret: the first machine that
uses it becomes a member.`,
		Example: `  balefire-node invite --name field-10 --ttl 24h --qr
  balefire-node invite --roles work | ssh field-10 balefire-node join -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.TTL, err = parseSpan("ttl", ttl); err != nil {
				return err
			}
			if time.Duration(o.TTL) > pairing.LongestTicket {
				return usage("--ttl %s: a ticket is valid for at most %s", ttl, wire.Duration(pairing.LongestTicket))
			}
			return do(cmd, w, func(ctx context.Context, c *client.Client) error {
				inv, err := c.Invite(ctx, o)
				if err != nil {
					return err
				}
				if w.humanOutput() {
					w.infof("valid until %s, for one machine. On that machine:\n  balefire-node join -      then paste the ticket", formatTime(inv.Expires))
				}
				for _, n := range inv.Warnings {
					w.infof("! %s", prose.Line(n))
				}
				return w.show(view{value: inv, human: func(p *printer) {
					p.line("%s", inv.Ticket)
					if qr {
						p.line("%s", inv.QR)
					}
				}})
			})
		},
	}
	f := c.Flags()
	f.StringVar(&o.Name, "name", "", "name of the new node (default: the name it asks for)")
	f.StringVar(&ttl, "ttl", "1h", "how long the ticket is valid, at most 30d")
	f.StringSliceVar(&o.Roles, "roles", nil, "roles of the new node (default send, work, relay)")
	f.BoolVar(&qr, "qr", false, "also show the ticket as a QR code")
	return c
}

// formatTime formats a time for people.
func formatTime(t time.Time) string { return t.Local().Format("2006-01-02 15:04 MST") }
