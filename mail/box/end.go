package box

import (
	"cmp"
	"math"
	"slices"
)

// An ending is how a mail ends.
type ending struct {
	state    MailState
	cause    Cause
	attempts uint8
	abandons uint8
	at       int64
	reader   string
	reason   string
	goesOn   bool // Done: the mail that came of it has its end
}

// A DeadLetter is a mail that will not be delivered again by itself.
type DeadLetter struct {
	Seq      uint64
	Place    Place
	Length   int   // of the record at Place
	Size     int64 // bytes of the letter
	Class    int   // as package fair counts them
	At       int64 // when it died, Unix milliseconds; 0: not known yet, the clock is doubted
	Cause    Cause
	Attempts uint8
	Abandons uint8
	Reader   string // the session that had it last
	Reason   string // at most MaxDetail bytes: in the first line why, then what the program wrote
	Tries    []Try
	Redriven bool
}

// A Try is a delivery that failed.
type Try struct {
	At     int64 // when it failed, Unix milliseconds
	Cause  Cause
	Reader string
	Reason string
}

// A retry is a mail that was given back.
type retry struct {
	attempts uint8
	abandons uint8
	at       int64 // when it was given back, Unix milliseconds
	due      int64 // when it may be delivered again, Unix milliseconds
	tries    []Try

	until     int64 // in memory only: Now.Mono at which it is due
	scheduled bool  // in memory only: until is set
}

// applyAck ends mails as DONE. What has ended before is left as it is.
func (s *State) applyAck(h head, seqs []uint64, out *Output) {
	if b := s.boxes[h.box]; b != nil && b.settings.Kind == Spool {
		for _, seq := range seqs {
			if b.mails.get(seq) != nil {
				s.remove(b, seq, ending{state: Done}, out)
			}
		}
		return
	}
	u := s.find(h.box, h.sub)
	if u == nil {
		return
	}
	for _, seq := range seqs {
		if u.pending(seq) {
			s.finish(u, seq, ending{state: Done}, out)
		}
	}
	u.wake(out)
}

// applyNack notes a delivery that was given back.
func (s *State) applyNack(h head, n *nack, out *Output) {
	u := s.find(h.box, h.sub)
	if u == nil || !u.pending(n.seq) {
		return
	}
	r := u.retries[n.seq]
	if r == nil {
		r = new(retry)
		u.retries[n.seq] = r
	}
	r.attempts, r.abandons, r.at, r.due, r.scheduled = n.attempts, n.abandons, n.at, n.due, false
	r.tries = append(r.tries, Try{n.at, n.cause, string(n.reader), string(n.reason)})
	if len(r.tries) > MaxTries {
		r.tries = slices.Delete(r.tries, 0, 1)
	}
	if d := u.deliveries[n.seq]; d != nil && d.state == nacked { // after a seek it may be leased again
		d.state = returned
	}
	text := n.cause.String()
	if len(n.reason) > 0 {
		text += ": " + string(n.reason)
	}
	out.Events = append(out.Events, Event{Kind: EventRetry, Box: h.box, Sub: h.sub, Seq: n.seq, Cause: n.cause, Text: text})
	u.offer(n.seq)
	u.wake(out)
}

// applyEnd ends mails for one subscription or for all.
func (s *State) applyEnd(h head, e *end, out *Output) {
	b := s.boxes[h.box]
	if b == nil {
		return
	}
	how := ending{e.state, e.cause, e.attempts, e.abandons, e.at, string(e.reader), string(e.reason), false}
	if h.flags&flagWhole != 0 {
		for _, seq := range e.seqs {
			if b.mails.get(seq) != nil {
				s.remove(b, seq, how, out)
			}
		}
		b.wake(out)
		return
	}
	u := b.sub(h.sub)
	if u == nil {
		return
	}
	for _, seq := range e.seqs {
		if u.pending(seq) {
			s.finish(u, seq, how, out)
		}
	}
	u.wake(out)
}

// finish ends a pending mail for one subscription.
func (s *State) finish(u *sub, seq uint64, e ending, out *Output) {
	b, m := u.box, u.box.mails.get(seq)
	if e.state == Dead {
		s.bury(u, seq, &e)
		if u.settings.Block && m.key != 0 {
			u.block(b.keys.value(m.key), seq, out)
		}
	}
	if b.settings.Kind == Mailbox {
		s.remove(b, seq, e, out)
		return
	}
	u.leave(seq, m, e.state)
	u.done.add(seq, seq+1)
	if e.state != Done {
		end := End{Box: b.id, Sub: u.id, Seq: seq, Place: m.place, Length: m.length(), State: e.state, Cause: e.cause, Reason: e.reason}
		out.Ends = append(out.Ends, end)
		out.Bounces = append(out.Bounces, end)
	} else {
		out.Events = append(out.Events, Event{Kind: EventRead, Box: b.id, Sub: u.id, Seq: seq})
	}
	if b.settings.Interest && b.unread(seq) == 0 {
		s.remove(b, seq, ending{state: Done}, out)
	}
	u.settle()
}

