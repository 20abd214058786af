package box

import "time"

// keptMails is what a mailbox keeps of the mail that is done, for people to look at: nobody is
// given it again. The fields of a mail are those that it had, but it has neither key nor
// subject, and its expiry is the time at which it was done, Unix seconds; 0: it is not known yet.
type keptMails struct {
	mails mailList
	bytes int64 // of the letters
}

// keep keeps a mail that is done, if its box keeps such mail and its body is in its letter: a
// large body gives its space to others. The time at which it was done is that of the newest AGE,
// or that at which it was accepted if that is later. If the newest AGE has none, because the
// clock is doubted, it is that of the next one that has.
func (s *State) keep(b *box, seq uint64, m mail) {
	if _, large := b.objects[seq]; large || b.keepFor() == 0 {
		return
	}
	s.keepMail(b, seq, m)
}

func (s *State) keepMail(b *box, seq uint64, m mail) {
	m.key, m.subject, m.expiry = 0, 0, 0
	if s.at > 0 {
		m.expiry = max(m.accepted, seconds(s.at))
	}
	b.kept.mails.insert(seq, m)
	b.kept.bytes += m.bytes()
	s.kept += m.bytes()
	s.trim(b)
	s.trimAll()
}

// KeptBytes returns what the letters take that all boxes keep.
func (s *State) KeptBytes() int64 { return s.kept }

// trim forgets the oldest of what a box keeps beyond its settings.
func (s *State) trim(b *box) {
	for b.kept.mails.count > b.maxKept() {
		s.forgetOldest(b)
	}
}

// trimAll forgets the oldest of what all boxes keep beyond the limit of the ledger, and a
// sixteenth of that more. Those that keep the most lose the most.
func (s *State) trimAll() {
	limit := int64(or(s.limits.Kept, defaultKept))
	if s.kept <= limit {
		return
	}
	for limit -= limit / 16; s.kept > limit; {
		b := s.keepsMost()
		for half := b.kept.bytes / 2; b.kept.bytes > half && s.kept > limit; {
			s.forgetOldest(b)
		}
	}
}

// keepFor returns how long a box keeps mail that is done; 0: it keeps none. A spool keeps only what
// has a receipt.
func (b *box) keepFor() time.Duration {
	if b.settings.Kind == Spool {
		return receiptAge
	}
	return b.settings.Keep
}

// maxKept returns how many mails a box keeps that are done.
func (b *box) maxKept() int {
	switch {
	case b.settings.Kind == Spool:
		return maxReceipts
	case b.settings.Keep == 0:
		return 0
	}
	return int(or(b.settings.KeepMails, defaultKeepMails))
}

// keepsMost returns the box that keeps the most bytes; of several the first.
func (s *State) keepsMost() (most *box) {
	for _, b := range s.boxes {
		if most == nil || b.kept.bytes > most.kept.bytes || b.kept.bytes == most.kept.bytes && b.id < most.id {
			most = b
		}
	}
	return most
}

func (s *State) forgetOldest(b *box) {
	seq, _ := b.kept.mails.next(0)
	s.forget(b, seq)
}

// forget forgets a mail that is done.
func (s *State) forget(b *box, seq uint64) {
	n := b.kept.mails.get(seq).bytes()
	b.kept.mails.remove(seq)
	b.kept.bytes -= n
	s.kept -= n
	if b.settings.Kind == Spool {
		delete(b.receipts, seq)
		s.receipts--
	}
}

// forgetOld forgets what was done too long ago at a time, Unix milliseconds. What was done at a
// time that was not known was done now.
func (s *State) forgetOld(at int64) {
	for _, b := range s.boxes {
		for seq, m := b.kept.mails.next(0); m != nil; seq, m = b.kept.mails.next(seq + 1) {
			if m.expiry == 0 {
				m.expiry = seconds(at)
			}
			if int64(m.expiry)*1000+b.keepFor().Milliseconds() <= at {
				s.forget(b, seq)
			}
		}
	}
}
