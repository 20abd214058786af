package ownership

import "github.com/balefire/balefire/proto"

// SetQueue changes the settings of a queue whose home is here. They apply to waiting tasks;
// leases stay as they are. An unknown queue is created if this node is an admin, otherwise
// nothing happens.
func (h *Home) SetQueue(change func(*proto.QueueState), now Now, name string) Output {
	out, _ := h.CreateQueue(name, change, nil, now)
	return out
}

// Queue returns the state of a queue, nil if it is unknown. It must not be changed.
func (h *Home) Queue(name string) *proto.QueueState {
	if t := h.titles.byName[name]; t != nil {
		return t.state
	}
	return nil
}

// HomeOf returns the home of a queue, as far as is known here.
func (h *Home) HomeOf(name string) (home proto.PeerID, generation uint64) {
	if t := h.titles.byName[name]; t != nil && len(t.state.GetHome()) == len(home) {
		copy(home[:], t.state.Home)
		return home, t.state.Generation
	}
	return h.self, 1
}

// Confirm signs as an admin that p is the home of a queue.
func (h *Home) Confirm(name string, generation uint64, p proto.PeerID) (*proto.Signed, error) {
	return h.titles.confirm(name, generation, p)
}
