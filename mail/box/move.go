package box

import "iter"

// A Cursor is a position among the records that a state needs. The zero value is the first.
// It stays valid when the state changes.
type Cursor struct {
	box  BoxID
	list uint32 // among the mails, what is kept, what is not told, or the dead letters of a subscription
	seq  uint64
}

// The lists of a cursor. That of the dead letters of a subscription has its id more.
const (
	listMails uint32 = iota
	listKept
	listUntold
	listDead
)

// Places returns from a cursor on every MAIL, MOVE or FORWARD record that is needed, once:
// of mails that have not ended, of what a box keeps, of what is done and not told yet, and of dead
// letters. With each comes the cursor at which it is the first.
func (s *State) Places(from Cursor) iter.Seq2[Cursor, Kept] {
	return func(yield func(Cursor, Kept) bool) {
		for _, id := range s.Boxes() {
			switch {
			case id < from.box:
				continue
			case id > from.box:
				from = Cursor{box: id}
			}
			if !s.boxes[id].places(from, yield) {
				return
			}
		}
	}
}

// places is Places for one box. It returns false if yield did.
func (b *box) places(from Cursor, yield func(Cursor, Kept) bool) bool {
	for list, l := range []*mailList{listMails: &b.mails, listKept: &b.kept.mails, listUntold: &b.untold} {
		first, ok := from.first(uint32(list))
		if !ok {
			continue
		}
		for seq, m := l.next(first); m != nil; seq, m = l.next(seq + 1) {
			if l == &b.untold && b.kept.mails.get(seq) != nil {
				continue
			}
			if !yield(Cursor{b.id, uint32(list), seq}, Kept{b.id, seq, m.place, m.length(), m.bytes()}) {
				return false
			}
		}
	}
	for n, u := range b.subs {
		list := listDead + uint32(u.id)
		first, ok := from.first(list)
		if !ok {
			continue
		}
		i, _ := u.findDead(first)
		for ; i < len(u.dead); i++ {
			d := &u.dead[i]
			if b.keeps(d.Seq, n) {
				continue
			}
			if !yield(Cursor{b.id, list, d.Seq}, Kept{b.id, d.Seq, d.Place, d.Length, d.Size}) {
				return false
			}
		}
	}
	return true
}

// first returns the sequence at which the walk of a list begins; ok is false if the cursor is
// behind the list.
func (c Cursor) first(list uint32) (seq uint64, ok bool) {
	if list == c.list {
		return c.seq, true
	}
	return 0, list > c.list
}

// keeps reports whether a mail has not ended, or is a dead letter of one of the first n
// subscriptions. All of them have the same record of it.
func (b *box) keeps(seq uint64, n int) bool {
	if b.mails.get(seq) != nil {
		return true
	}
	for _, u := range b.subs[:n] {
		if u.deadLetter(seq) != nil {
			return true
		}
	}
	return false
}

// Record returns the record of a mail that has not ended, is kept, is done and not told yet, or is a
// dead letter.
func (s *State) Record(id BoxID, seq uint64) (Kept, bool) {
	if k, ok := s.Mail(id, seq); ok || s.boxes[id] == nil {
		return k, ok
	}
	b := s.boxes[id]
	for _, l := range []*mailList{&b.kept.mails, &b.untold} {
		if m := l.get(seq); m != nil {
			return Kept{id, seq, m.place, m.length(), m.bytes()}, true
		}
	}
	for _, u := range b.subs {
		if d := u.deadLetter(seq); d != nil {
			return Kept{id, seq, d.Place, d.Length, d.Size}, true
		}
	}
	return Kept{}, false
}

// applyMove notes where the record of a mail is from now on. Nothing else of the mail
// changes. A mail of which nothing is needed any more is not there: then nothing does, unless the
// record adds it to a copy of a box.
func (s *State) applyMove(p Place, rec []byte, out *Output) error {
	seq, old, err := parseMove(rec)
	if err != nil {
		return err
	}
	m, err := ParseMail(old)
	if err != nil {
		return err
	}
	b := s.boxes[m.Box]
	if b == nil {
		return nil
	}
	if rec[5] == flagAdds && b.settings.Handover.Stage == Copying {
		if _, there := s.Record(m.Box, seq); !there {
			r := s.takeMail(b, p, len(rec), seq, &m)
			r.Box = m.Box
			out.Results = append(out.Results, r)
			return nil
		}
	}
	for _, l := range []*mailList{&b.mails, &b.kept.mails, &b.untold} {
		if x := l.get(seq); x != nil && x.bytes() == int64(len(m.Letter)) {
			x.place, x.load = p, newLoad(x.class(), len(rec), len(m.Letter))|x.load&tellsBit
		}
	}
	for _, u := range b.subs {
		if dead := u.deadLetter(seq); dead != nil && dead.Size == int64(len(m.Letter)) {
			dead.Place, dead.Length = p, len(rec)
		}
	}
	return nil
}
