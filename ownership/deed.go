package ownership

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// Deeds creates and verifies the statements that prove which node is the home of a queue.
// Without a deed a queue has no home.
type Deeds interface {
	// Sign states that a queue is created or changes its home: a handoff as its home,
	// everything else as an admin.
	Sign(d Deed) (*proto.Signed, error)
	// Verify reads a statement whose signer may make it now: the home until then, or an
	// admin, not revoked.
	Verify(s *proto.Signed) (Deed, error)
	// ReadVerified reads a statement that Verify accepted before. It stays valid even when
	// its signer may sign nothing more.
	ReadVerified(s *proto.Signed) (Deed, error)
}

// A Root identifies one creation of a queue: all deeds that go back to that creation share
// it. Where two admins created a queue with the same name the lower root wins.
type Root [32]byte

// A Deed begins a generation of a queue, or confirms its home.
type Deed struct {
	Queue      string
	Generation uint64       // the generation that begins; 1: the queue is created
	From, To   proto.PeerID // From is zero when the queue is created or its home is confirmed
	Seized     bool
	Root       Root
	Admin      bool // signed by an admin: a chain of deeds may begin with it
}

// A proof is a verified deed, with the signed form that is sent on.
type proof struct {
	Deed
	signed *proto.Signed
}

// signDeed signs d for the home and generation of s, and adds it to s.
func (h *Home) signDeed(s *proto.QueueState, root Root, d Deed) error {
	d.Queue, d.Generation, d.Root = s.Name, s.Generation, root
	copy(d.To[:], s.Home)
	if d.Generation > proto.MaxGeneration {
		return fmt.Errorf("the home of %s has changed too often: it cannot change again", proto.TitleText(s.Name))
	}
	signed, err := h.cfg.Deeds.Sign(d)
	if err != nil {
		return err
	}
	return h.addDeed(s, signed)
}

// addDeed adds a deed to a state, and drops the oldest ones that do not prove its home.
func (h *Home) addDeed(s *proto.QueueState, signed *proto.Signed) error {
	all := h.proofs(s.Deeds)
	d, err := h.cfg.Deeds.ReadVerified(signed)
	if err != nil {
		return err
	}
	space := h.deedSpace(s)
	kept, ok := trim(inOrder(append(all, proof{d, signed})), homeRecord{s.Generation, proto.PeerID(s.Home), d.Root}, space)
	if !ok {
		return h.errFull(s)
	}
	s.Deeds, s.Root = signedOf(kept), nil
	return nil
}

// deedSpace returns how many bytes of deeds fit into a state; other nodes reject a larger
// state. It is negative when not even the rest of the state fits.
func (h *Home) deedSpace(s *proto.QueueState) int {
	space, ok := h.allowance(s.Name, proto.PeerID(s.Home))
	if !ok {
		return -1
	}
	space -= proto.Size(s)
	for _, x := range s.Deeds {
		space += deedSize(x)
	}
	return space
}

// deedSize returns how many bytes of a state a deed uses.
func deedSize(x *proto.Signed) int { return proto.Size(x) + deedFrame }

const deedFrame = 8 // number and length of the field

// trimToFit drops the oldest deeds of a state that is too large, but keeps those that prove
// it. It reports whether the state fits then.
func (h *Home) trimToFit(s *proto.QueueState) bool {
	all := h.proofs(s.Deeds)
	root := h.rootOf(s, &queue{})
	kept, ok := trim(all, homeRecord{s.Generation, proto.PeerID(s.Home), root}, h.deedSpace(s))
	s.Deeds = signedOf(kept)
	return ok
}

// errTooManyMoves is returned for a handoff whose deeds would not fit into the state.
var errTooManyMoves = errors.New("the home has changed too often since an admin last signed: an admin that is connected confirms the home, and then it can change again")

// proofs reads deeds that were verified before.
func (h *Home) proofs(signed []*proto.Signed) (all []proof) {
	for _, x := range signed {
		if d, err := h.cfg.Deeds.ReadVerified(x); err == nil {
			all = append(all, proof{d, x})
		}
	}
	return inOrder(all)
}

// inOrder sorts deeds by generation. A generation may have several: a handoff and a seizure
// or two seizures at the same time, or two admins that created the queue.
func inOrder(all []proof) []proof {
	slices.SortStableFunc(all, func(a, b proof) int { return cmp.Compare(a.Generation, b.Generation) })
	return all
}

// verifiedProofs returns the valid deeds of a state, and known, which were verified before.
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

// hasDeed reports whether x is a deed of q that was verified before.
func (q *queue) hasDeed(x *proto.Signed) bool { return containsDeed(q.deeds, x) }

// A homeRecord states that a node is, or was, the home of a queue from a generation on, by
// deeds of a root.
type homeRecord struct {
	generation uint64
	home       proto.PeerID
	root       Root
}

// proofIn returns the index of the deed that proves it, preferring an admin's.
func (at homeRecord) proofIn(deeds []proof) (index int, ok bool) {
	index = -1
	for i, d := range deeds {
		if d.Generation == at.generation && d.To == at.home && d.Root == at.root && (index < 0 || d.Admin) {
			index = i
		}
	}
	return index, index >= 0
}

// trim keeps as many deeds as fit into a state: those that prove at, back to an admin's
// deed, and the newest others, which identify former homes. It reports whether the former
// fit, in number and in bytes.
func trim(deeds []proof, at homeRecord, space int) (kept []proof, ok bool) {
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
		space -= deedSize(d.signed)
	}
	for i, d := range deeds {
		if (over > 0 || space < 0) && !need[i] {
			over--
			space += deedSize(d.signed)
			continue
		}
		kept = append(kept, d)
	}
	return kept, len(kept) <= proto.MaxDeeds && space >= 0
}

