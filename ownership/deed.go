package ownership

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// Deeds make and check what proves who is the home of a queue: without a deed nobody
// is one.
type Deeds interface {
	// Sign states that a queue is made, or changes its home: a handoff as its home, all
	// else as an admin.
	Sign(d Deed) (*proto.Signed, error)
	// Verify reads what was stated by somebody who may now: the home until then, or an
	// admin. Neither is revoked.
	Verify(s *proto.Signed) (Deed, error)
	// ReadVerified reads what Verify has accepted before. It goes on to count, also when its
	// signer may state nothing more.
	ReadVerified(s *proto.Signed) (Deed, error)
}

// A Root is what the deeds of a queue have in common that go back to one making of it.
// Where two admins made a queue of one name the lower root wins.
type Root [32]byte

// A Deed begins a generation of a queue, or confirms who is its home.
type Deed struct {
	Queue      string
	Generation uint64       // that begins; 1: the queue is made
	From, To   proto.PeerID // From is zero when the queue is made, or its home confirmed
	Seized     bool
	Root       Root
	Admin      bool // an admin has signed it: a chain of deeds may begin with it
}

// A proof deed is one that was checked, as it is sent on.
type proof struct {
	Deed
	signed *proto.Signed
}

// signDeed adds the deed to s that makes it so.
func (h *Home) signDeed(s *proto.QueueState, root Root, d Deed) error {
	d.Queue, d.Generation, d.Root = s.Name, s.Generation, root
	copy(d.To[:], s.Home)
	if d.Generation > proto.MaxGeneration {
		return fmt.Errorf("the home of queue %s has changed as often as it may", s.Name)
	}
	signed, err := h.cfg.Deeds.Sign(d)
	if err != nil {
		return err
	}
	return h.addDeed(s, signed)
}

// addDeed adds a deed to a state, and leaves out the oldest that prove nothing of it.
func (h *Home) addDeed(s *proto.QueueState, signed *proto.Signed) error {
	all := h.proofs(s.Deeds)
	d, err := h.cfg.Deeds.ReadVerified(signed)
	if err != nil {
		return err
	}
	room := h.deedSpace(s)
	kept, ok := trim(inOrder(append(all, proof{d, signed})), homeRecord{s.Generation, proto.PeerID(s.Home), d.Root}, room)
	if !ok {
		return h.errFull(s)
	}
	s.Deeds, s.Root = signedOf(kept), nil
	return nil
}

// deedSpace is how many bytes of deeds a state has room for beside the rest of it: larger
// ones others do not take. None: not even the state has.
func (h *Home) deedSpace(s *proto.QueueState) int {
	room, ok := h.allowance(s.Name, proto.PeerID(s.Home))
	if !ok {
		return -1
	}
	room -= proto.Size(s)
	for _, x := range s.Deeds {
		room += deedSize(x)
	}
	return room
}

// deedSize is what a deed takes up of a state.
func deedSize(x *proto.Signed) int { return proto.Size(x) + deedFrame }

const deedFrame = 8 // number and length of the field

// trimToFit leaves out the oldest deeds of a state that is too large, but those that prove it.
// It reports whether it has the size then.
func (h *Home) trimToFit(s *proto.QueueState) bool {
	all := h.proofs(s.Deeds)
	root := h.rootOf(s, &queue{})
	kept, ok := trim(all, homeRecord{s.Generation, proto.PeerID(s.Home), root}, h.deedSpace(s))
	s.Deeds = signedOf(kept)
	return ok
}

// errTooManyMoves is returned for a handoff whose deeds would be more than a state has
// room for.
var errTooManyMoves = errors.New("its home has changed too often since an admin has signed: it goes on once an admin is connected, who confirms the home")

// proofs reads deeds that were checked before.
func (h *Home) proofs(signed []*proto.Signed) (all []proof) {
	for _, x := range signed {
		if d, err := h.cfg.Deeds.ReadVerified(x); err == nil {
			all = append(all, proof{d, x})
		}
	}
	return inOrder(all)
}

// inOrder sorts deeds by their generation; there may be several of one, where a handoff
// and a seizure, or two seizures, met, or where two admins made the queue.
func inOrder(all []proof) []proof {
	slices.SortStableFunc(all, func(a, b proof) int { return cmp.Compare(a.Generation, b.Generation) })
	return all
}

// verifiedProofs reads the deeds of a state that hold, those of known, which were checked
// before, among them.
func (h *Home) verifiedProofs(s *proto.QueueState, known []proof) []proof {
	all := slices.Clone(known)
	for _, x := range s.GetDeeds() {
		if containsDeed(known, x) {
			continue
		}
		if d, err := h.cfg.Deeds.Verify(x); err == nil && d.Queue == s.Name {
			all = append(all, proof{d, x})
		}
	}
	return inOrder(all)
}

