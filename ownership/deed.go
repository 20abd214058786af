package ownership

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
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
func (ti *titles) signDeed(s *proto.QueueState, root Root, d Deed) error {
	d.Queue, d.Generation, d.Root = s.Name, s.Generation, root
	copy(d.To[:], s.Home)
	if d.Generation > proto.MaxGeneration {
		return fmt.Errorf("the home of %s has changed too often: it cannot change again", proto.TitleText(s.Name))
	}
	signed, err := ti.cfg.Deeds.Sign(d)
	if err != nil {
		return err
	}
	return ti.addDeed(s, signed)
}

// addDeed adds a deed to a state, and drops the oldest ones that do not prove its home.
func (ti *titles) addDeed(s *proto.QueueState, signed *proto.Signed) error {
	all := ti.proofs(s.Deeds)
	d, err := ti.cfg.Deeds.ReadVerified(signed)
	if err != nil || containsDeed(all, signed) {
		return err
	}
	space := ti.deedSpace(s)
	kept, ok := trim(inOrder(append(all, proof{d, signed})), homeRecord{s.Generation, proto.PeerID(s.Home), d.Root}, space)
	if !ok {
		return ti.errFull(s)
	}
	s.Deeds, s.Root, s.Stated, s.Seizure = signedOf(kept), nil, 0, 0
	return nil
}