// sinceAdmin returns the deeds of q that follow the last one by an admin, the newest first.
func (q *queue) sinceAdmin() (handed []proof) {
	at := homeRecord{q.state.GetGeneration(), proto.PeerID(q.state.GetHome()), q.root}
	for i, ok := at.proofIn(q.deeds); ok && !q.deeds[i].Admin && len(handed) < len(q.deeds); i, ok = at.proofIn(q.deeds) {
		d := q.deeds[i]
		handed, at = append(handed, d), homeRecord{d.Generation - 1, d.From, at.root}
	}
	return handed
}

// unconfirmed reports whether an admin should confirm the home of q: it has changed often
// since the last confirmation, or a node that was revoked since signed a handoff, which a
// node that sees it for the first time rejects.
func (h *Home) unconfirmed(q *queue) bool {
	handed := q.sinceAdmin()
	return len(handed) >= maxSince || slices.ContainsFunc(handed, func(d proof) bool {
		_, err := h.cfg.Deeds.Verify(d.signed)
		return err != nil
	})
}

// An assessment is what the deeds prove about a queue state.
type assessment struct {
	deeds []proof // the valid ones, of the state and known before
	root  Root    // of those that prove the home
	valid bool    // they prove the home, or it is the known one
}

// assess checks what m states about q: an admin created or seized the queue or confirmed
// its home, or its homes handed it on one to the next.
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
	x.valid = x.valid && m.Generation <= proto.MaxGeneration
	return x
}

// supersedes reports whether the valid state a replaces the known state of q. The lower
// root wins; with the same root, the higher generation. In the same generation (a home that
// lost its data handed the queue on twice, or an admin seized it meanwhile) the admin's
// deed wins, then the higher home.
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
	if c == 0 { // this node is the authority for what its home set
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

// mergeDeeds adds the valid deeds of an older state to those known of q: with them a home
// that lost the queue proves that it had it.
func (h *Home) mergeDeeds(q *queue, m *proto.QueueState, x assessment) {
	if q.state == nil || !slices.ContainsFunc(m.GetDeeds(), func(x *proto.Signed) bool { return !q.hasDeed(x) }) {
		return // nearly always: members repeat what they sent before
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

// reportCreatedTwice emits an event when deeds arrive that first show that two admins
// created q.
func (h *Home) reportCreatedTwice(q *queue, deeds []proof) {
	for _, d := range deeds {
		other := func(o proof) bool { return o.Generation == 1 && o.Root != d.Root }
		if d.Generation == 1 && !containsDeed(q.deeds, d.signed) && (slices.ContainsFunc(q.deeds, other) || q.state != nil && len(q.deeds) > 0 && q.root != d.Root) {
			cause := "two admins created this name while they were not connected: the deed with the lower root counts everywhere"
			if proto.NamesQueue(q.name) {
				cause += ", and the other home hands its tasks over"
			}
			h.out.Events = append(h.out.Events, Event{Kind: EventConflict, Queue: q.name, Peer: d.To, Cause: cause})
		}
	}
}

func signedOf(deeds []proof) (all []*proto.Signed) {
	for _, d := range deeds {
		all = append(all, d.signed)
	}
	return all
}

// known reports whether the home of q is known. q may be nil.
func (q *queue) known() bool { return q != nil && q.state != nil }

// wasHome reports whether p is, or once was, the home of q, as far as is known. q may be
// nil.
func (q *queue) wasHome(p proto.PeerID) bool {
	return q != nil && (string(q.state.GetHome()) == string(p[:]) || slices.ContainsFunc(q.deeds, func(d proof) bool { return d.From == p || d.To == p }))
}

// mayHandOff reports whether from may report where a task is or was: it is or was the home
// of its queue. That the origin sent the task to it gives no such right; otherwise a node
// that colludes with an origin could bypass the rules of the queue.
func (h *Home) mayHandOff(from proto.PeerID, t Task) bool {
	return h.wasHome(t.Queue, from)
}

// mayGiveQueue reports whether from may announce m, which names this node as the home, when
// it is news: valid deeds show that from is or was the home of the queue, and it has not
// given this node too many queues.
func (h *Home) mayGiveQueue(from proto.PeerID, m *proto.QueueState) bool {
	if !proto.NamesQueue(m.Name) {
		h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: from, Cause: errNotQueue.Error()})
		return false
	}
	q := h.queues[m.Name]
	if q == nil {
		q = newQueue(m.Name)
	}
	x := h.assess(q, m)
	if !h.supersedes(m, x, q) {
		return true
	}
	cause := "it hands over a queue that it never had"
	if x.valid && (q.wasHome(from) || (&queue{deeds: x.deeds}).wasHome(from)) {
		if q.state != nil || !h.gaveTooMany(from) {
			return true
		}
		cause = "it hands over more queues than one node may"
	}
	h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: from, Cause: cause})
	return false
}

// gaveTooMany reports whether from has given this node as many queues as it may.
func (h *Home) gaveTooMany(from proto.PeerID) bool {
	n := 0
	for _, q := range h.queues {
		if last := len(q.deeds) - 1; last >= 0 && q.deeds[last].From == from && q.isHome(h.self) {
			n++
		}
	}
	return n >= maxQueuesFromPeer
}
