package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

func peersCommand(w *app) *cobra.Command {
	c := group("peers", "Show and manage the other machines of the mesh",
		"Show the other machines that this node knows, and block, allow or forget them.\nA peer is given by its name or its id.",
		peersList(w), peersShow(w), peersPending(w), peersAccept(w), peersName(w),
		peerAction(w, "block", "Refuse all connections and tasks of a peer", "blocked: nothing is sent to it or accepted from it", false, (*client.Client).Block),
		peerAction(w, "unblock", "Allow a blocked peer again", "allowed again", false, (*client.Client).Unblock),
		peerAction(w, "forget", "Remove a peer from the address book", "forgotten; it is added again when another member introduces it", true, (*client.Client).Forget),
		peersRevoke(w))
	c.Example = "  balefire-node peers\n  balefire-node peers show laptop\n  balefire-node peers pending"
	return c
}

func peersList(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the peers",
		Long: `List the peers with their path, round-trip time, packet loss, number of queued
tasks and the time they were last heard. STATE is what this node sees itself,
CONNECTED or OFFLINE, unless the members know more: ALIVE means that other
members reach the peer, SUSPECT that it does not answer, DEAD that no member
reaches it, LEFT that it said goodbye.`,
		Example: "  balefire-node peers ls -o wide", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			peers, err := call(cmd, w, func(ctx context.Context, c *client.Client) ([]wire.Peer, error) { return c.Peers(ctx) })
			if err != nil {
				return err
			}
			return w.show(view{value: wire.Page[wire.Peer]{Items: peers}, lines: lines(peers), human: func(p *printer) { p.table(peerTable(w, peers)) }})
		},
	}
}

func peerTable(w *app, peers []wire.Peer) *table {
	t := newTable(col("PEER"), col("STATE"), col("PATH"), num("RTT"), num("LOSS"), num("QUEUED"), num("LAST SEEN"),
		wideOnly("MEMBER"), wideOnly("ADDRESS"), wideOnly("ROLES"), wideOnly("ID"))
	for _, p := range peers {
		loss := ""
		if p.State == stateConnected {
			loss = percent(p.Loss)
		}
		t.row(peerName(p), peerState(p)+clockMark(p), truncate(formatPath(p), 48), formatSeconds(p.RTT), loss, p.Queued, w.ago(p.LastSeen),
			p.Liveness, p.Path, strings.Join(p.Roles, ","), p.ID)
	}
	return t
}

// stateConnected is the state of a connected peer.
const stateConnected = "CONNECTED"

// peerName returns the name of a peer on this node, and its name in the mesh if that
// differs.
func peerName(p wire.Peer) string {
	if p.Alias == "" || p.Alias == p.Name {
		return p.Name
	}
	return p.Alias + " (" + p.Name + ")"
}

// peerState returns what this node itself sees of a peer, unless the members know more.
func peerState(p wire.Peer) string {
	switch {
	case p.State != stateConnected && p.State != "OFFLINE", p.Liveness == "", p.Liveness == "UNKNOWN":
	case p.State == stateConnected && p.Liveness == "ALIVE":
	default:
		return p.Liveness
	}
	return p.State
}

// clockMark tells how far the clock of a peer is from this node's, if that matters.
func clockMark(p wire.Peer) string {
	if p.Clock == 0 {
		return ""
	}
	sign := ""
	if p.Clock > 0 {
		sign = "+"
	}
	return " (clock " + sign + time.Duration(p.Clock*float64(time.Second)).String() + ")"
}

// formatPath describes in two words how a peer is reached.
func formatPath(p wire.Peer) string {
	network, _, _ := strings.Cut(p.Path, " ")
	switch {
	case p.Relay != "":
		return "relay " + p.Relay
	case p.Direct:
		return strings.TrimSpace(network + " direct")
	}
	return p.Path
}

func peersShow(w *app) *cobra.Command {
	return &cobra.Command{
		Use: "show PEER", Short: "Show one peer",
		Example: "  balefire-node peers show laptop", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			peer, err := call(cmd, w, func(ctx context.Context, c *client.Client) (wire.Peer, error) { return c.Peer(ctx, args[0]) })
			if err != nil {
				return err
			}
			return w.show(view{value: peer, human: func(p *printer) {
				p.line("%s  %s  %s", peerName(peer), peerState(peer), peer.ID)
				p.line("roles        %s", strings.Join(peer.Roles, ", "))
				if peer.Path != "" {
					p.line("path         %s  %s  rtt %s  loss %s", formatPath(peer), peer.Path, orDash(formatSeconds(peer.RTT)), percent(peer.Loss))
				}
				if peer.Liveness != "" {
					p.line("members say  %s", peer.Liveness)
				}
				p.line("queued       %d", peer.Queued)
				if peer.LastSeen != nil {
					p.line("last seen    %s ago", w.ago(peer.LastSeen))
				}
				if peer.CertUntil != nil {
					p.line("certificate  until %s", formatTime(*peer.CertUntil))
				}
				for _, a := range peer.Addrs {
					p.line("address      %s", a)
				}
			}})
		},
	}
}

// peerAction returns a command that changes how this node treats one peer.
func peerAction(w *app, verb, doc, done string, final bool, act func(*client.Client, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " PEER", Short: doc,
		Example: "  balefire-node peers " + verb + " laptop", Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if final {
				if err := w.confirm(verb + " " + args[0]); err != nil {
					return err
				}
			}
			if err := do(cmd, w, func(ctx context.Context, c *client.Client) error { return act(c, ctx, args[0]) }); err != nil {
				return err
			}
			w.infof("%s is %s", args[0], done)
			return nil
		},
	}
}

// wide reports whether the wide table is requested.
func (w *app) wide() bool { return w.flags.output == formatWide }