func containsDeed(known []proof, x *proto.Signed) bool {
	return slices.ContainsFunc(known, func(k proof) bool { return bytes.Equal(k.signed.Details, x.Details) })
}

// hasDeed reports whether x is a deed of q that was checked before.
func (q *queue) hasDeed(x *proto.Signed) bool { return containsDeed(q.deeds, x) }

// A homeRecord says that a node is, or was, the home of a queue from a generation on, by deeds
// of a root.
type homeRecord struct {
	generation uint64
	home       proto.PeerID
	root       Root
}

// proofIn returns the place of the deed that proves it: that of an admin before any other.
func (at homeRecord) proofIn(deeds []proof) (place int, ok bool) {
	place = -1
	for i, d := range deeds {
		if d.Generation == at.generation && d.To == at.home && d.Root == at.root && (place < 0 || d.Admin) {
			place = i
		}
	}
	return place, place >= 0
}

// trim leaves as many deeds as a state has room for: those that prove at, from that of an
// admin on, and the newest others, by which former homes are known. It reports whether
// there was room, in number and in bytes, for the former.
func trim(deeds []proof, at homeRecord, room int) (kept []proof, ok bool) {
	need := map[int]bool{}
	for i, ok := at.proofIn(deeds); ok && !need[i]; i, ok = at.proofIn(deeds) {
		need[i] = true
		if d := deeds[i]; d.Admin {
			break
		} else {
			at = homeRecord{d.Generation - 1, d.From, d.Root}
		}
	}
	over := len(deeds) - proto.MaxDeeds
	for _, d := range deeds {
		room -= deedSize(d.signed)
	}
	for i, d := range deeds {
		if (over > 0 || room < 0) && !need[i] {
			over--
			room += deedSize(d.signed)
			continue
		}
		kept = append(kept, d)
	}
	return kept, len(kept) <= proto.MaxDeeds && room >= 0
}

// sinceAdmin are the deeds of q that follow that of the last admin, the newest first.
func (q *queue) sinceAdmin() (handed []proof) {
	at := homeRecord{q.state.GetGeneration(), proto.PeerID(q.state.GetHome()), q.root}
	for i, ok := at.proofIn(q.deeds); ok && !q.deeds[i].Admin && len(handed) < len(q.deeds); i, ok = at.proofIn(q.deeds) {
		d := q.deeds[i]
		handed, at = append(handed, d), homeRecord{d.Generation - 1, d.From, at.root}
	}
	return handed
}

// unconfirmed reports whether an admin should confirm the home of q: it changed often
// since the last one did, or by the word of one that was revoked since, which counts
// nothing for who hears it first.
func (h *Home) unconfirmed(q *queue) bool {
	handed := q.sinceAdmin()
	return len(handed) >= maxSince || slices.ContainsFunc(handed, func(d proof) bool {
		_, err := h.cfg.Deeds.Verify(d.signed)
		return err != nil
	})
}

// A assessment is what a state says of the home of a queue, looked at.
type assessment struct {
	deeds []proof // of it and of what is known, that hold
	root  Root    // of those that prove the home
	valid bool    // they prove it, or it is the home that is known
}

// assess looks at what m says of q: an admin made the queue, seized it or confirmed its
// home, or its homes handed it on, one to the next.
func (h *Home) assess(q *queue, m *proto.QueueState) (x assessment) {
	homes := map[homeRecord]bool{}
	if q.state != nil {
		homes[homeRecord{q.state.Generation, proto.PeerID(q.state.Home), q.root}] = true
	}
	note := func(d proof) {
		if !d.From.IsZero() {
			homes[homeRecord{d.Generation - 1, d.From, d.Root}] = true
		}
		homes[homeRecord{d.Generation, d.To, d.Root}] = true
	}
	for _, d := range q.deeds {
		note(d)
	}
	for _, d := range h.verifiedProofs(m, q.deeds) {
		if d.Admin || homes[homeRecord{d.Generation - 1, d.From, d.Root}] {
			note(d)
			x.deeds = append(x.deeds, d)
		}
	}
	for at := range homes {
		if at.generation == m.Generation && string(at.home[:]) == string(m.Home) && (!x.valid || bytes.Compare(at.root[:], x.root[:]) < 0) {
			x.valid, x.root = true, at.root
		}
	}
	x.valid = x.valid && m.Generation <= proto.MaxGeneration || h.cfg.mutation == claimUnproven
	return x
}

