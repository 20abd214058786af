package ownership

import (
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// ErrNameTaken is returned when a queue with this name exists.
var ErrNameTaken = errors.New("ownership: the name is taken")

// CreateQueue creates a queue, or another name, whose home is this node, with a deed signed
// by an admin; with nil, this node signs it as an admin. Without a deed there is no queue.
func (h *Home) CreateQueue(name string, change func(*proto.QueueState), signed *proto.Signed, now Now) (Output, error) {
	h.beginInput(now)
	if q := h.queues[name]; q.known() {
		if !q.isHome(h.self) {
			return h.endInput(), fmt.Errorf("%w: the home of %s is another node", ErrNameTaken, proto.TitleText(name))
		}
		err := h.set(q, h.stateOf(q), change, now)
		return h.endInput(), err
	}
	if signed == nil {
		var err error
		if signed, err = h.signCreation(name, h.self); err != nil {
			return h.endInput(), err
		}
	}
	q := h.newQueue(name)
	s := h.stateOf(q)
	s.Deeds = []*proto.Signed{signed}
	x := h.assess(q, s)
	if !x.valid {
		return h.endInput(), fmt.Errorf("the signed statement of the home of %s does not name this node", proto.TitleText(name))
	}
	if waits := h.queues[name]; waits != nil {
		q = waits
	}
	err := h.set(q, s, change, now)
	return h.endInput(), err
}

// SignCreation signs as an admin that a queue is created with p as its home, once for each
// name. The deed is durable before it is sent: a repeated request of the same node gets the
// same deed.
func (h *Home) SignCreation(name string, p proto.PeerID, now Now) (*proto.Signed, Output, error) {
	h.beginInput(now)
	signed, err := h.signCreation(name, p)
	if err == nil && !h.queues[name].known() && p != h.self {
		kind, _ := proto.TitleKindOf(name)
		h.learn(&proto.QueueState{Name: name, Kind: kind, Generation: 1, Home: p[:], Deeds: []*proto.Signed{signed}})
	}
	return signed, h.endInput(), err
}

// signCreation signs that p created a queue, and stores the deed.
func (h *Home) signCreation(name string, p proto.PeerID) (*proto.Signed, error) {
	if old, ok := h.creations[name]; ok {
		if old.To == p {
			return old.signed, nil
		}
		return nil, fmt.Errorf("%w: this admin has signed that %s created %s", ErrNameTaken, old.To.Short(), proto.TitleText(name))
	}
	if q := h.queues[name]; q.known() {
		return nil, fmt.Errorf("%w: %s has a home, %s", ErrNameTaken, proto.TitleText(name), proto.PeerID(q.state.Home).Short())
	}
	names := 0
	for _, d := range h.creations {
		if d.To == p {
			names++
		}
	}
	if names >= h.cfg.MaxNames && p != h.self {
		return nil, fmt.Errorf("%s has created %d queues, mailboxes and topics, and this admin signs at most %d for one member: its setting queues.max_names", p.Short(), names, h.cfg.MaxNames)
	}
	signed, err := h.cfg.Deeds.Sign(Deed{Queue: name, Generation: 1, To: p, Admin: true})
	if err != nil {
		return nil, err
	}
	d, err := h.cfg.Deeds.ReadVerified(signed)
	if err != nil {
		return nil, err
	}
	h.creations[name] = proof{d, signed}
	h.out.put(creationKey(name), signed)
	return signed, nil
}

func creationKey(name string) string { return string(rune(keyCreation)) + name }

// Confirm signs as an admin that p is the home of a queue, which its deeds have proven
// here. A chain of deeds may begin with that and need not go back further.
func (h *Home) Confirm(name string, generation uint64, p proto.PeerID) (*proto.Signed, error) {
	q := h.queues[name]
	if !q.known() || q.state.Generation != generation || string(q.state.Home) != string(p[:]) {
		return nil, fmt.Errorf("%s is not known here as the home of %s in generation %d", p.Short(), proto.TitleText(name), generation)
	}
	return h.cfg.Deeds.Sign(Deed{Queue: name, Generation: generation, To: p, Root: q.root, Seizure: q.ancestry(q.deeds)[q.record()].seizure, Admin: true})
}

// Confirmed adds an admin's confirmation to a queue whose home is this node.
func (h *Home) Confirmed(name string, signed *proto.Signed, now Now) (Output, error) {
	o := h.beginInput(now)
	q := h.queues[name]
	d, err := h.cfg.Deeds.Verify(signed)
	if err != nil {
		return h.endInput(), err
	}
	if !q.known() || !q.isHome(h.self) || !d.Admin || d.Queue != name || d.Generation != q.state.Generation || d.To != h.self || d.Root != q.root {
		return h.endInput(), fmt.Errorf("the signed statement does not confirm the present home of %s", proto.TitleText(name))
	}
	if q.hasDeed(signed) {
		return h.endInput(), nil
	}
	s := h.stateOf(q)
	if err := h.addDeed(s, signed); err != nil {
		return h.endInput(), err
	}
	if !containsDeed(h.proofs(s.Deeds), signed) {
		return h.endInput(), fmt.Errorf("the admin that confirms the home of %s does not know what another admin has stated since", proto.TitleText(name))
	}
	s.ChangedMs = nextChangedMs(s, now)
	h.setState(q, s)
	o.put(queueKey(name), s)
	return h.endInput(), nil
}
