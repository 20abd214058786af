package apitest

import (
	"context"
	"strings"
	"time"

	"github.com/balefire/balefire/wire"
)

// Boot is the boot number of the fake node.
const Boot = 7

// Members returns two members.
func (n *Node) Members(context.Context) []wire.Member {
	_ = n.called("Members") // it cannot fail
	since := Start.Add(-time.Hour)
	return []wire.Member{
		{Name: "here", ID: "12D3KooH", Self: true, State: "ALIVE", Eligible: true, Phase: "RUNNING", Boot: Boot},
		{Name: "laptop", ID: "12D3KooW", State: "SUSPECT", Since: &since, Accusers: 2, Incarnation: 3, Load: &wire.Load{CPU: 0.5, Memory: 0.25, Slots: 4, Busy: 1}, Relays: []string{"r1"}, Connected: true, Path: "relayed"},
	}
}

// Member returns a member.
func (n *Node) Member(_ context.Context, ref string) (wire.Member, error) {
	return wire.Member{Name: ref, ID: "12D3KooW", State: "ALIVE", Connected: true, Path: "direct"}, n.called("Member %s", ref)
}

// MeshSummary returns the summary of a mesh.
func (n *Node) MeshSummary(context.Context) wire.MeshSummary {
	_ = n.called("MeshSummary") // it cannot fail
	return n.summary()
}

func (n *Node) summary() wire.MeshSummary {
	if n.Mesh != nil {
		return *n.Mesh
	}
	return wire.MeshSummary{
		Mesh: "ab", Members: 5, States: map[string]int{"ALIVE": 3, "SUSPECT": 1, "DEAD": 1}, Connected: 3, Direct: 2, Relayed: 1,
		Root: "c0ffee", Risks: []wire.Note{{Code: wire.NoteNoRelay}},
	}
}

// PruneMembers removes one row.
func (n *Node) PruneMembers(_ context.Context, age time.Duration, limit int, dryRun bool) (wire.Pruned, error) {
	return wire.Pruned{Members: []string{"old"}, DryRun: dryRun}, n.called("PruneMembers %s limit=%d dry=%v", age, limit, dryRun)
}

// Converge asks two members.
func (n *Node) Converge(context.Context) (wire.Convergence, error) {
	return wire.Convergence{Asked: 2, Agree: []string{"laptop"}, Failed: []string{"field: no answer within 5s"}, Took: 0.041}, n.called("Converge")
}

// Ping returns the next of Pongs, and then repeats the last one.
func (n *Node) Ping(_ context.Context, ref string) (wire.Pong, error) {
	err := n.called("Ping %s", ref)
	n.mu.Lock()
	defer n.mu.Unlock()
	p := wire.Pong{Peer: ref, RTT: 0.042, Path: "quic /ip4/192.0.2.1/udp/4001/quic-v1", Direct: true}
	if len(n.Pongs) > 0 {
		p = n.Pongs[0]
	}
	if len(n.Pongs) > 1 {
		n.Pongs = n.Pongs[1:]
	}
	if err == nil && p.Peer == "" {
		return p, context.DeadlineExceeded
	}
	return p, err
}

// Path explains one path.
func (n *Node) Path(_ context.Context, ref string) (wire.PathReport, error) {
	since := Start.Add(-time.Minute)
	return wire.PathReport{
		Peer: ref, ID: "12D3KooW", Connected: true, Why: "direct, and lost less than any other",
		Candidates: []wire.PathCandidate{
			{Addr: "/ip4/192.0.2.1/udp/4001/quic-v1", Network: "quic", Connected: true, InUse: true, RTT: 0.008, Loss: 0.004, Rate: 3 << 20, Score: 0.91, Terms: []string{"bandwidth 0.5", "latency 0.45", "loss -0.04"}, Since: &since},
			{Addr: "/ip4/198.51.100.1/udp/4001/quic-v1/p2p-circuit", Network: "quic", Relay: "r1", Connected: true, RTT: 0.042, Score: 0.5},
		},
		Punches: []wire.Punch{{Time: since, Result: "direct by quic", Took: 0.412}},
	}, n.called("Path %s", ref)
}

// NetCheck returns a network behind a NAT.
func (n *Node) NetCheck(context.Context) wire.NetCheck {
	_ = n.called("NetCheck") // it cannot fail
	return wire.NetCheck{
		Listen: []string{"/ip4/0.0.0.0/udp/4001/quic-v1"}, Observed: []wire.Observed{{Addr: "/ip4/203.0.113.4/udp/4001/quic-v1", By: []string{"r1", "laptop"}}},
		NAT: "cone", UDP: true, TCP: true, Reservations: []wire.Reservation{{Relay: "r1", Until: Start.Add(time.Hour), Score: 0.9}},
		Relaying: &wire.Relaying{Reservations: 1, Circuits: 2, Bytes: 3 << 20}, DHT: 4, MDNS: "on", Gossip: 4, Strangers: 1,
		Findings: []wire.Note{{Code: wire.NoteNoQUIC}},
	}
}

// JoinRequests returns one node that asks to join.
func (n *Node) JoinRequests(context.Context) []wire.JoinRequest {
	_ = n.called("JoinRequests") // it cannot fail
	return []wire.JoinRequest{{Name: "field-10", ID: "12D3KooX", Code: "K7QM-2ZPA-77WD", Addrs: []string{"/ip4/192.168.1.9/tcp/4001"}, Since: Start.Add(-time.Minute), Last: Start}}
}

// Accept admits a node.
func (n *Node) Accept(_ context.Context, ref string, o wire.AcceptOptions) (wire.Peer, error) {
	name := o.Name
	if name == "" {
		name = "field-10"
	}
	return peer(name), n.called("Accept %s %q %s", ref, o.Name, strings.Join(o.Roles, "+"))
}

// Rename renames a peer.
func (n *Node) Rename(_ context.Context, ref, name string) error {
	return n.called("Rename %s %q", ref, name)
}

// Revoke revokes a membership.
func (n *Node) Revoke(_ context.Context, ref, reason string) error {
	return n.called("Revoke %s %q", ref, reason)
}

// Events returns the events received from Happens. If that is nil, there is only one
// event.
func (n *Node) Events(ctx context.Context, after uint64, limit int, wait time.Duration) wire.EventPage {
	_ = n.called("Events after=%d limit=%d wait=%s", after, limit, wait) // it cannot fail
	if n.Happens == nil && after == 0 {
		return wire.EventPage{Boot: Boot, Items: []wire.NodeEvent{Happened(1)}, Next: 1}
	}
	select {
	case p := <-n.Happens:
		return p
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case p := <-n.Happens:
		return p
	case <-timer.C:
	case <-ctx.Done():
	}
	return wire.EventPage{Boot: Boot, Items: []wire.NodeEvent{}, Next: after}
}

// Happened returns an event with this number.
func Happened(seq uint64) wire.NodeEvent {
	return wire.NodeEvent{Seq: seq, Time: Start, Kind: "peer.connected", Peer: "laptop", Text: "laptop is connected: quic direct"}
}