// deedSpace returns how many bytes of deeds fit into a state; other nodes reject a larger
// state. It is negative when not even the rest of the state fits.
func (ti *titles) deedSpace(s *proto.QueueState) int {
	space, ok := ti.allowance(s.Name, proto.PeerID(s.Home))
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
func (ti *titles) trimToFit(s *proto.QueueState) bool {
	all := ti.proofs(s.Deeds)
	root := ti.rootOf(s, &title{})
	kept, ok := trim(all, homeRecord{s.Generation, proto.PeerID(s.Home), root}, ti.deedSpace(s))
	s.Deeds = signedOf(kept)
	return ok
}

// errTooManyMoves is returned for a handoff whose deeds would not fit into the state.
var errTooManyMoves = errors.New("the home has changed too often since an admin last signed: an admin that is connected confirms the home, and then it can change again")

// proofs reads deeds that were verified before.
func (ti *titles) proofs(signed []*proto.Signed) (all []proof) {
	for _, x := range signed {
		if d, err := ti.cfg.Deeds.ReadVerified(x); err == nil {
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
func (ti *titles) verifiedProofs(s *proto.QueueState, known []proof) []proof {
	all := slices.Clone(known)
	for _, x := range s.GetDeeds() {
		if containsDeed(known, x) {
			continue
		}
		if d, err := ti.cfg.Deeds.Verify(x); err == nil && d.Queue == s.Name {
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

// hasDeed reports whether x is a deed of t that was verified before.
func (t *title) hasDeed(x *proto.Signed) bool { return containsDeed(t.deeds, x) }

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

// Limits on the deeds besides the history of a queue.
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
	for i := len(deeds) - 1; i >= 0; i-- { // the newest home besides the history has the tasks
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

// sinceAdmin returns the deeds of t that follow the last one by an admin, the newest first.
func (t *title) sinceAdmin() (handed []proof) {
	at, all := t.record(), ancestry{}.add(t.deeds)
	for i, ok := at.proofIn(t.deeds, all); ok && !t.deeds[i].Admin && len(handed) < len(t.deeds); i, ok = at.proofIn(t.deeds, all) {
		d := t.deeds[i]
		handed, at = append(handed, d), homeRecord{d.Generation - 1, d.From, at.root}
	}
	return handed
}

// record returns the home of t, which is known.
func (t *title) record() homeRecord {
	return homeRecord{t.state.GetGeneration(), proto.PeerID(t.state.GetHome()), t.root}
}

// An assessment is what the deeds prove about a queue state.
type assessment struct {
	deeds []proof // the valid ones, of the state and known before
	root  Root    // of those that prove the home
	valid bool    // they prove the home, or it is the known one
}

// assess checks what m states about t: an admin created or seized the queue or confirmed
// its home, or its homes handed it on one to the next.
func (ti *titles) assess(t *title, m *proto.QueueState) (x assessment) {
	homes := map[homeRecord]bool{}
	if t.state != nil {
		homes[t.record()] = true
	}
	note := func(d proof) {
		if !d.From.IsZero() {
			homes[homeRecord{d.Generation - 1, d.From, d.Root}] = true
		}
		homes[homeRecord{d.Generation, d.To, d.Root}] = true
	}
	for _, d := range t.deeds {
		note(d)
	}
	for _, d := range ti.verifiedProofs(m, t.deeds) {
		if d.Admin || homes[homeRecord{d.Generation - 1, d.From, d.Root}] {
			note(d)
			x.deeds = append(x.deeds, d)
		}
	}
	for at := range homes {
		if _, proven := at.proofIn(x.deeds, nil); !proven && (!t.known() || at != t.record()) {
			continue // a seizure from a home does not prove that home
		}
		if at.generation == m.Generation && string(at.home[:]) == string(m.Home) && (!x.valid || bytes.Compare(at.root[:], x.root[:]) < 0) {
			x.valid, x.root = true, at.root
		}
	}
	x.valid = x.valid && m.Generation <= proto.MaxGeneration
	return x
}

// supersedes reports whether the valid state a replaces the known state of t. The lower
// root wins, then the higher rank: no former home undoes what an admin stated after it.
// Then the higher generation wins, then the higher home: one that lost its data may have
// handed the queue on twice.
func (ti *titles) supersedes(a *proto.QueueState, x assessment, t *title) bool {
	b := t.state
	if b == nil {
		return true
	}
	if c := bytes.Compare(x.root[:], t.root[:]); c != 0 && x.valid {
		return c < 0
	}
	c := bytes.Compare(a.Home, b.Home)
	if c == 0 && a.Generation == b.Generation { // its home is the authority for its settings, unless it was revoked
		return len(b.Root) == 0 && a.ChangedMs > b.ChangedMs && string(a.Home) != string(ti.self[:])
	}
	if x.valid {
		all := t.ancestry(x.deeds)
		its, mine := all[homeRecord{a.Generation, proto.PeerID(a.Home), x.root}], all[t.record()]
		if c := its.compare(mine); c != 0 || len(b.Root) > 0 { // the home was revoked: see Home.Revoked
			return c > 0 || c == 0 && its.seizure == a.Generation
		}
	}
	return cmp.Or(cmp.Compare(a.Generation, b.Generation), c) > 0
}

// ancestry returns that of deeds, which include those of t. If they do not prove the home
// of t, whose own were dropped with its revocation, its state tells the rank.
func (t *title) ancestry(deeds []proof) ancestry {
	all, at := ancestry{}, t.record()
	if _, ok := at.proofIn(t.deeds, nil); !ok {
		all[at] = rank{t.state.GetSeizure(), t.state.GetStated()}
	}
	return all.add(deeds)
}

// mergeDeeds adds the valid deeds of an older state to those known of t: with them a home
// that lost the queue proves that it had it.
func (ti *titles) mergeDeeds(t *title, m *proto.QueueState, x assessment, o *Output) {
	switch {
	case t.state == nil, !slices.ContainsFunc(m.GetDeeds(), func(x *proto.Signed) bool { return !t.hasDeed(x) }):
		return // nearly always: members repeat what they sent before
	case len(t.state.Root) > 0:
		return // of a revoked home: see Home.Revoked
	}
	s := ti.stateOf(t)
	news := slices.DeleteFunc(slices.Clone(x.deeds), func(d proof) bool { return !d.Admin && !t.hasDeed(d.signed) && !ti.cfg.MayBeHome(d.To) })
	deeds, ok := trim(inOrder(news), t.record(), ti.deedSpace(s))
	if !ok || len(deeds) == len(t.deeds) && !slices.ContainsFunc(deeds, func(d proof) bool { return !t.hasDeed(d.signed) }) {
		return
	}
	t.reportCreatedTwice(deeds, o)
	s.Deeds = signedOf(deeds)
	ti.set(t, s, o)
}

// reportCreatedTwice emits an event when deeds arrive that first show that two admins
// created t.
func (t *title) reportCreatedTwice(deeds []proof, o *Output) {
	for _, d := range deeds {
		other := func(e proof) bool { return e.Generation == 1 && e.Root != d.Root }
		if d.Generation == 1 && !containsDeed(t.deeds, d.signed) && (slices.ContainsFunc(t.deeds, other) || t.state != nil && len(t.deeds) > 0 && t.root != d.Root) {
			o.Events = append(o.Events, Event{Kind: EventConflict, Queue: t.name, Peer: d.To, Cause: wire.LeaseCreatedTwice})
		}
	}
}

func signedOf(deeds []proof) (all []*proto.Signed) {
	for _, d := range deeds {
		all = append(all, d.signed)
	}
	return all
}

// known reports whether the home of t is known. t may be nil.
func (t *title) known() bool { return t != nil && t.state != nil }

// wasHome reports whether p is, or once was, the home of t, as far as is known. t may be
// nil.
func (t *title) wasHome(p proto.PeerID) bool {
	return t != nil && (string(t.state.GetHome()) == string(p[:]) || slices.ContainsFunc(t.deeds, func(d proof) bool { return d.From == p || d.To == p }))
}

// mayGiveQueue reports whether from may announce m, which names this node as the home, when
// it is news: valid deeds show that from is or was the home of the queue, and it has not
// given this node too many queues.
func (ti *titles) mayGiveQueue(from proto.PeerID, m *proto.QueueState, o *Output) bool {
	t := ti.named(m.Name)
	x := ti.assess(t, m)
	if !ti.supersedes(m, x, t) {
		return true
	}
	cause := wire.LeaseNeverHad
	if x.valid && (t.wasHome(from) || (&title{deeds: x.deeds}).wasHome(from)) {
		if !ti.mayBecomeHome(t, m, o) {
			return false
		}
		if t.state != nil || !ti.gaveTooMany(from) {
			return true
		}
		cause = wire.LeaseTooManyQueues
	}
	o.Events = append(o.Events, Event{Kind: EventForged, Queue: m.Name, Peer: from, Cause: cause})
	return false
}

// mayBecomeHome reports whether the node that m names may be the home of t; the known home
// may. Deeds do not prove that: their signers may be wrong, and roles change.
func (ti *titles) mayBecomeHome(t *title, m *proto.QueueState, o *Output) bool {
	p := proto.PeerID(m.Home)
	if string(t.state.GetHome()) == string(m.Home) || ti.cfg.MayBeHome(p) {
		return true
	}
	o.Events = append(o.Events, Event{Kind: EventForged, Queue: m.Name, Peer: p, Cause: wire.LeaseNoWorker})
	return false
}

// gaveTooMany reports whether from has given this node as many queues as it may.
func (ti *titles) gaveTooMany(from proto.PeerID) bool {
	n := 0
	for _, t := range ti.byName {
		if t.isHome(ti.self) && slices.ContainsFunc(t.deeds, func(d proof) bool {
			return d.From == from && d.To == ti.self && !d.Seized && d.Generation == t.state.GetGeneration()
		}) {
			n++
		}
	}
	return n >= maxQueuesFromPeer
}
