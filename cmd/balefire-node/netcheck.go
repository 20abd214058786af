package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

func netcheckCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "netcheck", Short: "Show what this machine's network allows",
		Long: `Show what the node learned about its network during normal operation: first what
it means and what to do about it, then the observations. No server outside the
mesh is asked.`,
		Example: "  balefire-node netcheck\n  balefire-node netcheck -o json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.NetCheck, error) { return c.NetCheck(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: n, human: func(p *printer) { printNet(p, n) }})
		},
	}
}

func printNet(p *printer, n wire.NetCheck) {
	for _, f := range n.Findings {
		p.line("! %s", prose.Line(f))
	}
	if len(n.Findings) == 0 {
		p.line("no problems found")
	}
	p.line("")
	p.line("QUIC (UDP)    %s", connectionSeen(n.UDP))
	p.line("TCP           %s", connectionSeen(n.TCP))
	p.line("IPv6          %s", yesNo(n.IPv6))
	p.line("NAT           %s", natTexts(n.NAT))
	for _, o := range n.Observed {
		p.line("seen at       %s  by %s", o.Addr, strings.Join(o.By, ", "))
	}
	if n.PortMap != "" {
		p.line("port mapping  %s", n.PortMap)
	}
	if n.Public != "" {
		p.line("from outside  %s", n.Public)
	}
	printRelays(p, n)
	p.line("mDNS          %s%s", cmp.Or(n.MDNS, "off"), nonMembers(n.Strangers))
	if n.DHT < 0 {
		p.line("DHT           off")
	} else {
		p.line("DHT           %d members in the table", n.DHT)
	}
	p.line("gossip        %d members on the topic", n.Gossip)
	for _, a := range n.Announced {
		p.line("announced     %s", a)
	}
	if p.wide {
		for _, a := range n.Listen {
			p.line("listens on    %s", a)
		}
	}
}

func printRelays(p *printer, n wire.NetCheck) {
	for _, r := range n.Reservations {
		p.line("relay         %s  reserved for %s  score %s", r.Relay, formatDuration(r.Until.Sub(p.app.clock.Now())), formatScore(r.Score))
	}
	if len(n.Reservations) == 0 {
		p.line("relay         none reserved")
	}
	if r := n.Relaying; r != nil {
		p.line("relays        %d reservations, %d circuits, %s carried for others", r.Reservations, r.Circuits, formatSize(r.Bytes))
	}
}

// connectionSeen reports whether a kind of connection is in use. If none is, that says
// little about the network unless a peer was dialed that way.
func connectionSeen(b bool) string {
	if b {
		return "works"
	}
	return "no connection uses it now"
}

func natTexts(kind string) string {
	switch kind {
	case "none":
		return "none: others reach this machine at its own address"
	case "cone":
		return "cone: hole punching is likely to succeed"
	case "symmetric":
		return "symmetric: a different port for each peer, so hole punching mostly fails and a relay is used"
	}
	return "unknown: too few peers have reported this machine's address"
}

func nonMembers(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("  %d on the LAN that are not members (balefire-node peers pending)", n)
}
