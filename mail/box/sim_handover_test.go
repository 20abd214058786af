package box

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/balefire/balefire/proto"
)

// simSpool is the spool of the simulation.
const simSpool = BoxID(4)

// The homes of the simulation. Mail of the other one is its own when a box is there.
var simHere, simThere = proto.PeerID{100}, proto.PeerID{2}

// A simHome is one of the homes of a box that moves: the node of the simulation, or the other one.
type simHome struct {
	s    *State
	log  [][]byte
	self proto.PeerID
	out  Output // of the last record
}

// apply applies a record, as a home that has it on disk does.
func (h *simHome) apply(s *sim, rec []byte) Result {
	h.log = append(h.log, bytes.Clone(rec))
	h.out = Output{}
	if err := h.s.Apply(Place(len(h.log)), h.log[len(h.log)-1], &h.out); err != nil {
		s.failf("apply %x: %v", rec, err)
	}
	if n := len(h.out.Results); n > 0 {
		return h.out.Results[n-1]
	}
	return Result{}
}

// must applies a record that is to count.
func (h *simHome) must(s *sim, rec []byte) {
	if r := h.apply(s, rec); r.Code != proto.CodeOK {
		s.failf("the record %x of a move: %+v", rec, r)
	}
}

// crash loses what is in memory only. The node of the simulation, whose other boxes go on, has its
// crashes between the moves: see [sim.restart].
func (h *simHome) crash(s *sim) {
	again := New(chainNotes{})
	var out Output
	for i, rec := range h.log {
		if err := again.Apply(Place(i+1), rec, &out); err != nil {
			s.failf("replay: %v", err)
		}
	}
	again.producers.limit = h.s.producers.limit
	if h.self == simThere {
		s.same(again, h.s)
		h.s = again
	}
}

// serves reports whether a home gives the mail of the box with this name, and takes mail for it.
func (h *simHome) serves(name string) bool {
	b := h.s.boxes[h.s.names[name]]
	return b != nil && !b.quiet()
}

// handOver does the next step of a move of a box to another home: it closes, is still, and then goes
// there and comes back, or is served here again.
func (s *sim) handOver() {
	i := s.moving()
	if i < 0 {
		i = s.choose(3)
	}
	id := s.boxes[i]
	b := s.m.boxes[id]
	settings := b.settings
	switch settings.Handover.Stage {
	case Closing:
		settings.Handover.Stage = Still
	case Still:
		if s.one(4) {
			settings.Handover = Handover{}
			break
		}
		if s.commit(len(s.flight)); b.stands() { // all that was decided before it was still counts
			s.trip(i)
		}
		return
	default:
		lanes := 0
		for _, u := range b.subs {
			lanes += len(u.blocked)
		}
		if why := s.s.Unmovable(id); why != "" || settings.PerPeer && lanes > 0 {
			if why == "" || !settings.PerPeer || lanes == 0 {
				s.failf("%d blocked lanes, and %q", lanes, why)
			}
			return
		}
		s.moves++
		settings.Handover = Handover{ID: [16]byte{s.moves}, Peer: simThere, Generation: 1, Stage: Closing}
	}
	s.flight = append(s.flight, EncodeBox(id, &settings))
	s.commit(s.choose(len(s.flight) + 1))
}

// moving returns which box is on its way; -1: none.
func (s *sim) moving() int {
	return slices.IndexFunc(s.boxes[:], func(id BoxID) bool { return s.m.boxes[id].moves() })
}

// refused checks that nothing of a box that is still changes.
func (s *sim) refused(id BoxID) {
	settings, _ := s.s.Settings(id)
	settings.Mails++
	sub := s.s.boxes[id].subs[0]
	paused := sub.settings
	paused.Paused = !paused.Paused
	was := s.save(s.s)
	for _, rec := range [][]byte{
		EncodeBox(id, &settings), EncodeRemoveBox(id), EncodeSub(id, sub.id, &paused, Start{}), EncodeUnblock(id, sub.id, 0, []byte("a")),
		EncodeRedriven(id, sub.id, []uint64{1}), EncodeArchived(id, sub.id, []uint64{1}),
	} {
		s.log = append(s.log, rec)
		var out Output
		if err := s.s.Apply(Place(len(s.log)), rec, &out); err != nil || out.Results[0].Code != proto.CodeBusy || !bytes.Equal(s.save(s.s), was) {
			s.failf("%x changes a box that is still: %+v, %v", rec, out.Results, err)
		}
	}
}

