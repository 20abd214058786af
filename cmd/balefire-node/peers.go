package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func peersCommand(w *world) *cobra.Command {
	return group("peers", "Look at the other machines of the mesh",
		"Look at the other machines that this node knows, and decide about them here.\nA peer is named by its name or its id.",
		peersList(w), peersShow(w),
		peersAct(w, "block", "Refuse everything from a peer and send it nothing", "blocked: nothing goes to it or comes from it", false, (*client.Client).Block),
		peersAct(w, "unblock", "Allow a blocked peer again", "allowed again", false, (*client.Client).Unblock),
		peersAct(w, "forget", "Remove what is known about a peer", "forgotten; it comes back when it is introduced again", true, (*client.Client).Forget))
}

func peersList(w *world) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the peers",
		Example: "  balefire-node peers ls -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := w.within(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			peers, err := c.Peers(ctx)
			if err != nil {
				return err
			}
			return w.show(view{value: node.Page[node.Peer]{Items: peers}, lines: lines(peers), human: func(p *paper) { p.table(peerTable(w, peers)) }})
		},
	}
}

func peerTable(w *world, peers []node.Peer) *table {
	t := newTable(col("PEER"), col("STATE"), col("PATH"), num("RTT"), num("QUEUED"), num("LAST SEEN"), wideOnly("ROLES"), wideOnly("ID"))
	for _, p := range peers {
		path := p.Path
		if !w.wide() {
			path = cut(path, 48)
		}
		t.row(p.Name, p.State, path, p.RTT, p.Queued, w.ago(p.LastSeen), strings.Join(p.Roles, ","), p.ID)
	}
	return t
}

func peersShow(w *world) *cobra.Command {
	return &cobra.Command{
		Use: "show PEER", Short: "Show one peer",
		Example: "  balefire-node peers show laptop", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := w.within(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			peer, err := c.Peer(ctx, args[0])
			if err != nil {
				return err
			}
			return w.show(view{value: peer, human: func(p *paper) {
				p.line("%s  %s  %s", peer.Name, peer.State, peer.ID)
				p.line("roles        %s", strings.Join(peer.Roles, ", "))
				if peer.Path != "" {
					p.line("path         %s  rtt %s", peer.Path, peer.RTT)
				}
				p.line("queued       %d", peer.Queued)
				if peer.LastSeen != nil {
					p.line("last seen    %s ago", w.ago(peer.LastSeen))
				}
				if peer.CertUntil != nil {
					p.line("certificate  until %s", clockTime(*peer.CertUntil))
				}
				for _, a := range peer.Addrs {
					p.line("address      %s", a)
				}
			}})
		},
	}
}

// peersAct is a command that changes what this node thinks of one peer.
func peersAct(w *world, verb, doc, done string, final bool, act func(*client.Client, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " PEER", Short: doc,
		Example: "  balefire-node peers " + verb + " laptop", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if final {
				if err := w.confirm(verb + " " + args[0]); err != nil {
					return err
				}
			}
			ctx, cancel := w.within(cmd.Context())
			defer cancel()
			c, err := w.node()
			if err != nil {
				return err
			}
			if err := act(c, ctx, args[0]); err != nil {
				return err
			}
			w.say("%s is %s", args[0], done)
			return nil
		},
	}
}

// wide reports whether the widest table is asked for.
func (w *world) wide() bool { return w.flags.output == formatWide }
