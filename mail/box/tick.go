package box

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Start begins a start of the home: boot is higher than that of any start before. It makes
// the record that the others count from. Nothing may be delivered before it is applied.
func (s *State) Start(now Now, boot uint64, out *Output) {
	s.home = home{started: now.Mono, lastAge: now.Mono, lastClean: now.Mono}
	for _, b := range s.boxes {
		b.ending = nil
		for _, u := range b.subs {
			for _, x := range u.sessions {
				x.sub = nil
			}
			u.sessions = nil
			u.queue.reset()
		}
	}
	out.record(func(dst []byte) []byte { return appendAge(dst, age{boot, 0, now.trusted()}) })
}

// trusted returns the wall clock, or 0 if it is doubted.
func (n Now) trusted() int64 {
	if n.Doubted {
		return 0
	}
	return n.Wall
}

// Tick makes the records of what time brings: leases that ran out, mail past its
// not_after, retention, the running time. It offers mail whose time has come, and hands out
// dead letters for the archive. A home calls it at the time that [State.Next] says, and within 100 ms
// of anything that it did.
func (s *State) Tick(now Now, out *Output) {
	for t, ok := s.lapses.due(now.Mono); ok; t, ok = s.lapses.due(now.Mono) {
		if d := t.sub.deliveries[t.seq]; t.wanted() {
			d.until = max(d.until, min(now.Grace, d.first+MaxLease.Milliseconds()))
			if d.until > t.at {
				s.watch(t.sub, t.seq, d) // extended, or the machine slept
				continue
			}
			t.sub.fail(now, t.seq, CauseLapsed, 0, "", "", out)
			t.sub.releaseBehind(t.seq)
			t.sub.wake(out)
		}
	}
	for t, ok := s.timers.due(now.Mono); ok; t, ok = s.timers.due(now.Mono) {
		t.sub.offer(t.seq)
		t.sub.wake(out)
	}
	s.sweep(now, out)
	if now.Mono-s.lastClean >= cleanPeriod.Milliseconds() {
		s.lastClean = now.Mono
		s.clean(now, out)
	}
	if now.Mono-s.lastAge >= agePeriod.Milliseconds() {
		s.lastAge = now.Mono
		a := age{s.boot, now.Mono - s.started, now.trusted()}
		out.record(func(dst []byte) []byte { return appendAge(dst, a) })
	}
}

// Next returns when Tick has something to do, Now.Mono; false: nothing waits for a time. That is at
// most lookPeriod if it is a lease, a due time or a not_after: the machine may have slept, and people
// set clocks.
func (s *State) Next(now Now) (at int64, ok bool) {
	at = math.MaxInt64
	for _, h := range []timers{s.lapses, s.timers} {
		if len(h.list) > 0 {
			at = min(at, h.list[0].at)
		}
	}
	if s.expires < math.MaxInt64 {
		at = min(at, now.Mono+max(s.expires-now.Wall, 0))
	}
	if at < math.MaxInt64 {
		at = min(at, now.Mono+lookPeriod.Milliseconds())
	}
	if s.changed {
		at = min(at, s.lastClean+cleanPeriod.Milliseconds())
	} else if s.cleans < math.MaxInt64 {
		at = min(at, max(now.Mono+max(s.cleans-now.Wall, 0), s.lastClean+cleanPeriod.Milliseconds()))
	}
	if s.dedupe.len() > 0 || len(s.producers.byID) > 0 || s.kept > 0 || s.undated {
		at = min(at, s.lastAge+agePeriod.Milliseconds())
	}
	return at, at < math.MaxInt64
}

// sweep looks at the next mails for those past their not_after. Each Tick looks at some, so
// that none takes long.
func (s *State) sweep(now Now, out *Output) {
	ids := slices.Sorted(maps.Keys(s.boxes))
	i, found := slices.BinarySearch(ids, s.sweepBox)
	if !found {
		s.sweepSeq = 0
	}
	soonest, looked, boxes := int64(math.MaxInt64), 0, 0
	for boxes < len(ids)+1 && looked < sweepMails && len(ids) > 0 {
		if i == len(ids) {
			i = 0
		}
		b := s.boxes[ids[i]]
		s.sweepBox = b.id
		if b.settings.Kind == Spool || b.still() {
			s.sweepSeq, i, boxes = 0, i+1, boxes+1
			continue
		}
		var seqs []uint64
		seq, m := b.mails.next(s.sweepSeq)
		for ; m != nil && looked < sweepMails && len(seqs) < MaxSeqs; seq, m = b.mails.next(seq + 1) {
			looked++
			switch {
			case !expired(m, now):
				soonest = min(soonest, int64(m.expiry)*1000)
			case b.leased(seq):
				soonest = min(soonest, now.Wall+sweepLeased.Milliseconds())
			default:
				seqs = append(seqs, seq)
			}
		}
		b.endAll(now, seqs, Expired, CauseExpired, "", out)
		if s.sweepSeq = seq; m == nil {
			s.sweepSeq = 0
			i++
			boxes++
		}
	}
	if s.expires = soonest; looked >= sweepMails {
		s.expires = now.Wall // there are more
	}
}

