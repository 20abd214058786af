package ownership

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/balefire/balefire/proto"
)

// Deeds make and check what proves who is the home of a queue: without a deed nobody
// takes a queue from the home that is known.
type Deeds interface {
	// Sign states that a queue is made, or changes its home: a handoff as its home, all
	// else as an admin.
	Sign(d Deed) (*proto.Signed, error)
	// Verify reads what was stated by somebody who may: the home until then, or an admin.
	Verify(s *proto.Signed) (Deed, error)
}

// A Deed begins a generation of a queue.
type Deed struct {
	Queue      string
	Generation uint64 // that begins; 1: the queue is made
	From, To   proto.PeerID
	Seized     bool
}

// plainDeeds are believed as they stand: only tests can live with that.
type plainDeeds struct{}

func (plainDeeds) Sign(d Deed) (*proto.Signed, error) {
	b, err := proto.Encode(nil, &proto.Deed{Queue: d.Queue, Generation: d.Generation, From: d.From[:], To: d.To[:], Seized: d.Seized})
	return &proto.Signed{Details: b}, err
}

func (plainDeeds) Verify(s *proto.Signed) (d Deed, err error) {
	m := new(proto.Deed)
	err = proto.DecodeKnown(s.GetDetails(), m)
	d.Queue, d.Generation, d.Seized = m.Queue, m.Generation, m.Seized
	copy(d.From[:], m.From)
	copy(d.To[:], m.To)
	return d, err
}

// A proven deed is one that was checked, as it is sent on.
type proven struct {
	Deed
	signed *proto.Signed
}

// convey adds the deed to s that makes it so.
func (h *Home) convey(s *proto.QueueState, d Deed) error {
	d.Queue, d.Generation = s.Name, s.Generation
	copy(d.To[:], s.Home)
	signed, err := h.cfg.Deeds.Sign(d)
	if err != nil {
		return err
	}
	s.Deeds = append(slices.Clone(s.Deeds), signed)
	s.Deeds = s.Deeds[max(len(s.Deeds)-proto.MaxDeeds, 0):]
	shorten(s)
	return nil
}

// shorten drops the oldest deeds of a state that is larger than others take, and the
// store keeps. It reports whether it has the size then.
func shorten(s *proto.QueueState) bool {
	over := proto.Size(s) - proto.MaxQueueState
	for over > 0 && len(s.Deeds) > 1 {
		over -= proto.Size(s.Deeds[0])
		s.Deeds = s.Deeds[1:]
	}
	return over <= 0
}

// prove reads the deeds of a state that hold, those of known, which were checked
// before, among them. They come by generation; there may be several of one, where a
// handoff and a seizure, or two seizures, met.
func (h *Home) prove(s *proto.QueueState, known []proven) []proven {
	all := slices.Clone(known)
	for _, x := range s.GetDeeds() {
		if knownIn(known, x) {
			continue
		}
		if d, err := h.cfg.Deeds.Verify(x); err == nil && d.Queue == s.Name {
			all = append(all, proven{d, x})
		}
	}
	slices.SortStableFunc(all, func(a, b proven) int { return cmp.Compare(a.Generation, b.Generation) })
	return all
}

func knownIn(known []proven, x *proto.Signed) bool {
	return slices.ContainsFunc(known, func(k proven) bool { return bytes.Equal(k.signed.Details, x.Details) })
}

// knows reports whether x is a deed of q that was checked before.
func (q *queue) knows(x *proto.Signed) bool { return knownIn(q.deeds, x) }

// A held is that a node was the home of a queue from a generation on.
type held struct {
	generation uint64
	home       proto.PeerID
}

// chain returns who was the home of q, with what m adds to that, and the deeds that
// say so: an admin made the queue or seized it, or its homes handed it on, one to the
// next. Who knows nothing of a queue believes the first who says that he is its home.
func (h *Home) chain(q *queue, m *proto.QueueState) (homes map[held]bool, deeds []proven) {
	homes = map[held]bool{}
	if q.state != nil {
		homes[held{q.state.Generation, proto.PeerID(q.state.Home)}] = true
	}
	for _, d := range q.deeds {
		homes[held{d.Generation, d.To}], homes[held{d.Generation - 1, d.From}] = true, true
	}
	for _, d := range h.prove(m, q.deeds) {
		before := held{d.Generation - 1, d.From}
		if !homes[before] && !d.Seized && d.Generation > 1 && len(homes) > 0 {
			continue
		}
		homes[before], homes[held{d.Generation, d.To}] = true, true
		deeds = append(deeds, d)
	}
	return homes, deeds[max(len(deeds)-proto.MaxDeeds, 0):]
}

