package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

func peersPending(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "pending", Short: "List the machines on the LAN that ask to be let in",
		Long: `List the machines on the local network that ask to become members, the newest
first, with the address that each asks from. Each shows a code on its own screen:
let it in only when it is the same as here.`,
		Example: "  balefire-node peers pending", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wishes, err := call(cmd, w, func(ctx context.Context, c *client.Client) ([]node.JoinRequest, error) { return c.Wishes(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: node.Page[node.JoinRequest]{Items: wishes}, lines: lines(wishes), human: func(p *printer) {
				if len(wishes) == 0 {
					p.line("nobody asks to be let in")
					return
				}
				t := newTable(col("CODE"), col("NAME"), num("SINCE"), num("ASKED"), col("FROM"), wideOnly("ADDRESSES"), wideOnly("ID"))
				for _, v := range wishes {
					t.row(v.Code, v.Name, w.ago(&v.Since), w.ago(&v.Last), v.From, strings.Join(v.Addrs, " "), v.ID)
				}
				p.table(t)
			}})
		},
	}
}

func peersAccept(w *app) *cobra.Command {
	var o node.AcceptOptions
	c := &cobra.Command{
		Use: "accept CODE", Short: "Let a machine in that asks for it",
		Long: `Make a machine a member that asked for it on the local network. Compare its code
with the one on its own screen: a name can be anybody's, and is not taken here.`,
		Example: "  balefire-node peers accept K7QM-2ZPA-77WD\n  balefire-node peers accept K7QM-2ZPA-77WD --name field-10 --roles work",
		Args:    exactly(1, "the code of a machine, as peers pending and its own screen show it"), ValidArgsFunction: w.completeJoinRequest,
		RunE: func(cmd *cobra.Command, args []string) error {
			peer, err := call(cmd, w, func(ctx context.Context, c *client.Client) (node.Peer, error) { return c.Accept(ctx, args[0], o) })
			if err != nil {
				return err
			}
			return w.show(view{value: peer, human: func(p *printer) {
				p.line("%s is a member now, with the roles %s", peer.Name, strings.Join(peer.Roles, ", "))
			}})
		},
	}
	c.Flags().StringVar(&o.Name, "name", "", "name that it gets (default: its own wish)")
	c.Flags().StringSliceVar(&o.Roles, "roles", nil, "its roles (default send, work, relay)")
	return c
}

func peersName(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "name PEER NAME", Short: "Call a peer by another name here",
		Long: `Give a peer a name that counts on this machine alone; its name in the mesh stays
what it is, and leads to it still. An empty name takes it away.`,
		Example: "  balefire-node peers name field-07 boat\n  balefire-node peers name boat ''", Args: exactly(2, "the name or id of a peer, and what to call it here"),
		ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.Rename(ctx, args[0], args[1]) }); err != nil {
				return err
			}
			if args[1] == "" {
				w.infof("%s goes by its own name again", args[0])
				return nil
			}
			w.infof("%s is called %s here", args[0], args[1])
			return nil
		},
	}
}

func peersRevoke(w *app) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "revoke PEER --reason TEXT", Short: "End a membership, in the whole mesh and for good",
		Long: `Take a machine's membership away, as when it was stolen: every member learns it
and refuses that key from then on. It cannot be taken back; the machine can join
again with a new key only. This node needs the root key or the role admin. To
keep a peer out of this one machine, block it.`,
		Example: "  balefire-node peers revoke laptop --reason 'stolen on the train'", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("--reason is missing: everybody who asks why reads it")
			}
			if err := w.confirm("revoke " + args[0]); err != nil {
				return err
			}
			if err := do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.Revoke(ctx, args[0], reason) }); err != nil {
				return err
			}
			w.infof("%s is no member any more", args[0])
			return nil
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit of every member")
	return c
}
