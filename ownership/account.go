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

// charge accounts m, which becomes the state of q, to the home that m names.
func (h *Home) charge(q *queue, m *proto.QueueState) {
	if a := h.usage[q.chargedTo]; q.known() && a != nil {
		if a.queues, a.stateBytes = a.queues-1, a.stateBytes-q.stateBytes; a.queues == 0 {
			delete(h.usage, q.chargedTo)
		}
	}
	q.chargedTo, q.stateBytes = proto.PeerID(m.Home), max(proto.Size(m)-freeStateBytes, 0)
	a := h.usage[q.chargedTo]
	if a == nil {
		a = new(homeUsage)
		h.usage[q.chargedTo] = a
	}
	a.queues, a.stateBytes = a.queues+1, a.stateBytes+q.stateBytes
}

// allowance returns how large the state of a queue may be, given the other queues of its
// home, and whether that node may be its home at all.
func (h *Home) allowance(name string, home proto.PeerID) (size int, ok bool) {
	stateBytes, queues := 0, 0
	if a := h.usage[home]; a != nil {
		stateBytes, queues = a.stateBytes, a.queues
	}
	if q := h.queues[name]; q.known() && q.chargedTo == home {
		stateBytes, queues = stateBytes-q.stateBytes, queues-1
	}
	return min(freeStateBytes+max(maxStateBytes-stateBytes, 0), proto.MaxQueueState), queues < maxQueuesPerHome
}

// errFull explains why a state exceeds what its home may use.
func (h *Home) errFull(s *proto.QueueState) error {
	home := proto.PeerID(s.Home)
	if size, ok := h.allowance(s.Name, home); !ok {
		return fmt.Errorf("%s is the home of %d names, the limit for one node", home.Short(), maxQueuesPerHome)
	} else if size < proto.MaxQueueState {
		return fmt.Errorf("the settings of the queues of %s exceed %d bytes together, the limit for one node: name fewer members, labels and kinds, or give queues to another home", home.Short(), maxStateBytes)
	}
	return errTooManyMoves
}

// Revoked drops what the revoked member p published about queues. For each queue whose home
// p was, the home, the generation, the root and the rank stay: another node becomes the home
// only by a newer deed of an admin. A node that was the home before keeps the deeds too.
func (h *Home) Revoked(p proto.PeerID, now Now) Output {
	h.beginInput(now)
	for _, q := range h.order {
		if !q.known() || q.chargedTo != p || p == h.self {
			continue
		}
		by := q.ancestry(q.deeds)[q.record()]
		s := &proto.QueueState{
			Name: q.name, Generation: q.state.Generation, Home: p[:], Root: slices.Clone(q.root[:]), Stated: by.stated, Seizure: by.seizure,
			Kind: q.state.Kind, Removed: q.state.Removed,
		}
		if q.wasHome(h.self) { // this node proves with them that it may still have tasks
			s.Deeds = q.state.Deeds
		}
		h.setState(q, s)
		h.out.put(queueKey(q.name), s)
	}
	return h.endInput()
}