// rightful reports whether m, which is newer than what is known of q, is said with
// right: the same home says it again, or has it by a deed.
func (h *Home) rightful(m *proto.QueueState, q *queue, homes map[held]bool) bool {
	s := q.state
	switch {
	case h.cfg.flaw == claimUnproven:
		return true
	case m.Generation <= 1: // it was made twice, or nothing is known of it
		return true
	case s != nil && s.Generation == m.Generation && bytes.Equal(s.Home, m.Home):
		return true
	}
	return homes[held{m.Generation, proto.PeerID(m.Home)}]
}

// newer reports whether a is to be believed rather than what is known of q, if it is
// said with right: the higher generation; among those who made the queue at the same
// time an admin; then the higher home.
func (h *Home) newer(a *proto.QueueState, q *queue) bool {
	b := q.state
	if b == nil {
		return true
	}
	if a.Generation != b.Generation {
		return a.Generation > b.Generation
	}
	c := bytes.Compare(a.Home, b.Home)
	if c == 0 { // what its home has set here nobody knows better
		return a.ChangedMs > b.ChangedMs && string(a.Home) != string(h.self[:])
	}
	if a.Generation <= 1 {
		mine, its := made(q.deeds, b.Home), made(h.prove(a, nil), a.Home)
		if mine != its {
			return its
		}
	}
	return c > 0
}

// made reports whether an admin made the queue at home.
func made(deeds []proven, home []byte) bool {
	return slices.ContainsFunc(deeds, func(d proven) bool { return d.Generation == 1 && string(d.To[:]) == string(home) })
}

// recall adds to what is known of q the deeds of an older state, if they hold: a home
// that lost the queue shows by them that it had it.
func (h *Home) recall(q *queue, m *proto.QueueState) {
	if q.state == nil {
		return
	}
	if !slices.ContainsFunc(m.GetDeeds(), func(x *proto.Signed) bool { return !q.knows(x) }) {
		return // as nearly always: members say again what they said before
	}
	_, deeds := h.chain(q, m)
	if len(deeds) == len(q.deeds) {
		return
	}
	s := h.stateOf(q)
	s.Deeds = signedOf(deeds)
	if !shorten(s) {
		return
	}
	h.take(q, s)
	h.out.put(queueKey(q.name), s)
}

func signedOf(deeds []proven) (all []*proto.Signed) {
	for _, d := range deeds {
		all = append(all, d.signed)
	}
	return all
}

// known reports whether it is known whose q is, which may be nil.
func (q *queue) known() bool { return q != nil && q.state != nil }

// had reports whether p is, or once was, the home of q, which may be nil: not known.
func (q *queue) had(p proto.PeerID) bool {
	return q != nil && (string(q.state.GetHome()) == string(p[:]) || slices.ContainsFunc(q.deeds, func(d proven) bool { return d.From == p || d.To == p }))
}

// mayMove reports whether from may speak about where a task is, or was: it was sent
// to it, or it is or was the home of its queue.
func (h *Home) mayMove(from proto.PeerID, t Task) bool {
	return from == t.Sent || h.queues[t.Queue].had(from) || h.cfg.flaw == moverUnproven
}

// mayGive reports whether from may say of m, whose home is this node, what is news here:
// it is or was the home of the queue, by deeds that hold, and is not the one that gave
// this node as many queues as one may give.
func (h *Home) mayGive(from proto.PeerID, m *proto.QueueState) bool {
	q := h.queues[m.Name]
	if q == nil {
		q = newQueue(m.Name)
	}
	if q.had(from) || !h.newer(m, q) || h.cfg.flaw == claimUnproven {
		return true
	}
	cause := "it gives away a queue that it never had"
	if _, deeds := h.chain(q, m); (&queue{deeds: deeds}).had(from) {
		if q.state != nil || !h.givenMany(from) {
			return true
		}
		cause = "it gives away more queues than one node may"
	}
	h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: from, Cause: cause})
	return false
}

// givenMany reports whether from gave this node as many queues as it may.
func (h *Home) givenMany(from proto.PeerID) bool {
	n := 0
	for _, q := range h.queues {
		if last := len(q.deeds) - 1; last >= 0 && q.deeds[last].From == from && q.here(h.self) {
			n++
		}
	}
	return n >= maxQueuesOf
}
