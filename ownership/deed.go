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
	Seizure    uint64 // of a confirmation: the generation of the newest seizure before it; 0: none
	Admin      bool   // signed by an admin: a chain of deeds may begin with it
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
	if err != nil || containsDeed(all, signed) {
		return err
	}
	space := h.deedSpace(s)
	kept, ok := trim(inOrder(append(all, proof{d, signed})), homeRecord{s.Generation, proto.PeerID(s.Home), d.Root}, space)
	if !ok {
		return h.errFull(s)
	}
	s.Deeds, s.Root, s.Stated, s.Seizure = signedOf(kept), nil, 0, 0
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

// containsDeed compares signers too: two admins sign the same words when they create a name
// for the same home, and the roots differ.
func containsDeed(known []proof, x *proto.Signed) bool {
	return slices.ContainsFunc(known, func(k proof) bool {
		return bytes.Equal(k.signed.Details, x.Details) && bytes.Equal(k.signed.Signer, x.Signer)
	})
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

// A rank tells what admins have stated about a chain of deeds. A home can sign more than one
// version of what follows it; what an admin stated it cannot undo. A seizure, which a person
// decides, outranks what an admin confirms that has not heard of it.
type rank struct{ seizure, stated uint64 } // the generations of the newest seizure and the newest deed of an admin; 0: none

func (r rank) compare(o rank) int {
	return cmp.Or(cmp.Compare(r.seizure, o.seizure), cmp.Compare(r.stated, o.stated))
}

// An ancestry maps each home that deeds prove to the rank of its chain.
type ancestry map[homeRecord]rank

// add reads deeds that are in order.
func (all ancestry) add(deeds []proof) ancestry {
	for _, d := range deeds {
		to := homeRecord{d.Generation, d.To, d.Root}
		if r := all.of(d); r.compare(all[to]) > 0 {
			all[to] = r
		}
	}
	return all
}

// of returns the rank of the chain that ends with d.
func (all ancestry) of(d proof) rank {
	switch {
	case d.Seized:
		return rank{d.Generation, d.Generation}
	case d.Admin:
		return rank{d.Seizure, d.Generation}
	}
	return all[homeRecord{d.Generation - 1, d.From, d.Root}]
}

// proofIn returns the index of the deed that proves it, preferring the one whose chain has
// the higher rank.
func (at homeRecord) proofIn(deeds []proof, all ancestry) (index int, ok bool) {
	return at.chooseIn(deeds, all, func(int) bool { return true })
}

func (at homeRecord) chooseIn(deeds []proof, all ancestry, may func(i int) bool) (index int, ok bool) {
	index = -1
	for i, d := range deeds {
		if d.Generation == at.generation && d.To == at.home && d.Root == at.root && may(i) && (index < 0 || all.of(d).compare(all.of(deeds[index])) > 0) {
			index = i
		}
	}
	return index, index >= 0
}

// The parts of the deeds of a state, in the order in which they are dropped.
const (
	besideHistory = iota // other versions: they identify homes whose handoff an admin's deed voided
	inHistory            // how it came to the deed of an admin: they identify former homes
	inProof              // from that deed to the home
)

// Limits on the deeds beside the history of a queue.
const (
	maxBeside     = 8
	maxBesideFrom = 2 // handoffs of one home, which could sign any number
)

// trim keeps as many deeds as fit into a state. It reports whether the proof of at fits, in
// number and in bytes.
func trim(deeds []proof, at homeRecord, space int) (kept []proof, ok bool) {
	part := partsOf(deeds, at)
	drop, over := make([]bool, len(deeds)), len(deeds)-proto.MaxDeeds
	for _, d := range deeds {
		space -= deedSize(d.signed)
	}
	leave := func(i int) {
		drop[i] = true
		over, space = over-1, space+deedSize(deeds[i].signed)
	}
	beside, by := 0, map[proto.PeerID]int{}
	for i := len(deeds) - 1; i >= 0; i-- { // the newest home beside the history has the tasks
		d := deeds[i]
		confirms := d.Admin && !d.Seized && d.Generation > 1 // that names nobody new
		switch {
		case part[i] != besideHistory:
		case confirms, beside == maxBeside, !d.Admin && by[d.From] == maxBesideFrom:
			leave(i)
		default:
			beside++
			if !d.Admin {
				by[d.From]++
			}
		}
	}
	for p := besideHistory; p < inProof; p++ {
		for i := range deeds {
			if (over > 0 || space < 0) && part[i] == p && !drop[i] {
				leave(i)
			}
		}
	}
	for i, d := range deeds {
		if !drop[i] {
			kept = append(kept, d)
		}
	}
	return kept, len(kept) <= proto.MaxDeeds && space >= 0
}

// partsOf returns to which part each of the deeds belongs, if at is the home.
func partsOf(deeds []proof, at homeRecord) (part []int) {
	part = make([]int, len(deeds))
	all, is := ancestry{}.add(deeds), inProof
	unseen := func(i int) bool { return part[i] == besideHistory }
	for i, ok := at.proofIn(deeds, all); ok; {
		d := deeds[i]
		part[i] = is
		if d.Admin {
			is = inHistory
		}
		if d.From.IsZero() { // it was confirmed: how it became the home
			i, ok = at.chooseIn(deeds, all, func(j int) bool { return unseen(j) && !deeds[j].From.IsZero() })
			continue
		}
		at = homeRecord{d.Generation - 1, d.From, d.Root}
		i, ok = at.chooseIn(deeds, all, unseen)
	}
	return part
}

// sinceAdmin returns the deeds of q that follow the last one by an admin, the newest first.
func (q *queue) sinceAdmin() (handed []proof) {
	at, all := q.record(), ancestry{}.add(q.deeds)
	for i, ok := at.proofIn(q.deeds, all); ok && !q.deeds[i].Admin && len(handed) < len(q.deeds); i, ok = at.proofIn(q.deeds, all) {
		d := q.deeds[i]
		handed, at = append(handed, d), homeRecord{d.Generation - 1, d.From, at.root}
	}
	return handed
}

// record returns the home of q, which is known.
func (q *queue) record() homeRecord {
	return homeRecord{q.state.GetGeneration(), proto.PeerID(q.state.GetHome()), q.root}
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
		homes[q.record()] = true
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
		if _, proven := at.proofIn(x.deeds, nil); !proven && (!q.known() || at != q.record()) {
			continue // a seizure from a home does not prove that home
		}
		if at.generation == m.Generation && string(at.home[:]) == string(m.Home) && (!x.valid || bytes.Compare(at.root[:], x.root[:]) < 0) {
			x.valid, x.root = true, at.root
		}
	}
	x.valid = x.valid && m.Generation <= proto.MaxGeneration
	return x
}

