// Package transporttest provides a simulated mesh: real transports with real libp2p and
// QUIC over a wire that a test can slow down, make lossy, cut and heal at any time.
//
//	node ─ libp2p ─ QUIC ─ wire ─┐   latency, rate: simnet
//	node ─ libp2p ─ QUIC ─ wire ─┼── loss, cuts, partitions: here
//	node ─ libp2p ─ QUIC ─ wire ─┘
//
// Inside a testing/synctest bubble time is virtual, so hours pass in seconds. Everything
// that uses the network must be closed before the bubble ends; [Mesh] closes the network
// itself by t.Cleanup of the bubble's t.
package transporttest

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/marcopolo/simnet"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/transport"
)

// port is the port of every simulated node.
const port = 4001

// A Link describes the link between any two nodes. The zero value is fast and lossless.
type Link struct {
	Latency time.Duration // one way
	Jitter  time.Duration // maximum additional latency, random per packet
	Mbps    float64       // of each node's uplink and downlink; default 1000
	Loss    float64       // share of packets lost, 0 to 1
	MTU     int           // larger UDP payloads are silently dropped; 0: no limit
	Seed    uint64        // of loss and jitter
	OneIP   bool          // all nodes share one address, with their own ports
}

// A NodeLink describes the link between one node and the network, in addition to the Link
// of all nodes.
type NodeLink struct{ In, Out Direction }

// A Direction is one direction of a NodeLink, as its node sees it.
type Direction struct {
	Latency time.Duration // one way
	Mbps    float64       // default that of the Link
	Queue   int           // bytes that can wait at this rate, further packets are dropped; 0: fair queues, which drop what waits too long
	Loss    float64       // share of packets lost, 0 to 1
	MTU     int           // larger UDP payloads are silently dropped; 0: no limit
}

// Both returns a link that is the same in both directions.
func Both(d Direction) NodeLink { return NodeLink{d, d} }

// A Network is the simulated wire. Its methods are safe for concurrent use.
type Network struct {
	sim *simnet.Simnet

	mu           sync.Mutex
	link         Link
	rng          *rand.Rand
	group        map[int]int              // node → side of a partition; default 0
	cuts         map[[2]int]bool          // one-way, from and to
	down         map[int]bool             // nodes without any network
	nats         map[int]*nat             // nodes behind a NAT
	nets         map[int]byte             // changes of a node's address
	wires        map[int]*wire            // the latest socket of each node
	nodeLoss     map[int]float64          // additional loss of single nodes, both ways
	nodeLinks    map[int]NodeLink         // of single nodes
	extraLatency map[[2]int]time.Duration // additional latency between two nodes, lower one first
	dropEvery    int                      // drop one of this many packets from one node to another; 0: none
	sinceDrop    map[[2]int]int           // packets since the last one dropped by dropEvery
	held         map[int][]func()
	busy         map[side]time.Time // when all that is in a queue is sent
	stats        Stats
}

// Stats counts packets.
type Stats struct {
	Sent    int   // passed to the wire
	Bytes   int64 // of these, without UDP and IP headers
	Dropped int   // of these, lost or cut off
}

// Mesh starts a network with this link between all its nodes, numbered from 0.
func Mesh(t testing.TB, link Link) *Network {
	t.Helper()
	n := &Network{link: link, rng: rand.New(rand.NewPCG(link.Seed, 1)), group: map[int]int{}, cuts: map[[2]int]bool{}, down: map[int]bool{}, nats: map[int]*nat{}, nets: map[int]byte{}, wires: map[int]*wire{},
		nodeLoss: map[int]float64{}, nodeLinks: map[int]NodeLink{}, extraLatency: map[[2]int]time.Duration{}, held: map[int][]func(){}, sinceDrop: map[[2]int]int{}, busy: map[side]time.Time{}}
	n.sim = &simnet.Simnet{Logger: slog.New(slog.DiscardHandler), LatencyFunc: func(p *simnet.Packet) time.Duration {
		n.mu.Lock()
		defer n.mu.Unlock()
		from, to := n.nodeAt(p.From), n.nodeAt(p.To)
		late := n.link.Latency + n.extraLatency[pair(from, to)] + n.nodeLinks[from].Out.Latency + n.nodeLinks[to].In.Latency
		if n.link.Jitter > 0 {
			late += time.Duration(n.rng.Int64N(int64(n.link.Jitter)))
		}
		return late + variation(time.Now())
	}}
	n.sim.Start()
	t.Cleanup(n.Close)
	return n
}

// variation returns what is added to a latency, up to a microsecond: round trips differ, as they
// do everywhere. It is the same within a millisecond, so that nothing overtakes.
func variation(now time.Time) time.Duration {
	return time.Duration(uint32(now.UnixMilli()) * 2654435761 >> 22) // multiplicative hashing (Knuth)
}

// Close closes the network, after everything that uses it.
func (n *Network) Close() { n.sim.Close() }

// Configure sets cfg up for node i on this network. A restarted node must be configured
// again.
func (n *Network) Configure(i int, cfg *transport.Config) {
	cfg.Listen = []string{n.Addr(i)}
	cfg.Sockets = n.sockets(i)
	if cfg.Clock.IsZero() {
		cfg.Clock = clock.Runtime()
	}
}

// Addr returns the multiaddr of node i.
func (n *Network) Addr(i int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.addrOf(i)
	return fmt.Sprintf("/ip4/%s/udp/%d/quic-v1", a.IP, a.Port)
}

// addrOf returns the address of node i, inside of its NAT. The caller holds mu.
func (n *Network) addrOf(i int) *net.UDPAddr {
	if n.link.OneIP {
		return &net.UDPAddr{IP: net.IPv4(1, 0, 0, 1).To4(), Port: port + i}
	}
	return &net.UDPAddr{IP: net.IPv4(1, n.netOf(i), byte((i+1)>>8), byte(i+1)).To4(), Port: port}
}