// leased reports whether somebody has the mail, or an END was made for it.
func (b *box) leased(seq uint64) bool {
	if b.ending[seq] {
		return true
	}
	for _, u := range b.subs {
		if d := u.deliveries[seq]; d != nil && d.state != returned {
			return true
		}
	}
	return false
}

// end notes that a record was made which ends a mail for all subscriptions.
func (b *box) end(seq uint64) {
	if b.ending == nil {
		b.ending = map[uint64]bool{}
	}
	b.ending[seq] = true
}

// endAll makes the record that ends mails for all subscriptions.
func (b *box) endAll(now Now, seqs []uint64, state MailState, cause Cause, reason string, out *Output) {
	if len(seqs) == 0 {
		return
	}
	for _, seq := range seqs {
		b.end(seq)
	}
	e := end{state: state, cause: cause, at: now.Wall, reason: []byte(reason), seqs: seqs}
	out.record(func(dst []byte) []byte { return appendEnd(dst, head{flags: flagWhole, box: b.id}, &e) })
	for _, u := range b.subs {
		if len(u.retries) > 0 {
			u.wake(out) // a session may have stopped before one of them
		}
	}
}

// clean looks at retention by age, and at dead letters that are too many or too old.
func (s *State) clean(now Now, out *Output) {
	s.changed, s.cleans = false, math.MaxInt64
	for _, id := range slices.Sorted(maps.Keys(s.boxes)) {
		b := s.boxes[id]
		if b.still() {
			continue
		}
		if age := b.retention(); age > 0 {
			b.dropOld(now, int64(age.Seconds()), out)
			for seq, m := b.mails.next(0); m != nil; seq, m = b.mails.next(seq + 1) {
				if !b.ending[seq] {
					s.cleans = min(s.cleans, (int64(m.accepted)+int64(age.Seconds()))*1000)
					break
				}
			}
		}
		for _, u := range b.subs {
			u.archive(now, out)
			age := u.deadAge().Milliseconds()
			for i := range u.dead {
				if d := &u.dead[i]; d.At > 0 && !u.archiving[d.Seq] {
					s.cleans = min(s.cleans, d.At+age)
				}
			}
		}
	}
}

// dropOld ends the mails of a topic that are older than age, in seconds.
func (b *box) dropOld(now Now, age int64, out *Output) {
	var seqs []uint64
	for seq, m := b.mails.next(0); m != nil && int64(m.accepted)+age <= now.Wall/1000; seq, m = b.mails.next(seq + 1) {
		if !b.ending[seq] {
			seqs = append(seqs, seq)
		}
	}
	for part := range slices.Chunk(seqs, MaxSeqs) {
		b.endAll(now, part, Dropped, CauseAge, "", out)
	}
}

// archive hands out dead letters that are too many, the oldest first, or too old.
func (u *sub) archive(now Now, out *Output) {
	extra := len(u.dead) - len(u.archiving) - int(or(u.settings.Dead, defaultDead))
	oldest := now.Wall - u.deadAge().Milliseconds()
	if extra <= 0 && !slices.ContainsFunc(u.dead, func(d DeadLetter) bool { return d.died() <= oldest && !u.archiving[d.Seq] }) {
		return
	}
	byAge := u.firstDead(MaxSeqs)
	n := 0
	for n < len(byAge) && (n < extra || byAge[n].died() <= oldest) {
		u.archiving[byAge[n].Seq] = true
		n++
	}
	if n > 0 {
		out.Archive = append(out.Archive, Archive{u.box.id, u.id, byAge[:n]})
	}
}

// deadAge returns how long dead letters are kept.
func (u *sub) deadAge() time.Duration {
	if u.box.settings.Closed {
		return time.Millisecond
	}
	return or(u.settings.DeadAge, defaultDeadAge)
}

// firstDead returns at most n dead letters that are not being archived: those that died first,
// in that order.
func (u *sub) firstDead(n int) (first []DeadLetter) {
	cut := func() {
		slices.SortStableFunc(first, func(a, b DeadLetter) int { return cmp.Compare(a.died(), b.died()) })
		first = first[:min(n, len(first))]
	}
	for _, d := range u.dead {
		if u.archiving[d.Seq] {
			continue
		}
		if first = append(first, d); len(first) == 2*n {
			cut()
		}
	}
	cut()
	return first
}

// Purge makes records that end as CANCELLED at most limit waiting mails of a box, the
// oldest first; leased ones stay, and what is in a spool. It returns how many.
func (s *State) Purge(now Now, id BoxID, limit int, reason string, out *Output) (n int) {
	b := s.boxes[id]
	if b == nil || b.settings.Kind == Spool || b.still() {
		return 0
	}
	var seqs []uint64
	for seq, m := b.mails.next(0); m != nil && len(seqs) < limit; seq, m = b.mails.next(seq + 1) {
		if !b.leased(seq) {
			seqs = append(seqs, seq)
		}
	}
	for part := range slices.Chunk(seqs, MaxSeqs) {
		b.endAll(now, part, Cancelled, CausePurged, reason[:min(len(reason), MaxReason)], out)
	}
	return len(seqs)
}
