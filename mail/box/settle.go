package box

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// An Op is what a reader does with a delivery.
type Op uint8

// What a reader can do with a delivery.
const (
	Ack     Op = 1 + iota
	Nack       // it failed: an attempt; again after Delay, or after the backoff
	Final      // it can never succeed: a dead letter
	Defer      // again after Delay; nothing is spent
	Extend     // the lease ends after Delay, counted from now
	Bounce     // back to its sender
	Return     // to be delivered again at once; nothing is spent, nothing is written
	Abandon    // its reader broke off: an abandon; again after Delay
)

// A Settlement is what a reader does with one delivery.
type Settlement struct {
	Box    BoxID
	Sub    SubID
	Handle Handle
	Op     Op
	Delay  time.Duration
	Reason string // of Nack, Final, Defer, Bounce and Abandon; cut to MaxReason bytes
	Stderr string // what a program wrote: kept with the mail if this makes it a dead letter; cut to its last MaxStderr bytes
}

// Settled is the answer to a settlement. With CodeOK it counts as soon as the records of
// the same Output are on disk.
type Settled struct {
	Code  proto.Code // CodeOK, CodeStale, CodeBadForm (no such delivery), CodeBusy (out of order), CodeNoHandler (no such box)
	Until int64      // of Extend: Now.Mono at which the lease runs out
}

// Settle decides about settlements, in order, and makes the records for those that count.
//
// An acknowledgment counts if the mail has not ended and nobody else was given it since this
// state was loaded; of a mail that is DONE it is CodeOK again. Anything else counts for the newest delivery
// while its lease lasts. Mails of a lane are acknowledged in order.
func (s *State) Settle(now Now, what []Settlement, out *Output) {
	acks := out.seqs[:0]
	for i := range what {
		x := &what[i]
		u := s.find(x.Box, x.Sub)
		if u == nil {
			out.Settled = append(out.Settled, Settled{Code: proto.CodeNoHandler})
			continue
		}
		r, counts := u.judge(s, x)
		switch {
		case r.Code == proto.CodeStale:
			out.Events = append(out.Events, Event{Kind: EventStale, Box: x.Box, Sub: x.Sub, Seq: x.Handle.Seq, Text: x.Handle.String()})
		case counts && x.Op == Ack:
			u.close(x.Handle, acked)
			u.wake(out)
			acks = append(acks, x.Handle.Seq)
		case counts:
			r.Until = u.giveBack(s, now, x, out)
		}
		out.Settled = append(out.Settled, r)
		last := i+1 == len(what) || what[i+1].Op != Ack || what[i+1].Box != x.Box || what[i+1].Sub != x.Sub
		if len(acks) > 0 && (last || len(acks) == MaxSeqs) {
			slices.Sort(acks)
			acks = slices.Compact(acks)
			start := len(out.buf)
			out.buf = appendAck(out.buf, x.Box, x.Sub, acks)
			out.keep(start)
			out.seqs, acks = acks, acks[:0]
		}
	}
}

// judge decides whether a settlement counts.
func (u *sub) judge(s *State, x *Settlement) (r Settled, counts bool) {
	h := x.Handle
	if h.Seq == 0 || h.Seq >= u.box.next || h.Boot > s.boot || h.Boot == s.boot && (h.N == 0 || h.N > s.given) || x.Op < Ack || x.Op > Abandon || x.Delay < 0 || x.Delay > MaxDelay {
		return Settled{Code: proto.CodeBadForm}, false
	}
	if h.Boot < s.boot && !s.mayHaveGiven(u.box, h) {
		return Settled{Code: proto.CodeBadForm}, false
	}
	if !u.pending(h.Seq) {
		if x.Op == Ack && h.Seq >= u.known && !u.ended.has(h.Seq) {
			return Settled{}, false // DONE before
		}
		return Settled{Code: proto.CodeStale}, false
	}
	d := u.deliveries[h.Seq]
	switch {
	case u.box.still():
		return Settled{Code: proto.CodeStale}, false // its lease ended with the move
	case u.box.ending[h.Seq] || d != nil && d.state == ended:
		return Settled{Code: proto.CodeStale}, false // it is about to end
	case h.Boot == s.boot && d == nil:
		return Settled{Code: proto.CodeBadForm}, false // never given here
	case d != nil && (d.boot != h.Boot || d.n != h.N):
		return Settled{Code: proto.CodeStale}, false // somebody else was given it since
	case x.Op == Ack && u.outOfOrder(h.Seq):
		return Settled{Code: proto.CodeBusy}, false
	case x.Op != Ack && (d == nil || d.state != live):
		return Settled{Code: proto.CodeStale}, false
	}
	return Settled{}, true
}

