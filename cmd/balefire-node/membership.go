package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func peersPending(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "pending", Short: "List the machines on the LAN that ask to join",
		Long: `List the machines on the local network that ask to become members, newest first,
with the source address of each request. Each machine shows a code on its own
screen: accept it only if the code is the same as here.`,
		Example: "  balefire-node peers pending", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			requests, err := call(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.JoinRequest, error) { return c.JoinRequests(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.JoinRequest]{Items: requests}, lines: lines(requests), human: func(p *printer) {
				if len(requests) == 0 {
					p.line("no machine asks to join")
					return
				}
				t := newTable(col("CODE"), col("NAME"), num("SINCE"), num("ASKED"), col("FROM"), wideOnly("ADDRESSES"), wideOnly("ID"))
				for _, v := range requests {
					t.row(v.Code, v.Name, w.ago(&v.Since), w.ago(&v.Last), v.From, strings.Join(v.Addrs, " "), v.ID)
				}
				p.table(t)
			}})
		},
	}
}

func peersAccept(w *app) *cobra.Command {
	var o wire.AcceptOptions
	c := &cobra.Command{
		Use: "accept CODE", Short: "Accept a machine that asks to join",
		Long: `Accept a machine on the local network as a member. Compare its code with the one
on its own screen: names are not accepted here, because any machine can claim
any name. One that asks for another name than peers pending has shown is not
accepted without --name.`,
		Example: "  balefire-node peers accept K7QM-2ZPA-77WD\n  balefire-node peers accept K7QM-2ZPA-77WD --name field-10 --roles work",
		Args:    exactly(1, "the code of a machine, as shown by peers pending and on its own screen"), ValidArgsFunction: w.completeJoinRequest,
		RunE: func(cmd *cobra.Command, args []string) error {
			peer, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Peer, error) { return c.Accept(ctx, args[0], o) })
			if err != nil {
				return err
			}
			return w.show(view{value: peer, human: func(p *printer) {
				p.line("%s is a member now, with the roles %s", peer.Name, strings.Join(peer.Roles, ", "))
			}})
		},
	}
	c.Flags().StringVar(&o.Name, "name", "", "its name in the mesh (default: the name it asked for)")
	c.Flags().StringSliceVar(&o.Roles, "roles", nil, "its roles (default send, work, relay)")
	return c
}

func peersName(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "name PEER NAME", Short: "Give a peer another name on this node",
		Long: `Give a peer a name that is used on this machine only. Its name in the mesh does
not change and can still be used. An empty name removes it.`,
		Example: "  balefire-node peers name field-07 boat\n  balefire-node peers name boat ''", Args: exactly(2, "the name or id of a peer, and its name on this node"),
		ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.Rename(ctx, args[0], args[1]) }); err != nil {
				return err
			}
			if args[1] == "" {
				w.infof("%s has only its own name again", args[0])
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
		Use: "revoke PEER --reason TEXT", Short: "Revoke a membership permanently, in the whole mesh",
		Long: `Revoke the membership of a machine, for example when it was stolen. Every member
learns this and refuses that key from then on. A revocation cannot be undone;
the machine can join again only with a new key. This node needs the root key or
the role admin. To keep a peer away from this one machine, use peers block.`,
		Example: "  balefire-node peers revoke laptop --reason 'stolen on the train'", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage("--reason is missing: it is shown to everyone who asks why")
			}
			if err := w.confirm("revoke " + args[0]); err != nil {
				return err
			}
			if err := do(cmd, w, func(ctx context.Context, c *client.Client) error { return c.Revoke(ctx, args[0], reason) }); err != nil {
				return err
			}
			w.infof("%s is no longer a member", args[0])
			return nil
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "reason, for the audit log of every member")
	return c
}
