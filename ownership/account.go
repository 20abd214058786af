package ownership

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// What the queues of one home may take up at every other node.
const (
	maxQueuesOf = 4096     // names
	maxGivenBy  = 1024     // of them that one other node handed over
	freeOfQueue = 1 << 10  // bytes of each state: it has its name by a deed of an admin, and room for that
	maxSaidOf   = 64 << 10 // bytes beyond that of all states together
)

// An account is what the queues of one home take up.
type account struct {
	names int
	said  int // bytes of their states beyond freeOfQueue of each
}

// charge has the account of the home that m names pay for m, which becomes the state of q.
func (h *Home) charge(q *queue, m *proto.QueueState) {
	if a := h.paid[q.payer]; q.known() && a != nil {
		if a.names, a.said = a.names-1, a.said-q.said; a.names == 0 {
			delete(h.paid, q.payer)
		}
	}
	q.payer, q.said = proto.PeerID(m.Home), max(proto.Size(m)-freeOfQueue, 0)
	a := h.paid[q.payer]
	if a == nil {
		a = new(account)
		h.paid[q.payer] = a
	}
	a.names, a.said = a.names+1, a.said+q.said
}

// allowance is how large the state of a queue may be beside the others of its home, and
// whether that node may be the home of it at all.
func (h *Home) allowance(name string, home proto.PeerID) (size int, ok bool) {
	said, names := 0, 0
	if a := h.paid[home]; a != nil {
		said, names = a.said, a.names
	}
	if q := h.queues[name]; q.known() && q.payer == home {
		said, names = said-q.said, names-1
	}
	return min(freeOfQueue+max(maxSaidOf-said, 0), proto.MaxQueueState), names < maxQueuesOf
}

// errFull says why a state is too large for what its home may take up.
func (h *Home) errFull(s *proto.QueueState) error {
	home := proto.PeerID(s.Home)
	if size, ok := h.allowance(s.Name, home); !ok {
		return fmt.Errorf("%s is the home of %d queues, as many as a node may be", home.Short(), maxQueuesOf)
	} else if size < proto.MaxQueueState {
		return fmt.Errorf("the queues of %s have settings of %d bytes together, as many as a node may say: name fewer members, labels and kinds, or give queues to another home", home.Short(), maxSaidOf)
	}
	return errTooManyMoves
}

// Revoked says that p was revoked. What it said of queues goes. Of each queue whose home it was stays who that is, the generation and the
// root: nobody else becomes the home but by what an admin has signed.
func (h *Home) Revoked(p proto.PeerID, now Now) Output {
	h.step(now)
	for _, q := range h.order {
		if !q.known() || q.payer != p || p == h.self {
			continue
		}
		s := &proto.QueueState{Name: q.name, Generation: q.state.Generation, Home: p[:], Root: slices.Clone(q.root[:])}
		h.take(q, s)
		h.out.put(queueKey(q.name), s)
	}
	return h.done()
}
