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
	err := h.titles.create(name, change, signed, now, &h.out)
	h.refresh(name)
	return h.endInput(), err
}

// create creates a name whose home is this node, with a deed signed by an admin; with nil,
// this node signs it as an admin. It changes one that exists.
func (ti *titles) create(name string, change func(*proto.QueueState), signed *proto.Signed, now Now, o *Output) error {
	t := ti.named(name)
	s := ti.stateOf(t)
	if t.known() {
		if !t.isHome(ti.self) {
			return fmt.Errorf("%w: the home of %s is another node", ErrNameTaken, proto.TitleText(name))
		}
		return ti.change(t, s, change, now, o)
	}
	if signed == nil {
		var err error
		if signed, err = ti.signCreation(name, ti.self, o); err != nil {
			return err
		}
	}
	s.Deeds = []*proto.Signed{signed}
	if !ti.assess(t, s).valid {
		return fmt.Errorf("the signed statement of the home of %s does not name this node", proto.TitleText(name))
	}
	return ti.change(t, s, change, now, o)
}

// change changes s, a copy of the state of t, and makes it the state.
func (ti *titles) change(t *title, s *proto.QueueState, change func(*proto.QueueState), now Now, o *Output) error {
	change(s)
	s.ChangedMs = nextChangedMs(s, now)
	if !ti.trimToFit(s) { // settings must leave room for deeds
		return ti.errFull(s)
	}
	if _, err := proto.Encode(nil, s); err != nil {
		return fmt.Errorf("queue %s: %w", t.name, err)
	}
	ti.set(t, s, o)
	return nil
}

// SignCreation signs as an admin that a queue is created with p as its home, once for each
// name. The deed is durable before it is sent: a repeated request of the same node gets the
// same deed.
func (h *Home) SignCreation(name string, p proto.PeerID, now Now) (*proto.Signed, Output, error) {
	h.beginInput(now)
	signed, err := h.titles.signCreation(name, p, &h.out)
	if err == nil && !h.titles.byName[name].known() && p != h.self {
		kind, _ := proto.TitleKindOf(name)
		h.learn(&proto.QueueState{Name: name, Kind: kind, Generation: 1, Home: p[:], Deeds: []*proto.Signed{signed}})
	}
	return signed, h.endInput(), err
}

// signCreation signs that p created a queue, and stores the deed.
func (ti *titles) signCreation(name string, p proto.PeerID, o *Output) (*proto.Signed, error) {
	if old, ok := ti.creations[name]; ok {
		if old.To == p {
			return old.signed, nil
		}
		return nil, fmt.Errorf("%w: this admin has signed that %s created %s", ErrNameTaken, old.To.Short(), proto.TitleText(name))
	}
	if t := ti.byName[name]; t.known() {
		return nil, fmt.Errorf("%w: %s has a home, %s", ErrNameTaken, proto.TitleText(name), proto.PeerID(t.state.Home).Short())
	}
	names := 0
	for _, d := range ti.creations {
		if d.To == p {
			names++
		}
	}
	if names >= ti.cfg.MaxNames && p != ti.self {
		return nil, fmt.Errorf("%s has created %d queues, mailboxes and topics, and this admin signs at most %d for one member: its setting queues.max_names", p.Short(), names, ti.cfg.MaxNames)
	}
	signed, err := ti.cfg.Deeds.Sign(Deed{Queue: name, Generation: 1, To: p, Admin: true})
	if err != nil {
		return nil, err
	}
	d, err := ti.cfg.Deeds.ReadVerified(signed)
	if err != nil {
		return nil, err
	}
	ti.creations[name] = proof{d, signed}
	o.put(creationKey(name), signed)
	return signed, nil
}

func creationKey(name string) string { return string(rune(keyCreation)) + name }

// confirm signs as an admin that p is the home of a name, which its deeds have proven here. A
// chain of deeds may begin with that and need not go back further.
func (ti *titles) confirm(name string, generation uint64, p proto.PeerID) (*proto.Signed, error) {
	t := ti.byName[name]
	if !t.known() || t.state.Generation != generation || string(t.state.Home) != string(p[:]) {
		return nil, fmt.Errorf("%s is not known here as the home of %s in generation %d", p.Short(), proto.TitleText(name), generation)
	}
	return ti.cfg.Deeds.Sign(Deed{Queue: name, Generation: generation, To: p, Root: t.root, Seizure: t.ancestry(t.deeds)[t.record()].seizure, Admin: true})
}

// Confirmed adds an admin's confirmation to a queue whose home is this node.
func (h *Home) Confirmed(name string, signed *proto.Signed, now Now) (Output, error) {
	h.beginInput(now)
	err := h.titles.confirmed(name, signed, now, &h.out)
	h.refresh(name)
	return h.endInput(), err
}

// confirmed adds an admin's confirmation to a name whose home is this node.
func (ti *titles) confirmed(name string, signed *proto.Signed, now Now, o *Output) error {
	t := ti.byName[name]
	d, err := ti.cfg.Deeds.Verify(signed)
	if err != nil {
		return err
	}
	if !t.known() || !t.isHome(ti.self) || !d.Admin || d.Queue != name || d.Generation != t.state.Generation || d.To != ti.self || d.Root != t.root {
		return fmt.Errorf("the signed statement does not confirm the present home of %s", proto.TitleText(name))
	}
	if t.hasDeed(signed) {
		return nil
	}
	s := ti.stateOf(t)
	if err := ti.addDeed(s, signed); err != nil {
		return err
	}
	if !containsDeed(ti.proofs(s.Deeds), signed) {
		return fmt.Errorf("the admin that confirms the home of %s does not know what another admin has stated since", proto.TitleText(name))
	}
	s.ChangedMs = nextChangedMs(s, now)
	ti.set(t, s, o)
	return nil
}
