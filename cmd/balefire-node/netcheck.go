package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func netcheckCommand(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "netcheck", Short: "Show what this machine's network allows",
		Long: `Show what the node found out about its network by working in it: what it means and
what to do about it first, then what was seen. It asks nobody outside the mesh.`,
		Example: "  balefire-node netcheck\n  balefire-node netcheck -o json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.NetCheck, error) { return c.NetCheck(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: n, human: func(p *printer) { printNet(p, n) }})
		},
	}
}

func printNet(p *printer, n node.NetCheck) {
	for _, f := range n.Findings {
		p.line("! %s", f)
	}
	if len(n.Findings) == 0 {
		p.line("nothing is in the way")
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

func printRelays(p *printer, n node.NetCheck) {
	for _, r := range n.Reservations {
		p.line("relay         %s  reserved for %s  score %s", r.Relay, formatDuration(r.Until.Sub(p.world.clock.Now())), formatScore(r.Score))
	}
	if len(n.Reservations) == 0 {
		p.line("relay         none reserved")
	}
	if r := n.Relaying; r != nil {
		p.line("relays        %d reservations, %d circuits, %s carried for others", r.Reservations, r.Circuits, formatSize(r.Bytes))
	}
}

// connectionSeen says whether a kind of connection is there. That there is none says little
// of the network when nobody was dialled that way.
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
		return "cone: hole punching is likely to get through"
	case "symmetric":
		return "symmetric: another port for each peer, so hole punching fails mostly and a relay carries the rest"
	}
	return "unknown: too few peers have told where they see this machine"
}

func nonMembers(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("  %d on the LAN that are no members (balefire-node peers pending)", n)
}