// trip moves a box that is still to the other home and back. It has there what it had here but for
// its leases and its sessions.
func (s *sim) trip(i int) {
	old := s.boxes[i]
	b := s.m.boxes[old]
	here := &simHome{s: s.s, log: s.log, self: simHere}
	there := &simHome{s: New(chainNotes{}), self: simThere}
	there.apply(s, appendAge(nil, age{1, 0, s.m.at}))
	there.must(s, EncodePeer(1, proto.PeerID{77}))
	untold := slices.Sorted(maps.Keys(b.untold))
	at := s.carry(here, there, old)
	var told []uint64
	for _, e := range here.out.Bounces {
		told = append(told, e.Seq)
		if e.State != Done {
			s.failf("a mail of a box that moves ended: %+v", e)
		}
	}
	if !slices.Equal(told, untold) || len(here.out.Ends) > 0 {
		s.failf("the senders of %v were told, want %v; ended %v", told, untold, here.out.Ends)
	}
	s.note(&here.out)
	clear(b.untold)
	s.checkMoved(there, at, b)
	settings, _ := there.s.Settings(at)
	for _, stage := range []Stage{Closing, Still} {
		settings.Handover = Handover{ID: [16]byte{s.moves, 1}, Peer: simHere, Generation: 2, Stage: stage}
		there.must(s, EncodeBox(at, &settings))
	}
	id := s.carry(there, here, at)
	s.log = here.log
	s.checkMoved(here, id, b)
	s.did("box %d went and is box %d", old, id)
	s.renumber(i, id)
}

// renumber lets box i of the simulation have another number.
func (s *sim) renumber(i int, id BoxID) {
	old := s.boxes[i]
	b := s.m.boxes[old]
	s.boxes[i], s.m.boxes[id] = id, b
	delete(s.m.boxes, old)
	b.settings, _ = s.s.Settings(id)
	b.first, b.made, b.given, b.ending = 0, s.m.boot, s.m.given, map[uint64]bool{}
	for seq := range b.next {
		b.taken[seq] = b.made
	}
	for _, u := range b.subs {
		u.forgetLeases()
	}
	maps.DeleteFunc(s.m.keys, func(key string, _ modelKey) bool { return strings.HasPrefix(key, fmt.Sprintf("%d/", old)) })
	for _, seq := range b.copied() {
		if k, ok := b.dedupes[seq]; ok && k.comes(s.s.at) {
			k.ran = s.m.ran + s.m.bootN
			s.m.keys[fmt.Sprintf("%d/%s", id, k.name)] = k.modelKey
		}
	}
	maps.DeleteFunc(s.m.taken, func(x takenMail, _ [32]byte) bool { return x.box == old })
	for name := range s.s.Objects() {
		delete(s.freed, name)
	}
	s.readers = slices.DeleteFunc(s.readers, func(r *simReader) bool { return r.box == old })
	for i := range s.handles {
		if s.handles[i].Box == old {
			s.handles[i].Box = id
		}
	}
	for x, n := range s.numbers {
		if x.box == old {
			delete(s.numbers, x)
			s.numbers[simChain{x.origin, id}] = n
		}
	}
	for i, rec := range s.mails {
		if m, err := ParseMail(rec); err != nil {
			s.failf("%v", err)
		} else if m.Box == old {
			m.Box = id
			s.mails[i] = AppendMail(nil, &m)
		}
	}
}

