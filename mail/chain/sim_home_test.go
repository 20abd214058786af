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
	mails []int // that wait in the box, as they were taken
	from  map[int]simKept
	order []int        // all that were taken from the origin, as they came
	ever  map[int]bool // all that it, and those whose notes it has, ever took
}

// simKept is what a home keeps of the chain of a mail.
type simKept struct {
	c Chain
	n proto.Seq
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
	link  int
	sent  simSend
	again bool // it came before
	c     Chain
	its   []Item
	stop  proto.Code
	a     Answer
}

func newSimHome(s *sim, i int) *simHome {
	return &simHome{s: s, i: i, peer: simPeer(i), Home: new(Home), simDisk: simDisk{
		notes: new(Home).Append(nil), from: map[int]simKept{}, ever: map[int]bool{},
	}}
}

func (d simDisk) clone() simDisk {
	d.log, d.mails, d.order = slices.Clone(d.log), slices.Clone(d.mails), slices.Clone(d.order)
	d.from, d.ever = maps.Clone(d.from), maps.Clone(d.ever)
	return d
}

// receive queues what is next of a bundle, and the answer behind it.
func (h *simHome) receive(x simBundle) {
	stopped, again := h.s.stopped[x.simSend]
	if stopped {
		return
	}
	c := Chain{simOrigin, x.b.Box, x.b.Class}
	its, err := Unpack(x.b.Prev, x.b.Runs)
	if err != nil {
		h.s.fail("%v", err)
		return
	}
	w := &simWait{link: x.link, sent: x.simSend, again: again, c: c, a: Answer{Number: x.b.Number}}
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
	h.s.stopped[x.simSend] = w.stop != proto.CodeOK
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
			w.stop, h.s.stopped[w.sent] = proto.CodeBusy, true
			break
		}
		a.UpTo = it.N
		if code, refused := h.Refused(w.c, it.N); refused {
			a.Skipped = append(a.Skipped, Skip{N: it.N, Code: code})
		}
	}
	if a.Code = w.stop; w.again && w.stop != proto.CodeOK {
		return
	}
	h.s.back = append(h.s.back, simAnswer{w.link, h.peer, a})
}

// apply makes a record count; first is false for a replay.
func (h *simHome) apply(e simEntry, first bool) {
	if e.code != proto.CodeOK {
		h.Skip(e.c, e.it, e.code)
	} else if h.Take(e.c, e.it) == Next && first {
		h.took(e.id, e.c, e.it.N)
		h.order = append(h.order, e.id)
	}
	if first {
		e.answer = nil
		h.log = append(h.log, e)
	}
}

func (h *simHome) took(id int, c Chain, n proto.Seq) {
	if h.ever[id] && !h.s.homeRolled {
		h.s.fail("node %d takes mail %d twice", h.i, id)
	}
	h.s.counts["taken"]++
	h.ever[id] = true
	h.mails = append(h.mails, id)
	h.from[id] = simKept{c, n}
}

// checkpoint writes the notes; they read back as they were.
func (h *simHome) checkpoint() {
	b := h.Append(nil)
	back, err := Decode(b)
	if err != nil || !bytes.Equal(back.Append(nil), b) {
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

// work ends a mail that waits.
func (h *simHome) work() {
	if len(h.mails) > 0 {
		h.mails = slices.Delete(h.mails, 0, 1)
	}
}

// handoff moves the box with all its notes.
func (s *sim) handoff() {
	if s.seized {
		return
	}
	from := s.homes[s.home]
	from.sync()
	s.move()
	from.handOver()
	s.counts["handed over"]++
}

// seize makes the other node the home, which knows nothing of the box.
func (s *sim) seize() {
	if s.seized {
		return
	}
	s.move()
	s.seized = true
	s.counts["seized"]++
	for _, x := range s.sent {
		if s.one(8) && x.b.To == simPeer(s.home) {
			s.net = append(s.net, x)
		}
	}
}

func (s *sim) move() {
	s.home, s.gen = 1-s.home, s.gen+1
	h := s.homes[s.home]
	h.Drop(simBox)
	h.simDisk = simDisk{from: map[int]simKept{}, ever: map[int]bool{}}
	h.acting, h.gen, h.copies = true, s.gen, nil
	h.checkpoint()
	h.start()
}

// handOver gives what an earlier home has to the present one, as often as it takes.
func (h *simHome) handOver() {
	to := h.s.homes[h.s.home]
	h.start() // what was not written never came
	h.acting = false
	h.s.seized = false
	part, err := Decode(h.Notes(simBox).Append(nil))
	if err != nil {
		h.s.fail("%v", err)
		return
	}
	for round := range 3 {
		for _, id := range h.inOrder() {
			k := h.from[id]
			switch v := to.Return(k.c, k.n, h.s.mails[id].notAfter); v {
			case Next:
				to.took(id, k.c, k.n)
				h.s.counts["returned"]++
				if round > 0 {
					h.s.fail("mail %d is handed over twice", id)
				}
			case Again:
				if !to.ever[id] && !h.s.homeRolled {
					h.s.fail("mail %d is handed over, and counts as known", id)
				}
				h.s.counts["known at the new home"]++
			case Expired:
				if h.s.now <= h.s.mails[id].notAfter {
					h.s.fail("mail %d is handed over, and counts as expired", id)
				}
			default:
				h.s.fail("mail %d is handed over: %v", id, v)
			}
		}
		if round == 0 && h.s.one(2) {
			to.checkpoint()
			to.start() // in the middle
		}
		if round > 0 {
			if v := to.Merge(simBox, part); v != Next {
				h.s.fail("merge: %v", v)
			}
			maps.Copy(to.ever, h.ever)
		}
	}
	to.checkpoint()
	h.Drop(simBox)
	h.mails = nil
	h.checkpoint()
}

// inOrder returns the mails that wait and whose time is not over, in the order of their
// numbers.
func (h *simHome) inOrder() []int {
	h.mails = slices.DeleteFunc(h.mails, func(id int) bool { return h.s.now > h.s.mails[id].notAfter+proto.Skew.Milliseconds() })
	return slices.SortedFunc(slices.Values(h.mails), func(a, b int) int { return h.from[a].n.Compare(h.from[b].n) })
}

// drain ends all faults and gives the origin the time that it needs.
func (s *sim) drain() {
	if s.seized {
		s.homes[1-s.home].handOver()
	}
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
		taken := s.homes[0].ever[m.id] || s.homes[1].ever[m.id]
		switch {
		case !m.stored:
			if taken {
				s.fail("mail %d was never stored, and was taken", m.id)
			}
		case m.gone:
		case m.ended == "":
			s.fail("mail %d has no end at its origin", m.id)
		case s.homeRolled:
		case m.ended == "accepted" && !at.ever[m.id] && !m.undone:
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
