package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/cmd/balefire-node/prose"
	"github.com/balefire/balefire/wire"
)

const (
	pingCount   = 4               // without -c
	pingTimeout = 5 * time.Second // for one reply
)

func pingCommand(w *app) *cobra.Command {
	g := pinger{w: w, interval: time.Second}
	c := &cobra.Command{
		Use: "ping PEER", Short: "Ping a peer and show the path that the reply takes",
		Long: `Ping a peer repeatedly and print the path and the round-trip time of each reply.
The reply comes from the node there, not only from its machine. The exit code is
0 when a reply came, else 6.

With --until-direct it continues until a reply comes without a relay, which
takes a moment when both sides are behind NATs, and exits with 0 then. It exits
with 6 when --timeout or -c is reached before: path PEER explains why.`,
		Example:     "  balefire-node ping laptop\n  balefire-node ping laptop --until-direct --timeout 30s",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: exactly(1, "the name or id of a peer"), ValidArgsFunction: w.completePeer,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("count") && !g.direct {
				g.count = pingCount
			}
			return g.run(cmd, args[0])
		},
	}
	c.Flags().VarP(natural(&g.count), "count", "c", "number of pings; 0: until interrupted (default 4, with --until-direct 0)")
	c.Flags().Var(spanValue{&g.interval}, "interval", "pause between two pings")
	c.Flags().BoolVar(&g.direct, "until-direct", false, "continue until the path is direct")
	return c
}

// A pinger pings one peer.
type pinger struct {
	w        *app
	count    int // 0: no limit
	interval time.Duration
	direct   bool // stop at the first direct reply

	peer   string
	client *client.Client
	pongs  collector[wire.Pong]
	start  time.Duration // on the monotonic clock
}

func (g *pinger) run(cmd *cobra.Command, peer string) (err error) {
	ctx, cancel := g.w.withTimeout(cmd.Context())
	defer cancel()
	if g.client, err = g.w.node(); err != nil {
		return err
	}
	g.peer, g.pongs.w, g.start = peer, g.w, g.w.clock.Mono()
	return g.pongs.end(g.loop(ctx))
}

// loop pings until the limit or the goal is reached.
func (g *pinger) loop(ctx context.Context) error {
	for asked := 0; g.count == 0 || asked < g.count; asked++ {
		if asked > 0 && !clock.Pause(ctx, g.interval) {
			break
		}
		pong, err := g.once(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && isPermanent(err):
			return err
		case err != nil:
			why := strings.TrimPrefix(prose.Plain(err.Error()), wire.ErrRefused.Error()+": ")
			g.w.infof("no pong from %s: %s", g.peer, sanitize(strings.TrimPrefix(why, g.peer+": ")))
		default:
			if err := g.pongs.add(pong, func(p *printer) { p.line("%s", pongLine(pong)) }); err != nil {
				return err
			}
			if g.direct && pong.Direct {
				g.w.infof("direct path after %s", formatDuration(g.w.clock.Mono()-g.start))
				return nil
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return g.result(ctx)
}

// once sends one ping, and prints that it waits when the reply takes long.
func (g *pinger) once(ctx context.Context) (wire.Pong, error) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	defer g.w.showWaiting("waiting for a pong from " + g.peer)()
	return g.client.Ping(ctx, g.peer)
}

// result returns the outcome of a run that did not reach its goal.
func (g *pinger) result(ctx context.Context) error {
	hint := "see why: balefire-node path " + g.peer
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case len(g.pongs.items) == 0:
		return &codedError{exitTimeout, fmt.Errorf("no pong from %s in %s; %s", g.peer, formatDuration(g.w.clock.Mono()-g.start), hint)}
	case g.direct:
		last := g.pongs.items[len(g.pongs.items)-1]
		return &codedError{exitTimeout, fmt.Errorf("no direct path to %s in %s: it is reached through %s; %s", g.peer, formatDuration(g.w.clock.Mono()-g.start), cmp.Or(last.Relay, "a relay"), hint)}
	}
	return nil
}

func pongLine(p wire.Pong) string {
	if p.Direct {
		return fmt.Sprintf("pong from %s direct %s  rtt %s", p.Peer, hostPort(p.Path), formatSeconds(p.RTT))
	}
	return fmt.Sprintf("pong from %s via relay %s  rtt %s", p.Peer, orDash(p.Relay), formatSeconds(p.RTT))
}

// hostPort formats a network and a plain multiaddr as a usual address: quic 192.0.2.1:4001.
// Anything else is returned unchanged.
func hostPort(path string) string {
	network, addr, _ := strings.Cut(path, " ")
	parts := strings.Split(addr, "/") // "", ip4, 192.0.2.1, udp, 4001, quic-v1
	if len(parts) < 5 || len(parts) > 6 || parts[0] != "" || parts[1] != "ip4" && parts[1] != "ip6" {
		return path
	}
	return network + " " + net.JoinHostPort(parts[2], parts[4])
}