// supersedes reports whether the valid state a replaces the known state of q. The lower
// root wins, then the higher rank: no former home undoes what an admin stated after it.
// Then the higher generation wins, then the higher home: one that lost its data may have
// handed the queue on twice.
func (h *Home) supersedes(a *proto.QueueState, x assessment, q *queue) bool {
	b := q.state
	if b == nil {
		return true
	}
	if c := bytes.Compare(x.root[:], q.root[:]); c != 0 && x.valid {
		return c < 0
	}
	c := bytes.Compare(a.Home, b.Home)
	if c == 0 && a.Generation == b.Generation { // its home is the authority for its settings, unless it was revoked
		return len(b.Root) == 0 && a.ChangedMs > b.ChangedMs && string(a.Home) != string(h.self[:])
	}
	if x.valid {
		all := q.ancestry(x.deeds)
		its, mine := all[homeRecord{a.Generation, proto.PeerID(a.Home), x.root}], all[q.record()]
		if c := its.compare(mine); c != 0 || len(b.Root) > 0 { // the home was revoked: see Home.Revoked
			return c > 0 || c == 0 && its.seizure == a.Generation
		}
	}
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), c) > 0
}

// ancestry returns that of deeds, which include those of q. If they do not prove the home
// of q, whose own were dropped with its revocation, its state tells the rank.
func (q *queue) ancestry(deeds []proof) ancestry {
	all, at := ancestry{}, q.record()
	if _, ok := at.proofIn(q.deeds, nil); !ok {
		all[at] = rank{q.state.GetSeizure(), q.state.GetStated()}
	}
	return all.add(deeds)
}

// mergeDeeds adds the valid deeds of an older state to those known of q: with them a home
// that lost the queue proves that it had it.
func (h *Home) mergeDeeds(q *queue, m *proto.QueueState, x assessment) {
	switch {
	case q.state == nil, !slices.ContainsFunc(m.GetDeeds(), func(x *proto.Signed) bool { return !q.hasDeed(x) }):
		return // nearly always: members repeat what they sent before
	case len(q.state.Root) > 0:
		return // of a revoked home: see Home.Revoked
	}
	s := h.stateOf(q)
	news := slices.DeleteFunc(slices.Clone(x.deeds), func(d proof) bool { return !d.Admin && !q.hasDeed(d.signed) && !h.cfg.MayBeHome(d.To) })
	deeds, ok := trim(inOrder(news), q.record(), h.deedSpace(s))
	if !ok || len(deeds) == len(q.deeds) && !slices.ContainsFunc(deeds, func(d proof) bool { return !q.hasDeed(d.signed) }) {
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
			cause := "two admins created this name while they were not connected: the statement with the lower root counts everywhere"
			if proto.NamesQueue(q.name) {
				cause += ", and the other home hands its tasks over"
			} else {
				cause += ", and the other home sends its mail on"
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
		q = h.newQueue(m.Name)
	}
	x := h.assess(q, m)
	if !h.supersedes(m, x, q) {
		return true
	}
	cause := "it hands over a queue that it never had"
	if x.valid && (q.wasHome(from) || (&queue{deeds: x.deeds}).wasHome(from)) {
		if !h.mayBecomeHome(q, m) {
			return false
		}
		if q.state != nil || !h.gaveTooMany(from) {
			return true
		}
		cause = "it hands over more queues than one node may"
	}
	h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: from, Cause: cause})
	return false
}

// mayBecomeHome reports whether the node that m names may be the home of q; the known home
// may. Deeds do not prove that: their signers may be wrong, and roles change.
func (h *Home) mayBecomeHome(q *queue, m *proto.QueueState) bool {
	p := proto.PeerID(m.Home)
	if string(q.state.GetHome()) == string(m.Home) || h.cfg.MayBeHome(p) {
		return true
	}
	h.out.Events = append(h.out.Events, Event{Kind: EventForged, Queue: m.Name, Peer: p, Cause: "the home of " + proto.TitleText(m.Name) + " needs the role work, and no certificate known here gives it to this one"})
	return false
}

// gaveTooMany reports whether from has given this node as many queues as it may.
func (h *Home) gaveTooMany(from proto.PeerID) bool {
	n := 0
	for _, q := range h.queues {
		if q.isHome(h.self) && slices.ContainsFunc(q.deeds, func(d proof) bool {
			return d.From == from && d.To == h.self && !d.Seized && d.Generation == q.state.GetGeneration()
		}) {
			n++
		}
	}
	return n >= maxQueuesFromPeer
}