// nodeAt returns the node at address a. The caller holds mu.
func (n *Network) nodeAt(a net.Addr) int {
	u, ok := a.(*net.UDPAddr)
	if !ok || u.IP.To4() == nil {
		return -1
	}
	if n.link.OneIP {
		return u.Port - port
	}
	ip := u.IP.To4()
	return int(ip[2])<<8 + int(ip[3]) - 1
}

// SetLoss changes the share of packets lost.
func (n *Network) SetLoss(p float64) { n.change(func() { n.link.Loss = p }) }

// DropEvery drops one of every n packets from a node to another: as many as with a loss
// of 1/n, but never several in a row, which occasionally silences a path for as long as a
// dead one. 0 disables it.
func (n *Network) DropEvery(packets int) { n.change(func() { n.dropEvery = packets }) }

// SetNodeLoss changes the share of packets from and to node i that are lost, in addition
// to those of the link.
func (n *Network) SetNodeLoss(i int, p float64) { n.change(func() { n.nodeLoss[i] = p }) }

// SetNodeLink changes the link of node i. Its rates apply when the node starts, those with
// a Queue at once. QUIC only probes for larger packets if any MTU was set when it started.
func (n *Network) SetNodeLink(i int, l NodeLink) { n.change(func() { n.nodeLinks[i] = l }) }

// SetMTU changes the maximum size of packets.
func (n *Network) SetMTU(bytes int) { n.change(func() { n.link.MTU = bytes }) }

// SetLatency changes the latency of packets.
func (n *Network) SetLatency(d time.Duration) { n.change(func() { n.link.Latency = d }) }

// SetDistance adds to the latency between two nodes, each way.
func (n *Network) SetDistance(a, b int, d time.Duration) {
	n.change(func() { n.extraLatency[pair(a, b)] = d })
}

func pair(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// Partition splits the nodes into these groups, between which nothing passes. Nodes in
// none of them belong to the first.
func (n *Network) Partition(groups ...[]int) {
	n.change(func() {
		clear(n.group)
		for side, nodes := range groups {
			for _, i := range nodes {
				n.group[i] = side
			}
		}
	})
}

// Cut drops everything from one node to another; the reverse direction stays open.
func (n *Network) Cut(from, to int) { n.change(func() { n.cuts[[2]int{from, to}] = true }) }

// Unplug takes a node off the network; Plug puts it back.
func (n *Network) Unplug(i int) { n.change(func() { n.down[i] = true }) }

// Plug puts a node back on the network.
func (n *Network) Plug(i int) { n.change(func() { delete(n.down, i) }) }

// maxHeld bounds the held packets of a node: sockets buffer no more.
const maxHeld = 4096

// Hold holds all packets from and to node i until Release, as if its process were
// suspended.
func (n *Network) Hold(i int) {
	n.change(func() {
		if n.held[i] == nil {
			n.held[i] = []func(){}
		}
	})
}

// Release sends what Hold held, in order.
func (n *Network) Release(i int) {
	var held []func()
	n.change(func() {
		held = n.held[i]
		delete(n.held, i)
	})
	for _, send := range held {
		send()
	}
}

// hold holds the packet that send sends; false: neither of the two nodes is held.
func (n *Network) hold(from int, to net.Addr, send func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, i := range []int{from, n.nodeAt(to)} {
		if q, ok := n.held[i]; ok {
			if len(q) < maxHeld {
				n.held[i] = append(q, send)
			}
			return true
		}
	}
	return false
}

// Heal ends every partition and cut and plugs every node in. The loss remains.
func (n *Network) Heal() {
	n.change(func() {
		clear(n.group)
		clear(n.cuts)
		clear(n.down)
	})
}

// Stats returns the counts so far.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

func (n *Network) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// dropAtNode decides about the loss at one node. The caller holds mu.
func (n *Network) dropAtNode(i int) bool { p := n.nodeLoss[i]; return p > 0 && n.rng.Float64() < p }

// dropOnLinks decides about the loss on the links of two nodes. The caller holds mu.
func (n *Network) dropOnLinks(from, to int) bool {
	out, in := n.nodeLinks[from].Out.Loss, n.nodeLinks[to].In.Loss
	return out > 0 && n.rng.Float64() < out || in > 0 && n.rng.Float64() < in
}

// tooLarge reports whether a packet of this size exceeds an MTU. The caller holds mu.
func (n *Network) tooLarge(from, to, size int) bool {
	for _, mtu := range []int{n.link.MTU, n.nodeLinks[from].Out.MTU, n.nodeLinks[to].In.MTU} {
		if mtu > 0 && size > mtu {
			return true
		}
	}
	return false
}

// dropNth decides about a loss by dropEvery. The caller holds mu.
func (n *Network) dropNth(way [2]int) bool {
	if n.dropEvery == 0 {
		return false
	}
	n.sinceDrop[way] = (n.sinceDrop[way] + 1) % n.dropEvery
	return n.sinceDrop[way] == 0
}

// drops decides whether to drop a packet of this size.
func (n *Network) drops(from int, addr net.Addr, size int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.nodeAt(addr)
	n.stats.Sent++
	n.stats.Bytes += int64(size)
	lost := n.down[from] || n.down[to] || n.group[from] != n.group[to] || n.cuts[[2]int{from, to}] ||
		n.tooLarge(from, to, size) || !n.natAllows(from, addr) || n.rng.Float64() < n.link.Loss || n.dropAtNode(from) || n.dropAtNode(to) || n.dropOnLinks(from, to) || n.dropNth([2]int{from, to})
	if lost {
		n.stats.Dropped++
	}
	return lost
}