// copied returns the mails of which a copy of the box has the letters, in order.
func (b *modelBox) copied() []uint64 {
	all := map[uint64]bool{}
	for seq := range b.mails {
		all[seq] = true
	}
	for seq := range b.done {
		all[seq] = true
	}
	for _, u := range b.subs {
		for seq := range u.dead {
			all[seq] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// needsBody reports whether the body of a mail is needed outside of its letter.
func (b *modelBox) needsBody(seq uint64) bool {
	for _, u := range b.subs {
		if _, dead := u.dead[seq]; dead {
			return true
		}
	}
	return b.mails[seq] != nil
}

// carry moves a box that is still from a home to another, and returns its number there. Whoever
// crashes, one of them has all of it.
func (s *sim) carry(from, to *simHome, id BoxID) BoxID {
	settings, _ := from.s.Settings(id)
	name, parts := settings.Name, s.parts(from, id)
	at := s.copyBox(from, to, id, parts)
	for at == 0 { // somebody died: the copy is of no use
		at = s.copyBox(from, to, id, parts)
	}
	settings, _ = to.s.Settings(at)
	settings.Name, settings.Generation, settings.Handover.Stage = name, 2, Came
	if r := to.apply(s, to.s.EncodeServe(at, &settings)); r.Code == proto.CodeOK || from.serves(name) {
		s.failf("a copy that is not whole is served: %+v, %v", r, from.serves(name))
	}
	settings, _ = to.s.Settings(at)
	settings.Handover.Stage = Whole
	to.must(s, EncodeBox(at, &settings))
	s.dies(from, to)
	if from.serves(name) || to.serves(name) {
		s.failf("%s is served though it is on its way", name)
	}
	settings.Name, settings.Generation, settings.Handover.Stage = name, 2, Came
	to.must(s, to.s.EncodeServe(at, &settings))
	s.dies(from, to)
	if from.serves(name) || !to.serves(name) {
		s.failf("%s is served: %v at the old home, %v at the new one", name, from.serves(name), to.serves(name))
	}
	s.dies(from, to)
	from.must(s, EncodeLeave(id))
	return at
}

// dies lets one of two homes crash at times, and reports whether it did.
func (s *sim) dies(from, to *simHome) bool {
	if !s.one(10) {
		return false
	}
	[]*simHome{from, to}[s.choose(2)].crash(s)
	return true
}

// copyBox makes the copy of a box, whose parts may come twice. It returns 0 if one of the two died, and
// the copy was dropped.
func (s *sim) copyBox(from, to *simHome, id BoxID, parts [][]byte) BoxID {
	settings, _ := from.s.Settings(id)
	settings.Handover.Peer, settings.Handover.Stage, settings.Name = from.self, Copying, CopyPrefix+settings.Name
	if to.s.Origin(from.self) == 0 {
		to.must(s, EncodePeer(to.s.NewOrigin(), from.self))
	}
	at := to.s.NewBox()
	to.must(s, EncodeBox(at, &settings))
	dies := -1
	if s.one(4) {
		dies = s.choose(len(parts))
	}
	for i, rec := range parts {
		rec, err := ForCopy(rec, at, func(i uint32) (uint32, error) { return s.originAt(from, to, i), nil })
		if err != nil {
			s.failf("part %x: %v", rec, err)
		}
		to.must(s, rec)
		if s.one(8) {
			to.apply(s, rec) // it may be refused, and changes nothing
		}
		if i == dies {
			[]*simHome{from, to}[s.choose(2)].crash(s)
			to.must(s, EncodeLeave(at))
			return 0
		}
	}
	x, err := to.s.Attach(at, to.s.boxes[at].subs[0].id, "early", 0, 9)
	if err != nil {
		s.failf("%v", err)
	}
	var out Output
	if given := to.s.Deliver(s.now, x, 9, nil, &out); len(given) > 0 {
		s.failf("a copy gives %+v", given)
	}
	to.s.Detach(s.now, x, false, &out)
	return at
}

// originAt returns the index of an origin of a part at its new home: a mail of that is one of its own.
func (s *sim) originAt(from, to *simHome, i uint32) uint32 {
	p := from.self
	if i > 1 {
		p, _ = from.s.Peer(i - 1)
	}
	if p == to.self {
		return 0
	}
	if to.s.Origin(p) == 0 {
		to.must(s, EncodePeer(to.s.NewOrigin(), p))
	}
	return to.s.Origin(p)
}

// parts returns the parts of a box that is still.
func (s *sim) parts(from *simHome, id BoxID) [][]byte {
	all := from.s.CopyHead(id)
	for at := (Cursor{}); ; {
		mails, next := from.s.CopyMails(id, at, 1+s.choose(4), 300)
		if len(mails) == 0 {
			break
		}
		at = next
		var kept []CopiedMail
		for _, m := range mails {
			rec, _, err := ForTransit(from.log[m.Place-1], m.Seq, func(i uint32) uint32 { return i + 1 })
			if err != nil {
				s.failf("%v", err)
			}
			if all = append(all, rec); m.IsDone {
				kept = append(kept, m)
			}
		}
		if len(kept) > 0 {
			all = append(all, EncodeKept(kept))
		}
	}
	all = append(all, from.s.CopyTail(id)...)
	own := chainNotes{}
	for x, boots := range from.s.chains.(chainNotes) {
		if name, _ := from.s.Path(id, 0); x.Box == name {
			own[x] = boots
		}
	}
	return append(all, EncodeChains(own.Save()))
}

// checkMoved checks that a box has at its new home what it had: mails, attempts, dead letters, what is
// kept, and the dedupe keys of all of these; and that it has no lease.
func (s *sim) checkMoved(h *simHome, id BoxID, b *modelBox) {
	if err := b.compare(h.s, id); err != nil {
		s.failf("at the new home: %v", err)
	}
	if n := h.s.Leases(id); n > 0 {
		s.failf("%d leases came along", n)
	}
	known := map[string]modelKey{}
	for _, seq := range b.copied() {
		if k, ok := b.dedupes[seq]; ok && k.comes(h.s.at) {
			known[k.name] = k.modelKey
		}
	}
	for name, k := range known {
		var origin uint32
		var key string
		if _, err := fmt.Sscanf(strings.Replace(name, "/", " ", 1), "%d %s", &origin, &key); err != nil {
			s.failf("%q: %v", name, err)
		}
		if h.self == simThere {
			p := simHere
			if origin > 0 {
				p = proto.PeerID{byte(origin)}
			}
			origin = h.s.Origin(p) // 0: its own
		}
		if first, ok := h.s.dedupe.get(dedupeKey(id, origin, []byte(key))); !ok || first.seq != k.seq || first.id != k.id {
			s.failf("the dedupe key %q at the new home: %+v, %v, want that of mail %d", name, first, ok, k.seq)
		}
	}
}
