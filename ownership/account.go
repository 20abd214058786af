package ownership

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// Limits on what the queues of one home may use at every other node.
const (
	maxQueuesPerHome  = 4096     // queue names
	maxQueuesFromPeer = 1024     // queues that one other node may hand over
	freeStateBytes    = 1 << 10  // free bytes of each state: an admin's deed gave it the name, and this much comes with it
	maxStateBytes     = 64 << 10 // bytes of all its states together, beyond the free ones
)

// A homeUsage counts what the queues of one home use here.
type homeUsage struct {
	queues     int
	stateBytes int // bytes of their states beyond freeStateBytes each
}

// charge accounts m, which becomes the state of t, to the home that m names.
func (ti *titles) charge(t *title, m *proto.QueueState) {
	if a := ti.usage[t.chargedTo]; t.known() && a != nil {
		if a.queues, a.stateBytes = a.queues-1, a.stateBytes-t.stateBytes; a.queues == 0 {
			delete(ti.usage, t.chargedTo)
		}
	}
	t.chargedTo, t.stateBytes = proto.PeerID(m.Home), max(proto.Size(m)-freeStateBytes, 0)
	a := ti.usage[t.chargedTo]
	if a == nil {
		a = new(homeUsage)
		ti.usage[t.chargedTo] = a
	}
	a.queues, a.stateBytes = a.queues+1, a.stateBytes+t.stateBytes
}

// allowance returns how large the state of a queue may be, given the other queues of its
// home, and whether that node may be its home at all.
func (ti *titles) allowance(name string, home proto.PeerID) (size int, ok bool) {
	stateBytes, queues := 0, 0
	if a := ti.usage[home]; a != nil {
		stateBytes, queues = a.stateBytes, a.queues
	}
	if t := ti.byName[name]; t.known() && t.chargedTo == home {
		stateBytes, queues = stateBytes-t.stateBytes, queues-1
	}
	return min(freeStateBytes+max(maxStateBytes-stateBytes, 0), proto.MaxQueueState), queues < maxQueuesPerHome
}

// errFull explains why a state exceeds what its home may use.
func (ti *titles) errFull(s *proto.QueueState) error {
	home := proto.PeerID(s.Home)
	if size, ok := ti.allowance(s.Name, home); !ok {
		return fmt.Errorf("%s is the home of %d names, the limit for one node", home.Short(), maxQueuesPerHome)
	} else if size < proto.MaxQueueState {
		return fmt.Errorf("the settings of the queues of %s exceed %d bytes together, the limit for one node: name fewer members, labels and kinds, or give queues to another home", home.Short(), maxStateBytes)
	}
	return errTooManyMoves
}

// Revoked drops what the revoked member p published about queues: another node becomes their
// home only by a newer deed of an admin.
func (h *Home) Revoked(p proto.PeerID, now Now) Output {
	h.beginInput(now)
	for _, name := range h.titles.revoke(p, &h.out) {
		h.refresh(name)
	}
	return h.endInput()
}

// revoke drops what the revoked member p published about names. For each whose home p was,
// the home, the generation, the root and the rank stay: another node becomes the home only by
// a newer deed of an admin. A node that was the home before keeps the deeds too. It returns
// the names that have changed.
func (ti *titles) revoke(p proto.PeerID, o *Output) (changed []string) {
	for _, t := range ti.order {
		if !t.known() || t.chargedTo != p || p == ti.self {
			continue
		}
		by := t.ancestry(t.deeds)[t.record()]
		s := &proto.QueueState{
			Name: t.name, Generation: t.state.Generation, Home: p[:], Root: slices.Clone(t.root[:]), Stated: by.stated, Seizure: by.seizure,
			Kind: t.state.Kind, Removed: t.state.Removed,
		}
		if t.wasHome(ti.self) { // this node proves with them that it may still have tasks
			s.Deeds = t.state.Deeds
		}
		ti.set(t, s, o)
		changed = append(changed, t.name)
	}
	return changed
}