// supersedes reports whether a is to be believed rather than what is known of q, if it is
// said with right: the lower root; of one root the higher generation; where a home that
// forgot has handed the queue on twice, or an admin seized it meanwhile, the admin's
// word, then the higher home.
func (h *Home) supersedes(a *proto.QueueState, x assessment, q *queue) bool {
	b := q.state
	if b == nil {
		return true
	}
	if c := bytes.Compare(x.root[:], q.root[:]); c != 0 && x.valid {
		return c < 0
	}
	if a.Generation != b.Generation {
		return a.Generation > b.Generation
	}
	c := bytes.Compare(a.Home, b.Home)
	if c == 0 { // what its home has set here nobody knows better
		return a.ChangedMs > b.ChangedMs && string(a.Home) != string(h.self[:])
	}
	stated := func(home []byte, deeds []proof) bool {
		i, ok := homeRecord{a.Generation, proto.PeerID(home), x.root}.proofIn(deeds)
		return ok && deeds[i].Admin
	}
	if its, mine := stated(a.Home, x.deeds), stated(b.Home, q.deeds); its != mine {
		return its
	}
	return c > 0
}

// mergeDeeds adds to what is known of q the deeds of an older state, if they hold: a home
// that lost the queue shows by them that it had it.
func (h *Home) mergeDeeds(q *queue, m *proto.QueueState, x assessment) {
	if q.state == nil || !slices.ContainsFunc(m.GetDeeds(), func(x *proto.Signed) bool { return !q.hasDeed(x) }) {
		return // as nearly always: members say again what they said before
	}
	s := h.stateOf(q)
	deeds, ok := trim(inOrder(x.deeds), homeRecord{q.state.Generation, proto.PeerID(q.state.Home), q.root}, h.deedSpace(s))
	if !ok || len(deeds) == len(q.deeds) {
		return
	}
	h.reportCreatedTwice(q, deeds)
	s.Deeds = signedOf(deeds)
	h.setState(q, s)
	h.out.put(queueKey(q.name), s)
}

// reportCreatedTwice tells that two admins made q, when the deeds that come say so first.
func (h *Home) reportCreatedTwice(q *queue, deeds []proof) {
	for _, d := range deeds {
		other := func(o proof) bool { return o.Generation == 1 && o.Root != d.Root }
		if d.Generation == 1 && !containsDeed(q.deeds, d.signed) && (slices.ContainsFunc(q.deeds, other) || q.state != nil && len(q.deeds) > 0 && q.root != d.Root) {
			h.out.Events = append(h.out.Events, Event{Kind: EventConflict, Queue: q.name, Peer: d.To, Cause: "two admins made this queue while they did not see each other: the deed with the lower root counts everywhere, and the other home hands its tasks over"})
		}
	}
}

func signedOf(deeds []proof) (all []*proto.Signed) {
	for _, d := range deeds {
		all = append(all, d.signed)
	}
	return all
}

// known reports whether it is known whose q is, which may be nil.
func (q *queue) known() bool { return q != nil && q.state != nil }

// wasHome reports whether p is, or once was, the home of q, which may be nil: not known.
func (q *queue) wasHome(p proto.PeerID) bool {
	return q != nil && (string(q.state.GetHome()) == string(p[:]) || slices.ContainsFunc(q.deeds, func(d proof) bool { return d.From == p || d.To == p }))
}

// mayHandOff reports whether from may speak about where a task is, or was: it is or was the
// home of its queue. That its origin sent it to it gives no right: whoever is in league
// with an origin would go round the rules of the queue.
func (h *Home) mayHandOff(from proto.PeerID, t Task) bool {
	return h.queues[t.Queue].wasHome(from) || h.cfg.mutation == handoffUnproven
}

// mayGiveQueue reports whether from may say of m, whose home is this node, what is news here:
// it is or was the home of the queue, by deeds that hold, and is not the one that gave
// this node as many queues as one may give.
func (h *Home) mayGiveQueue(from proto.PeerID, m *proto.QueueState) bool {
	q := h.queues[m.Name]
	if q == nil {
		q = newQueue(m.Name)
	}
	x := h.assess(q, m)
	if !h.supersedes(m, x, q) || h.cfg.mutation == claimUnproven {
		return true
	}
	cause := "it gives away a queue that it never had"
	if x.valid && (q.wasHome(from) || (&queue{deeds: x.deeds}).wasHome(from)) {
		if q.state != nil || !h.gaveTooMany(from) {
			return true
		}
		cause = "it gives away more queues than one node may"
	}
	h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: from, Cause: cause})
	return false
}

// gaveTooMany reports whether from gave this node as many queues as it may.
func (h *Home) gaveTooMany(from proto.PeerID) bool {
	n := 0
	for _, q := range h.queues {
		if last := len(q.deeds) - 1; last >= 0 && q.deeds[last].From == from && q.isHome(h.self) {
			n++
		}
	}
	return n >= maxQueuesFromPeer
}
