package chain

import (
	"bytes"
	"maps"
	"slices"

	"github.com/balefire/balefire/proto"
)

// A simHome is a node that can be the home of the box.
type simHome struct {
	s      *sim
	i      int
	peer   proto.PeerID
	acting bool   // it takes itself for the home; durable
	gen    uint64 // of its deed
	*Home
	arrivals Arrivals
	queue    []simEntry // given to the log, not synced
	waits    []simWait
	simDisk
	copies []simDisk
}

// A simDisk is the log of a home from the last checkpoint on, and what follows from it.
type simDisk struct {
	notes []byte // the checkpoint
	log   []simEntry
	order []int             // all that were taken from the origin, as they came
	ever  map[int]simNumber // all that it, and those whose copy it has, took since the box was made
}

// A simNumber is the number of a mail that was taken.
type simNumber struct {
	c  Chain
	it Item
}

// A simEntry is a mail of the log, or its refusal.
type simEntry struct {
	id     int
	c      Chain
	it     Item
	code   proto.Code // of a refusal
	answer *simWait
}

// A simWait is the answer to a bundle, sent when its mails are on disk.
type simWait struct {
	link int
	c    Chain
	its  []Item
	stop proto.Code
	a    Answer
}

func newSimHome(s *sim, i int) *simHome {
	return &simHome{s: s, i: i, peer: simPeer(i), Home: new(Home), simDisk: simDisk{
		notes: new(Home).Encode(), ever: map[int]simNumber{},
	}}
}

func (d simDisk) clone() simDisk {
	d.log, d.order, d.ever = slices.Clone(d.log), slices.Clone(d.order), maps.Clone(d.ever)
	return d
}

// receive queues what is next of a bundle, and the answer behind it.
func (h *simHome) receive(x simBundle) {
	c := Chain{simOrigin, x.b.Box, x.b.Class}
	its, err := Unpack(x.b.Prev, x.b.Runs)
	if err != nil {
		h.s.fail("%v", err)
		return
	}
	w := &simWait{link: x.link, c: c, a: Answer{Number: x.b.Number}}
	if !h.acting || x.b.Generation != h.gen {
		w.stop = proto.CodeMoved
	}
	for i := range its {
		if w.stop != proto.CodeOK {
			break
		}
		it := &its[i]
		m := h.s.mails[x.b.Refs[i]]
		it.NotAfter = m.notAfter
		v := h.arrivals.Check(h.Home, c, *it)
		e := simEntry{id: m.id, c: c, it: *it, answer: w}
		switch {
		case v == Again:
			w.its = append(w.its, *it)
			continue
		case v == Expired, v == Next && h.s.now > m.notAfter+proto.Skew.Milliseconds():
			e.code = proto.CodeExpired
		case v != Next:
			w.stop = v.Code()
			continue
		case m.denied:
			e.code = proto.CodeDenied
		case h.s.one(25):
			w.stop = proto.CodeFull
			continue
		}
		w.its = append(w.its, *it)
		h.arrivals.Queue(c, *it)
		h.queue = append(h.queue, e)
	}
	h.waits = append(h.waits, *w)
}

// sync writes what is queued and answers. Sometimes a part is not written.
func (h *simHome) sync() {
	for _, e := range h.queue {
		if h.s.one(30) {
			h.arrivals.Done(e.c, false)
			continue
		}
		h.apply(e, true)
		h.arrivals.Done(e.c, true)
	}
	h.queue = nil
	for _, w := range h.waits {
		h.answer(w)
	}
	h.waits = nil
	if h.s.one(4) {
		h.checkpoint()
	}
}

// answer says what the notes say about the mails of a bundle.
func (h *simHome) answer(w simWait) {
	a := w.a
	for _, it := range w.its {
		if v := h.Check(w.c, it); v != Again {
			w.stop = proto.CodeBusy
			break
		}
		a.UpTo = it.N
		if code, refused := h.Refused(w.c, it.N); refused {
			a.Skipped = append(a.Skipped, Skip{N: it.N, Code: code})
		}
	}
	a.Code = w.stop
	h.s.back = append(h.s.back, simAnswer{w.link, h.peer, a})
}

