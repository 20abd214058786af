package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Path explains how a peer is reached: every possible path, and why the current one is
// used.
func (n *Node) Path(ctx context.Context, ref string) (wire.PathReport, error) {
	p, err := n.findOtherPeer(ref)
	if err != nil {
		return wire.PathReport{}, err
	}
	r := n.net.Paths(p.Peer)
	out := wire.PathReport{Peer: p.Label(), ID: p.Peer.String(), Why: r.Why, Candidates: []wire.PathCandidate{}, Punches: []wire.Punch{}}
	for _, c := range r.Paths {
		out.Connected = out.Connected || c.Connected
		out.Candidates = append(out.Candidates, n.candidate(c))
	}
	for _, h := range slices.Backward(r.Punches) {
		result := "direct: " + h.Detail
		if !h.OK {
			result = "failed: " + h.Detail
		}
		out.Punches = append(out.Punches, wire.Punch{Time: h.Time.UTC(), Result: result, Took: seconds(h.Took)})
	}
	if p.Blocked {
		out.Why = p.Label() + " is blocked here: balefire-node peers unblock " + p.Label()
	}
	return out, nil
}

func (n *Node) candidate(c transport.Path) wire.PathCandidate {
	v := wire.PathCandidate{
		Addr: c.Addr, Network: c.Network, Relay: n.peerName(c.Relay), Connected: c.Connected, InUse: c.InUse,
		Loss: max(c.Measured.Loss, 0), Rate: int64(c.Measured.Rate), Score: c.Score.Total,
	}
	if c.Measured.RTT > 0 {
		v.RTT = seconds(c.Measured.RTT)
	}
	if c.Score.Total != 0 {
		v.Terms = []string{
			fmt.Sprintf("bandwidth %.2f", c.Score.Bandwidth), fmt.Sprintf("latency %.2f", c.Score.Latency), fmt.Sprintf("loss -%.2f", c.Score.Loss),
		}
	}
	if c.Connected {
		v.Since = new(n.cfg.Clock.Now().Add(-c.Age).UTC())
	}
	return v
}

// NetCheck reports what this node knows about its own network.
func (n *Node) NetCheck(ctx context.Context) wire.NetCheck {
	r, d := n.net.Reach(), n.net.Discovery()
	c := wire.NetCheck{
		Listen: r.Listen, Announced: slices.DeleteFunc(slices.Clone(r.Addrs), func(a string) bool { return loopback(a) == 1 }), Observed: []wire.Observed{}, NAT: string(r.NAT), UDP: r.UDP, TCP: r.TCP, IPv6: r.IPv6,
		Reservations: []wire.Reservation{}, DHT: d.TablePeers, MDNS: d.LAN, Gossip: d.TopicPeers, Strangers: len(d.Strangers), Findings: []string{},
	}
	if n.cfg.Net.NoDHT {
		c.DHT = -1
	}
	at := map[string]int{}
	for _, o := range r.Observed {
		i, ok := at[o.Addr]
		if !ok {
			i, at[o.Addr] = len(c.Observed), len(c.Observed)
			c.Observed = append(c.Observed, wire.Observed{Addr: o.Addr})
		}
		c.Observed[i].By = append(c.Observed[i].By, n.peerName(o.By))
	}
	for _, x := range r.Reservations {
		c.Reservations = append(c.Reservations, wire.Reservation{Relay: n.peerName(x.Relay), Until: x.Expires.UTC(), Score: x.Score.Total})
	}
	if r.Service.On {
		c.Relaying = &wire.Relaying{Reservations: r.Service.Reservations, Circuits: r.Service.Circuits, Bytes: int64(r.Service.Bytes)}
	}
	switch {
	case len(r.Mapped) > 0:
		c.PortMap = strings.Join(r.Mapped, ", ")
	case n.cfg.Net.PortMap:
		c.PortMap = "requested, but no router answered"
	}
	switch {
	case len(r.Reachable) > 0:
		c.Public = "publicly reachable at " + strings.Join(r.Reachable, ", ")
	case len(r.Unreachable) > 0:
		c.Public = "not publicly reachable at " + strings.Join(r.Unreachable, ", ")
	}
	c.Findings = n.findings(&c, r)
	return c
}

// findings draws conclusions from the facts and suggests what to do.
func (n *Node) findings(c *wire.NetCheck, r transport.Reach) []string {
	found := []string{}
	add := func(format string, a ...any) { found = append(found, fmt.Sprintf(format, a...)) }
	peers, connected := n.net.Peers(), 0
	for _, p := range peers {
		if p.Connected {
			connected++
		}
	}
	switch {
	case len(n.book.List()) == 0:
		add("no peer is known yet: create a ticket for one with balefire-node invite")
	case connected == 0:
		add("no peer is connected: check this machine's network; balefire-node peers shows why each dial failed")
	case !c.UDP:
		add("there is no direct QUIC connection: UDP may be blocked, or all peers are on the LAN, where TCP is preferred")
	}
	relays := n.relays()
	if r.NAT == transport.NATSymmetric {
		add("this node is behind a symmetric NAT: hole punching fails, so peers reach it through relays; a forwarded port (net.announce) or net.port_map would allow direct connections")
	}
	switch {
	case n.cfg.Net.Relays < 0:
		add("net.relays is 0: behind a NAT, no peer can open a connection to this node")
	case len(relays) == 0 && len(n.book.List()) > 0:
		add("no other member is a relay: give a reachable one the role relay, so that nodes behind NATs can be reached")
	case len(c.Reservations) == 0 && connected > 0:
		add("%d members are relays, but this node has no reservation at any: peers behind a NAT cannot open a connection to it", len(relays))
	}
	if c.DHT == 0 && connected > 0 {
		add("the hash table is empty: no connected member takes part in it (net.dht)")
	}
	if s := n.gossip.Summary(); s.Isolated {
		add("this node is isolated: it %s, and claims nothing new", n.isolationReason())
	} else if s.SelfPaused {
		add("this node's own probes fail (local health %d of 8): it claims nothing new until they succeed", s.Health)
	}
	return found
}