// outOfOrder reports whether a mail before this one in its lane was not acknowledged.
func (u *sub) outOfOrder(seq uint64) bool {
	m := u.box.mails.get(seq)
	if m.key == 0 {
		return false
	}
	u.fill(seq)
	l := u.lanes[m.key]
	for _, before := range l.seqs[:min(MaxKeyBatch, len(l.seqs))] {
		if before == seq {
			return false
		}
		if d := u.deliveries[before]; d == nil || d.state != acked {
			return true
		}
	}
	return true
}

// close notes that a record was made which ends the delivery: nobody is given the mail
// until it is applied.
func (u *sub) close(h Handle, state deliveryState) {
	d := u.deliveries[h.Seq]
	if d == nil {
		d = &delivery{boot: h.Boot, n: h.N}
		u.deliveries[h.Seq] = d
	}
	d.release()
	d.state = state
}

// DeliveredAt returns when the newest delivery of a mail was made, [Now].Mono; 0: it is not known.
func (s *State) DeliveredAt(box BoxID, sub SubID, seq uint64) int64 {
	if u := s.find(box, sub); u != nil && u.deliveries[seq] != nil {
		return u.deliveries[seq].first
	}
	return 0
}

// giveBack makes the record of a settlement that is no acknowledgment.
func (u *sub) giveBack(s *State, now Now, x *Settlement, out *Output) (until int64) {
	seq, reason := x.Handle.Seq, x.Reason[:min(len(x.Reason), MaxReason)]
	d := u.deliveries[seq]
	switch x.Op {
	case Extend:
		d.until = min(now.Mono+x.Delay.Milliseconds(), d.first+MaxLease.Milliseconds())
		if d.until < d.timer {
			s.watch(u, seq, d)
		}
		return d.until
	case Return:
		u.giveUp(seq, d)
	case Nack:
		u.fail(now, seq, CauseNacked, x.Delay, reason, x.Stderr, out)
	case Defer:
		u.fail(now, seq, CauseDeferred, x.Delay, reason, "", out)
	case Abandon:
		u.fail(now, seq, CauseAbandoned, x.Delay, reason, x.Stderr, out)
	case Final:
		u.end(now, seq, Dead, CauseFinal, detailed(reason, x.Stderr), out)
	case Bounce:
		u.end(now, seq, Cancelled, CauseBounced, reason, out)
	}
	u.releaseBehind(seq)
	u.wake(out) // there is credit again
	return 0
}

// fail makes the record of a delivery that failed: a NACK, or an END if it was the last
// one that the mail had.
func (u *sub) fail(now Now, seq uint64, cause Cause, delay time.Duration, reason, stderr string, out *Output) {
	n := nack{seq: seq, cause: cause, at: now.Wall, reason: []byte(reason)}
	if r := u.retries[seq]; r != nil {
		n.attempts, n.abandons = r.attempts, r.abandons
	}
	last := false
	switch cause {
	case CauseNacked, CauseLapsed:
		n.attempts++
		last = n.attempts >= or(u.settings.Attempts, defaultAttempts)
		if delay == 0 {
			delay = backoff(n.attempts, now.Rand^seq)
		}
	case CauseAbandoned:
		n.abandons++
		last = n.abandons >= MaxAbandons
	}
	if last {
		u.end(now, seq, Dead, cause, detailed(reason, stderr), out)
		return
	}
	d := u.deliveries[seq]
	n.reader, n.due = []byte(d.reader()), n.at+delay.Milliseconds()
	u.close(d.handle(seq), nacked)
	out.record(func(dst []byte) []byte { return appendNack(dst, u.box.id, u.id, &n) })
}