// remove ends a mail altogether.
func (s *State) remove(b *box, seq uint64, e ending, out *Output) {
	m := *b.mails.get(seq)
	if b.settings.Kind == Topic && b.unread(seq) == 0 && e.state != Dead {
		e = ending{state: Done} // everybody has read it
	}
	for _, u := range b.subs {
		if u.pending(seq) {
			u.leave(seq, &m, e.state)
		}
	}
	s.charge(b, &m, -1)
	b.mails.remove(seq)
	b.keys.drop(m.key)
	b.subjects.drop(m.subject)
	delete(b.later, seq)
	delete(b.ending, seq)
	if e.state == Done && b.settings.Kind == Mailbox {
		s.keep(b, seq, m)
		if m.tells() && !e.goesOn {
			s.leaveUntold(b, seq, m)
		}
	}
	b.release(seq, out)
	b.ended[e.state]++
	end := End{Box: b.id, Seq: seq, Place: m.place, Length: m.length(), State: e.state, Cause: e.cause, Reason: e.reason}
	out.Ends = append(out.Ends, end)
	if e.state == Dead || b.settings.Kind != Topic && (e.state == Expired || e.state == Cancelled) {
		out.Bounces = append(out.Bounces, end)
	}
	for _, u := range b.subs {
		u.settle()
	}
}

// unread returns how many subscriptions have not read a mail.
func (b *box) unread(seq uint64) (n int) {
	for _, u := range b.subs {
		if u.pending(seq) {
			n++
		}
	}
	return n
}

// bury keeps a mail as a dead letter. After a seek, it may die once more.
func (s *State) bury(u *sub, seq uint64, e *ending) {
	m := u.box.mails.get(seq)
	d := DeadLetter{
		Seq: seq, Place: m.place, Length: m.length(), Size: m.bytes(), Class: m.class(), At: e.at, Cause: e.cause,
		Attempts: e.attempts, Abandons: e.abandons, Reader: e.reader, Reason: e.reason,
	}
	if r := u.retries[seq]; r != nil {
		d.Tries = r.tries
	}
	s.undated = s.undated || d.At == 0
	i, again := u.findDead(seq)
	if again {
		s.details -= u.dead[i].detail()
	}
	if s.details+d.detail() > maxDetails {
		d.Reason = d.Reason[:MaxReason]
	}
	s.details += d.detail()
	if again {
		u.dead[i] = d
		return
	}
	u.dead = slices.Insert(u.dead, i, d)
	s.bytes += d.Size
}

// died returns when d died. What has no time yet died last.
func (d *DeadLetter) died() int64 {
	if d.At == 0 {
		return math.MaxInt64
	}
	return d.At
}

// dateDead gives the time at to the dead letters that have none.
func (s *State) dateDead(at int64) {
	if !s.undated {
		return
	}
	s.undated = false
	for _, b := range s.boxes {
		for _, u := range b.subs {
			for i := range u.dead {
				u.dead[i].At = cmp.Or(u.dead[i].At, at)
			}
		}
	}
}

// detail returns the bytes of a long reason.
func (d *DeadLetter) detail() int {
	if len(d.Reason) <= MaxReason {
		return 0
	}
	return len(d.Reason)
}

func (u *sub) findDead(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(u.dead, seq, func(d DeadLetter, seq uint64) int { return cmp.Compare(d.Seq, seq) })
}

// deadLetter returns a dead letter, or nil.
func (u *sub) deadLetter(seq uint64) *DeadLetter {
	if i, ok := u.findDead(seq); ok {
		return &u.dead[i]
	}
	return nil
}

// block stops the lane of a dead letter until a person unblocks it.
func (u *sub) block(lane [16]byte, seq uint64, out *Output) {
	kind := EventBlocked
	if len(u.blocked) >= MaxBlocked {
		kind = EventUnblocked
	} else {
		u.blocked[lane] = true
	}
	out.Events = append(out.Events, Event{Kind: kind, Box: u.box.id, Sub: u.id, Seq: seq})
}
