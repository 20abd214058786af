package node

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// leaseRisks returns the members that are SUSPECT or DEAD and hold leases that this
// node granted, by name.
func (n *Node) leaseRisks(ctx context.Context) []wire.LeaseRisk {
	risks, unhealthy := map[proto.PeerID]*wire.LeaseRisk{}, map[proto.PeerID]string{}
	for _, m := range n.gossip.Members() {
		if m.Status == gossip.Suspect || m.Status == gossip.Dead {
			unhealthy[m.Peer] = m.Status.String()
		}
	}
	if len(unhealthy) == 0 {
		return []wire.LeaseRisk{}
	}
	_, err := n.queues.driver.Leases(ctx, func(v ownership.LeaseView) bool {
		state, ok := unhealthy[v.Peer]
		if !v.Home || !ok {
			return false
		}
		r := risks[v.Peer]
		if r == nil {
			r = &wire.LeaseRisk{State: state}
			risks[v.Peer] = r
		}
		r.Tasks++
		if v.Permitted {
			r.Once++
		}
		return false // counted: nothing is copied
	}, 1)
	if err != nil {
		return []wire.LeaseRisk{} // the node is stopping
	}
	out := make([]wire.LeaseRisk, 0, len(risks))
	for _, p := range slices.Collect(maps.Keys(risks)) {
		risks[p].Owner = n.peerName(p)
		out = append(out, *risks[p])
	}
	slices.SortFunc(out, func(a, b wire.LeaseRisk) int { return strings.Compare(a.Owner, b.Owner) })
	return out
}