// apply makes a record count; first is false for a replay.
func (h *simHome) apply(e simEntry, first bool) {
	if e.code != proto.CodeOK {
		h.Skip(e.c, e.it, e.code)
	} else if h.Take(e.c, e.it) == Next && first {
		h.took(e.id, e.c, e.it)
		h.order = append(h.order, e.id)
	}
	if first {
		e.answer = nil
		h.log = append(h.log, e)
	}
}

func (h *simHome) took(id int, c Chain, it Item) {
	m := h.s.mails[id]
	switch {
	case h.s.homeRolled:
	case h.has(id):
		h.s.fail("node %d takes mail %d twice", h.i, id)
	case h.i == h.s.home && m.ended == "accepted" && !m.undone && !h.s.originRolled:
		h.s.fail("node %d takes mail %d, which an earlier home has accepted", h.i, id)
	}
	h.s.counts["taken"]++
	h.ever[id] = simNumber{c, it}
}

func (d simDisk) has(id int) bool {
	_, taken := d.ever[id]
	return taken
}

// checkpoint writes the notes; they read back as they were.
func (h *simHome) checkpoint() {
	b := h.Encode()
	back, err := Decode(b)
	if err != nil || !bytes.Equal(back.Encode(), b) {
		h.s.fail("notes %x read back as %v: %v", b, back, err)
	}
	h.notes, h.log = b, nil
}

// start starts the node from its disk.
func (h *simHome) start() {
	h.queue, h.waits, h.arrivals = nil, nil, Arrivals{}
	home, err := Decode(h.notes)
	if err != nil {
		h.s.fail("%v", err)
		return
	}
	h.Home = home
	for _, e := range h.log {
		h.apply(e, false)
	}
	h.s.counts["home started"]++
}

// putBack puts an old copy of the disk back.
func (h *simHome) putBack(at int) {
	h.s.homeRolled = true
	h.s.counts["home put back"]++
	h.simDisk = h.copies[at].clone()
	h.copies = h.copies[:at+1]
	h.start()
}

// simCopy is the name of the notes of a box that comes from another home.
const simCopy = "in:" + simBox

// handoff moves the box with all its notes.
func (s *sim) handoff() {
	if s.seized {
		return
	}
	old, next := s.homes[s.home], s.homes[1-s.home]
	old.sync()
	old.start() // what was not written never came
	old.acting = false
	kept := slices.Contains(next.Boxes(), simBox)
	next.copyFrom(old)
	if s.one(2) {
		next.checkpoint()
		next.start() // in the middle
	}
	next.Rename(simCopy, simBox)
	next.checkCopy(old, kept)
	next.simDisk = simDisk{order: slices.Clone(old.order), ever: maps.Clone(old.ever)}
	s.begin(next)
	old.drop()
	s.counts["handed over"]++
}

// copyFrom adds the notes of another node under the name of a copy. Sometimes that breaks off and
// begins again.
func (h *simHome) copyFrom(old *simHome) {
	for whole := false; !whole; {
		whole = true
		h.Drop(simCopy)
		for part := range old.Parts(simBox) {
			back, err := Decode(part.Encode())
			if err != nil {
				h.s.fail("a part: %v", err)
				return
			}
			back.Rename(simBox, simCopy)
			if v := h.Merge(simCopy, back); v != Next {
				h.s.fail("merge: %v", v)
			}
			if h.s.one(8) {
				h.checkpoint()
				h.start()
				whole = false
				h.s.counts["copied again"]++
				break
			}
		}
	}
}

// checkCopy checks that the notes of a box decide as those of its old home. If there were none
// before, they are the same.
func (h *simHome) checkCopy(old *simHome, kept bool) {
	if !kept && !bytes.Equal(h.Encode(), old.Encode()) {
		h.s.fail("the notes %x came as %x", old.Encode(), h.Encode())
	}
	if kept {
		h.s.counts["added to notes that were kept"]++
	}
	for id, m := range old.ever {
		if v := h.Check(m.c, m.it); v != Again && old.Check(m.c, m.it) == Again {
			h.s.fail("mail %d was handed over, and is %v", id, v)
		}
	}
}

