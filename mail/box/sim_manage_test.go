package box

import (
	"maps"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// manage does what people do.
func (s *sim) manage() {
	id := s.boxes[s.choose(3)]
	b := s.m.boxes[id]
	if b.stands() {
		s.refused(id)
		return
	}
	sid := slices.Sorted(maps.Keys(b.subs))[s.choose(len(b.subs))]
	u := b.subs[sid]
	switch s.choose(8) {
	case 0:
		s.setSub(id, sid)
	case 1:
		if id != s.boxes[0] {
			s.newSub(id)
		}
	case 2:
		if id != s.boxes[0] {
			to := s.from(b)
			b.start(u, to)
			s.apply(EncodeSeek(id, sid, to))
			s.m.endRead(b)
		}
	case 3:
		origin, key := uint32(s.choose(3)), []byte{'a' + byte(s.choose(3))}
		if blocked := slices.Sorted(maps.Keys(u.blocked)); len(blocked) > 0 {
			lane := blocked[s.choose(len(blocked))] // "a", or "1/a" if the box separates origins
			key = []byte(lane[len(lane)-1:])
			origin = 0
			if len(lane) > 1 {
				origin = uint32(lane[0] - '0')
			}
		}
		delete(u.blocked, b.laneKey(&modelMail{key: string(key), origin: origin}))
		s.apply(EncodeUnblock(id, sid, origin, key))
	case 4:
		if len(u.dead) > 0 {
			list := slices.Sorted(maps.Keys(u.dead))[:1+s.choose(len(u.dead))]
			if s.one(2) {
				s.apply(EncodeRedriven(id, sid, list))
			}
			for _, seq := range list {
				delete(u.dead, seq)
			}
			s.apply(EncodeArchived(id, sid, list))
		}
	case 5:
		for _, r := range s.readers {
			if r.box == id && r.sub == sid {
				var out Output
				r.credit++
				s.s.AddCredit(r.x, 1, &out)
				s.note(&out)
			}
		}
	case 6:
		s.move()
	case 7:
		if b := s.m.boxes[s.boxes[0]]; !b.stands() {
			changed := b.settings
			s.chooseKeep(&changed)
			s.apply(EncodeBox(s.boxes[0], &changed))
		}
	}
}

// chooseKeep sets what a mailbox keeps.
func (s *sim) chooseKeep(b *BoxSettings) {
	b.Keep, b.KeepMails = []time.Duration{0, 2 * time.Hour, 48 * time.Hour}[s.choose(3)], 0
	if b.Keep > 0 && s.one(2) {
		b.KeepMails = uint32(1 + s.choose(5))
	}
}

// move copies some records to the end of the ledger, at once or when what was made before was
// applied: meanwhile a mail may end.
func (s *sim) move() {
	for _, x := range records(s.s) {
		if !s.one(4) {
			continue
		}
		rec, err := AppendMove(nil, x.Seq, s.log[x.Place-1])
		if err != nil {
			s.failf("move: %v", err)
		}
		if s.one(2) {
			s.flight = append(s.flight, rec)
			continue
		}
		s.apply(rec)
		if y, ok := s.s.Record(x.Box, x.Seq); !ok || y.Place != Place(len(s.log)) {
			s.failf("mail %d of %d did not move", x.Seq, x.Box)
		}
	}
}

// checkRecords looks at each record that is needed, in one walk with breaks: those of all mails
// that wait or are kept, and of all dead letters, once. The bodies that they name are needed.
func (s *sim) checkRecords() {
	want := map[[2]uint64]bool{}
	for id, b := range s.m.boxes {
		for seq := range b.mails {
			want[[2]uint64{uint64(id), seq}] = true
		}
		for seq := range b.done {
			want[[2]uint64{uint64(id), seq}] = true
		}
		for seq := range b.untold {
			want[[2]uint64{uint64(id), seq}] = true
		}
		for _, u := range b.subs {
			for seq := range u.dead {
				want[[2]uint64{uint64(id), seq}] = true
			}
		}
	}
	bodies := map[[32]byte]proto.PeerID{}
	for name, origin := range s.s.Objects() {
		bodies[name] = origin
	}
	var at Cursor
	for again := true; again; {
		left := 1 + s.choose(4)
		again = false
		for c, x := range s.s.Places(at) {
			if left--; left < 0 {
				at, again = c, true
				break
			}
			if !want[[2]uint64{uint64(x.Box), x.Seq}] {
				s.failf("the record of mail %d of %d is needed by nobody, or twice", x.Seq, x.Box)
			}
			delete(want, [2]uint64{uint64(x.Box), x.Seq})
			m, err := MailOf(s.log[x.Place-1])
			if err != nil || x.Length != len(s.log[x.Place-1]) || int64(len(m.Letter)) != x.Size {
				s.failf("mail %d of %d is not at %d: %v", x.Seq, x.Box, x.Place, err)
			}
			l, err := proto.ParseLetter(m.Letter)
			if err != nil || l.ID != s.m.boxes[x.Box].ids[x.Seq] {
				s.failf("at %d is another mail than %d of %d: %v", x.Place, x.Seq, x.Box, err)
			}
			if b := s.m.boxes[x.Box]; !l.Object.IsZero() && b.needsBody(x.Seq) {
				if origin, ok := bodies[l.Object.Name]; !ok || origin[0] != byte(m.Origin) || s.freed[l.Object.Name] {
					s.failf("the body of mail %d of %d is given up", x.Seq, x.Box)
				}
				delete(bodies, l.Object.Name)
			}
			if y, ok := s.s.Record(x.Box, x.Seq); !ok || y != x {
				s.failf("mail %d of %d: %+v, %+v", x.Seq, x.Box, x, y)
			}
		}
	}
	if len(want) > 0 {
		s.failf("the records of %v are needed", want)
	}
	if len(bodies) > 0 {
		s.failf("%d bodies are kept that nobody needs", len(bodies))
	}
}

// check compares what must always be alike.
func (s *sim) check() {
	if err := s.m.compare(s.s); err != nil {
		s.failf("%v", err)
	}
	if s.bounced != s.m.bounce {
		s.failf("%d bounces, want %d: a sender was not told (I21)", s.bounced, s.m.bounce)
	}
	s.checkRecords()
	s.checkTaken()
	for _, r := range s.readers {
		b := s.m.boxes[r.box]
		u := b.subs[r.sub]
		if !r.waiting || u.settings.Paused || b.moves() || s.creditOf(r) <= 0 || u.settings.Mode == Failover && r != s.active(r.box, r.sub) {
			continue
		}
		readers := s.readersOf(r.box, r.sub)
		if u.settings.Strategy != Ordered && slices.ContainsFunc(readers, func(x *simReader) bool { return x.woken && s.creditOf(x) > 0 }) {
			continue // that one passes it on
		}
		if seq, _, _ := s.m.next(b, u, r.x, readers, s.now); seq > 0 {
			s.failf("%d of %d/%d is ready, and its session sleeps", seq, r.box, r.sub)
		}
	}
}
