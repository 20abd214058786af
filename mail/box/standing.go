package box

import (
	"iter"
	"math/bits"
)

// Path returns the names of a box and of its subscription; both are "" if it is gone.
func (s *State) Path(id BoxID, subID SubID) (name, sub string) {
	if b := s.boxes[id]; b != nil {
		name = b.settings.Name
		if u := b.sub(subID); u != nil {
			sub = u.settings.Name
		}
	}
	return name, sub
}

// A Standing says what a pending mail waits for in its subscription.
type Standing struct {
	MailInfo
	Head    uint64 // the first mail of its lane, if that is another one
	Blocked bool   // a dead letter blocks its lane
	Reader  string // who has it, if it is leased
	Until   int64  // when its lease ends, Now.Mono
	Later   int64  // it is not delivered before, Unix milliseconds; 0: at once
	Paused  bool   // the subscription
	Readers int    // sessions
	Leaving int    // those of them that have deliveries and take no more
	Credit  int    // deliveries that they take now
}

// Standing returns what a mail waits for; ok is false if the subscription does not want it.
func (s *State) Standing(id BoxID, subID SubID, seq uint64) (t Standing, ok bool) {
	u := s.find(id, subID)
	if u == nil || !u.pending(seq) {
		return t, false
	}
	m := u.box.mails.get(seq)
	t = Standing{MailInfo: u.mailInfo(seq, m), Later: u.box.later[seq], Paused: u.settings.Paused, Readers: len(u.sessions), Credit: u.credit()}
	if d := u.deliveries[seq]; d != nil && d.state == live {
		t.Reader, t.Until = d.reader(), d.until
	}
	for _, x := range u.sessions {
		if x.leaving && u.settings.Mode != Exclusive {
			t.Leaving++
		}
	}
	if m.key == 0 {
		return t, true
	}
	t.Blocked = u.blocked[u.box.keys.value(m.key)]
	for before, x := u.box.mails.next(0); before < seq; before, x = u.box.mails.next(before + 1) {
		if x.key == m.key && u.wants(before, x) {
			t.Head = before
			break
		}
	}
	return t, true
}

// credit returns how many deliveries the sessions take now.
func (u *sub) credit() (n int) {
	for _, x := range u.sessions {
		if !x.leaving && (u.settings.Mode != Failover || x == u.active()) {
			n += x.credit
		}
	}
	return n
}

// Credit returns how many deliveries the sessions of a subscription take now.
func (s *State) Credit(id BoxID, subID SubID) int {
	if u := s.find(id, subID); u != nil {
		return u.credit()
	}
	return 0
}

// Kept returns all mails that a box still has, the newest first, from a sequence on; 0: from
// the newest. Those of a topic are there until its retention takes them: they are Done if no
// subscription wants them any more. Those of a mailbox are what waits, what is done and kept,
// and its dead letters; those of a spool what waits, and what its home has and is kept with a receipt.
func (s *State) Kept(id BoxID, from uint64) iter.Seq[MailInfo] {
	return func(yield func(MailInfo) bool) {
		b := s.boxes[id]
		if b == nil {
			return
		}
		if from == 0 {
			from = b.next
		}
		for i, ok := b.before(from); ok; i, ok = b.before(i.Seq - 1) {
			if !yield(i) {
				return
			}
		}
	}
}

// before returns the newest mail that the box has with at most a sequence.
func (b *box) before(seq uint64) (i MailInfo, ok bool) {
	at, m := b.mails.prev(seq)
	if m != nil {
		i, ok = b.info(at, m), true
	}
	if at, m := b.kept.mails.prev(seq); m != nil && at > i.Seq {
		i, ok = (*sub)(nil).mailInfo(at, m), true
		i.State = Done
	}
	if b.settings.Kind != Mailbox {
		return i, ok
	}
	u := b.subs[0]
	n, exact := u.findDead(seq)
	if exact {
		n++
	}
	if n > 0 && u.dead[n-1].Seq > i.Seq {
		i, ok = u.dead[n-1].info(), true
	}
	return i, ok
}

// info returns what is known of a mail for the first subscription that wants it.
func (b *box) info(seq uint64, m *mail) MailInfo {
	for _, u := range b.subs {
		if u.wants(seq, m) {
			return u.mailInfo(seq, m)
		}
	}
	i := (*sub)(nil).mailInfo(seq, m)
	if b.settings.Kind != Spool {
		i.State = Done
	}
	return i
}

// info returns what is known of a dead letter.
func (d *DeadLetter) info() MailInfo {
	return MailInfo{Seq: d.Seq, Place: d.Place, Length: d.Length, Size: d.Size, Class: d.Class, State: Dead, Attempts: d.Attempts, Abandons: d.Abandons, Tries: d.Tries}
}

// prev returns the last mail at or before seq, or nil.
func (l *mailList) prev(seq uint64) (uint64, *mail) {
	for i := min(l.find(seq), len(l.chunks)-1); i >= 0; i-- {
		c := &l.chunks[i]
		rest := c.there
		switch {
		case seq < c.base:
			continue
		case seq < c.base+chunkSize-1:
			rest &= 1<<(seq-c.base+1) - 1
		}
		if rest != 0 {
			at := c.base + uint64(bits.Len64(rest)) - 1
			return at, &c.mails[c.index(at)]
		}
	}
	return 0, nil
}