// seize makes the other node the home, which knows nothing of the box but what it has kept of an
// earlier one with its name.
func (s *sim) seize() {
	if s.seized {
		return
	}
	next := s.homes[1-s.home]
	next.simDisk = simDisk{ever: map[int]simNumber{}}
	s.begin(next)
	s.seized = true
	s.counts["seized"]++
	for _, x := range s.sent {
		if s.one(8) && x.b.To == simPeer(s.home) {
			s.net = append(s.net, x)
		}
	}
}

// begin lets a node be the home from now on.
func (s *sim) begin(h *simHome) {
	s.home, s.gen = h.i, s.gen+1
	h.acting, h.gen, h.copies = true, s.gen, nil
	h.checkpoint()
	h.start()
}

// comeBack lets the home before a seizure hear of that: it sends on what it has as mail of its own
// and forgets the box, or its box was removed and its notes are kept. These would be wrong about
// numbers that were cancelled and that an old disk of the origin brings back.
func (s *sim) comeBack() {
	if !s.seized {
		return
	}
	h := s.homes[1-s.home]
	h.start()
	h.acting, s.seized = false, false
	for id := range h.ever {
		s.mails[id].sentOn = true
	}
	if s.one(2) && !s.may.originPutBack {
		h.checkpoint()
		return
	}
	h.drop()
}

// drop removes what a node knows of the box.
func (h *simHome) drop() {
	if h.Drop(simBox); len(h.Boxes()) > 0 {
		h.s.fail("notes of %v are left", h.Boxes())
	}
	h.checkpoint()
}

// drain ends all faults and gives the origin the time that it needs.
func (s *sim) drain() {
	s.comeBack()
	for _, h := range s.homes {
		h.start()
	}
	for range 60 {
		s.syncOrigin()
		s.origin.SetHome(simBox, simPeer(s.home), s.gen)
		s.reconnect()
		for class := proto.Critical; class <= proto.Low; class++ {
			s.origin.Resume(simBox, class)
			s.send(class)
			s.send(class)
		}
		for len(s.net) > 0 {
			s.deliver()
		}
		for _, h := range s.homes {
			h.sync()
		}
		for len(s.back) > 0 {
			s.hear()
		}
		if s.failed != "" {
			return
		}
	}
	s.syncOrigin()
	for class := proto.Critical; class <= proto.Low; class++ {
		if n := s.origin.Len(simBox, class); n > 0 {
			s.fail("%d mails of class %s are stuck", n, class.Name())
		}
	}
}

// check looks at the end of every mail.
func (s *sim) check() {
	at := s.homes[s.home]
	for _, m := range s.mails {
		taken := s.homes[0].has(m.id) || s.homes[1].has(m.id)
		switch {
		case !m.stored:
			if taken {
				s.fail("mail %d was never stored, and was taken", m.id)
			}
		case m.gone:
		case m.ended == "":
			s.fail("mail %d has no end at its origin", m.id)
		case s.homeRolled:
		case m.ended == "accepted" && !at.has(m.id) && !m.late && !m.sentOn && !m.undone:
			s.fail("mail %d was accepted and is lost", m.id)
		case m.ended == "refused" && m.code != proto.CodeExpired && taken:
			s.fail("mail %d was refused and taken", m.id)
		case (m.ended == "expired" || m.ended == "cancelled") && taken && !m.undone && !s.originRolled:
			s.fail("mail %d was %s unsent and taken", m.id, m.ended)
		}
	}
	if !s.originRolled && !s.homeRolled && !s.may.moves {
		s.checkOrder(at.order)
	}
}

// checkOrder checks that the mails of a class without a key, and those of a key, came in the
// order in which they were sent.
func (s *sim) checkOrder(order []int) {
	last := map[string]int{}
	for _, id := range order {
		m := s.mails[id]
		lane := "key " + m.key
		if m.key == "" {
			lane = m.class.Name()
		}
		if before, ok := last[lane]; ok && before > id {
			s.fail("mail %d (%s) came after mail %d", id, lane, before)
		}
		last[lane] = id
	}
}
