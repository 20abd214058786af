package box

import "iter"

// A Cursor is a position among the records that a state needs. The zero value is the first.
// It stays valid when the state changes.
type Cursor struct {
	box  BoxID
	dead SubID // 1 + the subscription among whose dead letters it is; 0: among the mails
	seq  uint64
}

// Places returns from a cursor on every MAIL, MOVE or FORWARD record that is needed, once:
// of mails that have not ended, of what a topic keeps, and of dead letters. With each comes
// the cursor at which it is the first.
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
	if from.dead == 0 {
		for seq, m := b.mails.next(from.seq); m != nil; seq, m = b.mails.next(seq + 1) {
			if !yield(Cursor{b.id, 0, seq}, Kept{b.id, seq, m.place, m.length(), m.bytes()}) {
				return false
			}
		}
	}
	for n, u := range b.subs {
		first := uint64(0)
		switch {
		case u.id+1 < from.dead:
			continue
		case u.id+1 == from.dead:
			first = from.seq
		}
		i, _ := u.findDead(first)
		for ; i < len(u.dead); i++ {
			d := &u.dead[i]
			if b.keeps(d.Seq, n) {
				continue
			}
			if !yield(Cursor{b.id, u.id + 1, d.Seq}, Kept{b.id, d.Seq, d.Place, d.Length, d.Size}) {
				return false
			}
		}
	}
	return true
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

// Record returns the record of a mail that has not ended, is kept by a topic, or is a dead
// letter.
func (s *State) Record(id BoxID, seq uint64) (Kept, bool) {
	if k, ok := s.Mail(id, seq); ok || s.boxes[id] == nil {
		return k, ok
	}
	for _, u := range s.boxes[id].subs {
		if d := u.deadLetter(seq); d != nil {
			return Kept{id, seq, d.Place, d.Length, d.Size}, true
		}
	}
	return Kept{}, false
}

// applyMove notes where the record of a mail is from now on. Nothing else of the mail
// changes. A mail that has ended meanwhile is not there: then nothing does.
func (s *State) applyMove(p Place, rec []byte) error {
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
	if x := b.mails.get(seq); x != nil && x.bytes() == int64(len(m.Letter)) {
		x.place, x.load = p, newLoad(x.class(), len(rec), len(m.Letter))
	}
	for _, u := range b.subs {
		if dead := u.deadLetter(seq); dead != nil && dead.Size == int64(len(m.Letter)) {
			dead.Place, dead.Length = p, len(rec)
		}
	}
	return nil
}
