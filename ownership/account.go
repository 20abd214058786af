package ownership

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// What the queues of one home may take up at every other node.
const (
	maxQueuesPerHome  = 4096     // names
	maxQueuesFromPeer = 1024     // of them that one other node handed over
	freeStateBytes    = 1 << 10  // bytes of each state: it has its name by a deed of an admin, and room for that
	maxStateBytes     = 64 << 10 // bytes beyond that of all states together
)

// An homeUsage is what the queues of one home take up.
type homeUsage struct {
	queues     int
	stateBytes int // bytes of their states beyond freeOfQueue of each
}

// charge has the account of the home that m names pay for m, which becomes the state of q.
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

// allowance is how large the state of a queue may be beside the others of its home, and
// whether that node may be the home of it at all.
func (h *Home) allowance(name string, home proto.PeerID) (size int, ok bool) {
	said, names := 0, 0
	if a := h.usage[home]; a != nil {
		said, names = a.stateBytes, a.queues
	}
	if q := h.queues[name]; q.known() && q.chargedTo == home {
		said, names = said-q.stateBytes, names-1
	}
	return min(freeStateBytes+max(maxStateBytes-said, 0), proto.MaxQueueState), names < maxQueuesPerHome
}

// errFull says why a state is too large for what its home may take up.
func (h *Home) errFull(s *proto.QueueState) error {
	home := proto.PeerID(s.Home)
	if size, ok := h.allowance(s.Name, home); !ok {
		return fmt.Errorf("%s is the home of %d queues, as many as a node may be", home.Short(), maxQueuesPerHome)
	} else if size < proto.MaxQueueState {
		return fmt.Errorf("the queues of %s have settings of %d bytes together, as many as a node may say: name fewer members, labels and kinds, or give queues to another home", home.Short(), maxStateBytes)
	}
	return errTooManyMoves
}

// Revoked says that p was revoked. What it said of queues goes. Of each queue whose home it was stays who that is, the generation and the
// root: nobody else becomes the home but by what an admin has signed.
func (h *Home) Revoked(p proto.PeerID, now Now) Output {
	h.beginInput(now)
	for _, q := range h.order {
		if !q.known() || q.chargedTo != p || p == h.self {
			continue
		}
		s := &proto.QueueState{Name: q.name, Generation: q.state.Generation, Home: p[:], Root: slices.Clone(q.root[:])}
		h.setState(q, s)
		h.out.put(queueKey(q.name), s)
	}
	return h.endInput()
}