// detailed adds to a reason what a program wrote.
func detailed(reason, stderr string) string {
	if stderr == "" {
		return reason
	}
	return reason + "\n" + stderr[max(0, len(stderr)-MaxStderr):]
}

// end makes the END record of a delivery.
func (u *sub) end(now Now, seq uint64, state MailState, cause Cause, reason string, out *Output) {
	d := u.deliveries[seq]
	e := end{state: state, cause: cause, at: now.Wall, reader: []byte(d.reader()), reason: []byte(reason), seqs: []uint64{seq}}
	if r := u.retries[seq]; r != nil {
		e.attempts, e.abandons = r.attempts, r.abandons
	}
	switch cause {
	case CauseNacked, CauseLapsed, CauseFinal:
		e.attempts++
	case CauseAbandoned:
		e.abandons++
	}
	u.close(d.handle(seq), ended)
	out.record(func(dst []byte) []byte { return appendEnd(dst, head{sub: u.id, box: u.box.id}, &e) })
}

// reader returns the name of the session that has the delivery.
func (d *delivery) reader() string {
	if d.session == nil {
		return ""
	}
	return d.session.Reader
}

// giveUp takes a live delivery from its session; the mail may be delivered again at once.
func (u *sub) giveUp(seq uint64, d *delivery) {
	d.release()
	d.state = returned
	u.offer(seq)
}

// releaseBehind gives up the deliveries behind a mail in its lane: they must wait for it.
func (u *sub) releaseBehind(seq uint64) {
	m := u.box.mails.get(seq)
	l := u.lanes[m.key]
	if m.key == 0 || l == nil {
		return
	}
	i, _ := slices.BinarySearch(l.seqs, seq)
	for _, next := range l.seqs[min(i+1, len(l.seqs)):min(i+MaxKeyBatch, len(l.seqs))] {
		if d := u.deliveries[next]; d != nil && d.state == live {
			u.giveUp(next, d)
		}
	}
}

// backoff returns the wait after a failed attempt: min(MaxBackoff, 1 s · 2^(attempt-1)),
// and up to a quarter more at random.
func backoff(attempt uint8, random uint64) time.Duration {
	wait := min(MaxBackoff, baseBackoff<<min(attempt-1, 16))
	random = (random ^ random>>33) * 0xff51afd7ed558ccd // a step of MurmurHash3
	return wait + time.Duration((random>>32)%uint64(wait.Milliseconds()/4+1))*time.Millisecond
}

// Detach ends a session. If it broke, each delivery that it has is given back at the price
// of an abandon; otherwise nothing is spent.
func (s *State) Detach(now Now, x *Session, broke bool, out *Output) {
	u := x.sub
	if u == nil {
		return
	}
	x.sub = nil
	u.sessions = slices.DeleteFunc(u.sessions, func(y *Session) bool { return x == y })
	for _, seq := range u.heldBy(x) {
		d := u.deliveries[seq]
		switch {
		case d.session != x: // given up behind another one
		case broke:
			u.fail(now, seq, CauseAbandoned, 0, "", "", out)
			u.releaseBehind(seq)
		default:
			u.giveUp(seq, d)
		}
	}
	u.wake(out)
}

// TakeBack gives back the deliveries of a session that are newer than a number, as Return
// does: they did not reach their reader.
func (s *State) TakeBack(x *Session, after uint64, out *Output) {
	u := x.sub
	if u == nil {
		return
	}
	for _, seq := range u.heldBy(x) {
		if d := u.deliveries[seq]; d.session == x && d.n > after {
			u.giveUp(seq, d)
			u.releaseBehind(seq)
		}
	}
	u.wake(out)
}

// heldBy returns the mails that a session has, ascending.
func (u *sub) heldBy(x *Session) (seqs []uint64) {
	if x.held == 0 {
		return nil
	}
	for seq, d := range u.deliveries {
		if d.session == x {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs
}
